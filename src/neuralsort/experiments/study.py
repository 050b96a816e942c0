"""What every study shares: the run from data to a line of results."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning_fabric import Fabric
from torch import nn

from neuralsort.neighbors import files

from . import checkpoint, record
from .data import Digits, Sequences, load
from .options import ListConfig, StudyConfig
from .orderings import WITHOUT_TAU
from .plan import ConfigError, Plan
from .randomness import generator_for, seed_for
from .train import Diverged, State, Task, Trainer, differences, make_fabric

MODEL = "model.safetensors"
RESULT = "result.json"


@dataclass
class Tested:
    """What a model does on the test set.

    Attributes:
        metrics: Numbers by name.
        intervals: 95 % intervals of some of them.
        extras: What figures need besides.
    """

    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    extras: dict[str, Any] = field(default_factory=dict)


class Study(Protocol):
    """A study: how to make its task, and how to test what was learnt."""

    @property
    def name(self) -> str:
        """In options, lines and folders."""
        ...

    def taus(self, config: Any) -> tuple[float, ...]:
        """The temperatures that the recipe tries."""
        ...

    def plan(self, config: Any) -> Plan:
        """How the recipe trains."""
        ...

    def load(self, config: Any) -> Any:
        """The data, by split."""
        ...

    def task(self, config: Any, data: Any, tau: float, plan: Plan, /) -> Task:
        """What is trained at one temperature."""
        ...

    def test(self, config: Any, model: Any, data: Any, /) -> Tested:
        """Tests the best model, once."""
        ...

    def facts(self, config: Any) -> dict[str, Any]:
        """What the line says of the run besides options and plan."""
        ...

    def resized(self, config: Any, model: Any, n: int) -> Any:
        """Options for testing a model on lists of another length."""
        ...


def run(study: Study, config: StudyConfig) -> dict[str, Any]:
    """Trains at every temperature, tests the best on validation, and adds a line to the results.

    Interrupted or killed, it goes on where it was when called again with the same options; a run
    that has finished is not done again.

    Returns:
        The line.
    """
    folder, lines = config.folder(study.name), config.results / f"{study.name}.jsonl"
    fabric = make_fabric(config.device, config.precision)
    usual = study.plan(config)
    plan, taus = config.adjusted(usual), config.tau or study.taus(config)
    if _is_finished(folder):
        line = _finished(folder, config.identity | {"plan": asdict(plan), "taus": list(taus)})
        if fabric.is_global_zero:
            record.append(lines, line)  # it may have been killed before it got there
        return line
    data = study.load(config)
    trials, lost = [], {}
    for tau in taus:
        inside = folder / f"tau-{tau!r}" if len(taus) > 1 else folder
        try:
            trials.append(_train(study, config, data, tau, plan, inside, fabric))
        except Diverged as error:
            lost[tau] = error
    if not trials:
        raise next(iter(lost.values()))
    best = min(trials, key=lambda trial: trial.loss)
    tested = study.test(config, best.task.model, data)
    line = {
        "study": study.name,
        **config.identity,
        "tau": best.tau,
        "metrics": tested.metrics,
        "intervals": tested.intervals,
        "validation": best.state.best,
        "steps": best.state.step,
        "wall_seconds": round(sum(trial.state.seconds for trial in trials), 1),
        "config": {
            "plan": asdict(plan),
            "steps_of_recipe": usual.steps,
            "taus": list(taus),
            "parameters": sum(one.numel() for one in best.task.model.parameters()),
            "processes": fabric.world_size,
        }
        | study.facts(config),
        "trials": [{"tau": trial.tau, "history": trial.state.history} for trial in trials]
        + [{"tau": tau, "history": [], "diverged": str(error)} for tau, error in lost.items()],
        **record.environment(),
        "extras": tested.extras,
    }
    if fabric.is_global_zero:
        checkpoint.write(folder / MODEL, best.task.model.state_dict(), {"study": study.name})
        files.replace(folder / RESULT, json.dumps(line, allow_nan=False).encode())
        record.append(lines, line)
    return line


def evaluate(
    study: Study, config: StudyConfig, folder: Path, *, lengths: Sequence[int] = ()
) -> Iterator[dict[str, Any]]:
    """Tests a finished run again, on lists of its own length or of others; adds a line for each.

    Args:
        study: The study of the run.
        config: Options; what makes the run this run is taken from its folder.
        folder: Of the run.
        lengths: Of the test lists; none given, that of the run.

    Yields:
        The lines.

    Raises:
        ConfigError: If the method of the run is tied to the length it was trained at.
    """
    line = finished_line(folder)
    try:
        config = replace(config, **{name: line[name] for name in config.identity})
        data = study.load(config)
        model = study.task(config, data, line["tau"], study.plan(config)).model
        model.load_state_dict(checkpoint.read(folder / MODEL)[0])
    except (KeyError, TypeError, RuntimeError) as error:
        raise checkpoint.CheckpointError(
            f"{folder} does not hold a finished run of this version: {error}. Train it again."
        ) from None
    for one in [study.resized(config, model, n) for n in lengths] or [config]:
        tested = study.test(one, model, data)
        line |= one.identity | {"metrics": tested.metrics, "intervals": tested.intervals}
        line |= {"extras": tested.extras, **record.environment()}
        record.append(config.results / f"{study.name}.jsonl", line)
        yield line


@dataclass
class Trial:
    """A training at one temperature."""

    tau: float
    task: Task
    state: State

    @property
    def loss(self) -> float:
        """What the best temperature has least of."""
        value = self.state.best[self.task.metric]
        return -value if self.task.larger_is_better else value


def _train(
    study: Study,
    config: StudyConfig,
    data: Any,
    tau: float,
    plan: Plan,
    folder: Path,
    fabric: Fabric,
) -> Trial:
    torch.manual_seed(seed_for(config.seed, "parameters"))
    task = study.task(config, data, tau, plan)
    if not any(True for _ in task.model.parameters()):  # nothing to train
        start = time.monotonic()
        best = task.validate(task.model)
        return Trial(tau, task, State(best=best, seconds=time.monotonic() - start))
    trainer = Trainer(
        task,
        plan,
        seed=config.seed,
        folder=folder,
        fabric=fabric,
        identity=config.identity | {"tau": tau},
        checkpoint_seconds=config.checkpoint_seconds,
        log_folder=folder / "tensorboard" if config.tensorboard else None,
    )
    size = f"{config.sizes[0]}={getattr(config, config.sizes[0])}"
    return Trial(tau, task, trainer.run(f"{study.name} {config.method} {size} tau={tau:g}"))


def _is_finished(folder: Path) -> bool:
    """Whether there is a line and a model; where one is damaged, the last checkpoint makes both."""
    try:
        return (folder / MODEL).exists() and "config" in finished_line(folder)
    except checkpoint.CheckpointError:
        return False


def finished_line(folder: Path) -> dict[str, Any]:
    """The line of a run that has finished.

    Raises:
        CheckpointError: If it has not, or the folder is something else.
    """
    try:
        line = json.loads((folder / RESULT).read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: not JSON, not text
        line = None
    if not isinstance(line, dict) or "config" not in line:
        raise checkpoint.CheckpointError(
            f"{folder} is not the folder of a finished run. Run `neuralsort train` to its end."
        )
    return line


def _finished(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """The line of a run that has finished, if it is the run that is asked for."""
    line = finished_line(folder)
    found = {name: (line | line["config"])[name] for name in asked}
    if found != asked:
        raise checkpoint.CheckpointError(
            f"{folder} holds another run: {differences(found, asked)}. "
            "Give another --run, or delete that folder."
        )
    return line


# -- lists of large numbers ------------------------------------------------------------------------


class ListStudy:
    """What the studies of lists of large numbers share."""

    grid: Mapping[str, tuple[float, ...]]
    """The temperatures of each recipe."""

    def taus(self, config: ListConfig) -> tuple[float, ...]:
        """The temperatures that the recipe tries."""
        taus = self.grid[config.recipe]
        return taus[:1] if config.method in WITHOUT_TAU else taus

    def load(self, config: ListConfig) -> dict[str, Digits]:
        """The digits of the three splits."""
        return load(config.data, config.data_dir)

    def facts(self, config: ListConfig) -> dict[str, Any]:
        """The length that was trained, which may be tested at others."""
        return {"train_n": config.n}

    def resized(self, config: ListConfig, model: Any, n: int) -> ListConfig:
        """The same for lists of another length, where the method takes any."""
        if n != config.n and not model.any_length:
            raise ConfigError(
                f"{config.method} was trained for lists of {config.n} and takes no others, got "
                f"--n {n}. Train it at that length."
            )
        return replace(config, n=n)


class SequenceTask(ABC):
    """A task on sequences drawn anew at every step from the training digits.

    Args:
        model: `model(images, target)` is the loss.
        config: Sizes and seed.
        digits: The splits.
        batch: Lists in the whole batch.
    """

    def __init__(
        self, model: nn.Module, config: ListConfig, digits: dict[str, Digits], batch: int
    ) -> None:
        self.model, self.config, self.lists = model, config, batch
        self.digits = digits["train"]
        self.validation = Sequences.fixed(
            digits["validation"], "validation", config.validation_lists, config.n, config.places
        )

    def batch(self, step: int, part: slice) -> tuple[torch.Tensor, ...]:
        """Images and target of a part of the batch of that step."""
        config = self.config
        generator = generator_for(config.seed, "batch", step)
        drawn = Sequences.draw(self.digits, self.lists, config.n, config.places, generator)
        mine = drawn[part]
        return mine.images(), self.target(mine)

    @abstractmethod
    def target(self, sequences: Sequences) -> torch.Tensor:
        """What a model learns to say about the sequences."""

    @abstractmethod
    def validate(self, model: Any) -> dict[str, float]:
        """Metrics on the validation set."""


def images_for(model: nn.Module, sequences: Sequences) -> torch.Tensor:
    """The images of sequences, where the model is and in its precision."""
    like = next(model.parameters(), None)
    return sequences.images() if like is None else sequences.images().to(like)
