"""A run of any study, from data to a line of results; and tests of runs that have finished."""

import hashlib
import json
import math
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from neuralsort.runtime import files, machine, process
from neuralsort.runtime.files import Busy

from .. import record
from ..data import augmentation
from ..data.downloads import DataError
from ..data.randomness import seed_for
from ..record import Line
from ..training import checkpoint
from ..training.plan import ConfigError, Plan
from ..training.trainer import Diverged, State, Task, Trainer, differences, make_fabric
from .study import Study, StudyConfig, Tested

MODEL = "model.safetensors"
"""The best parameters of a finished run, with its line in the header."""

FAILURES = (
    Busy,
    checkpoint.CheckpointError,
    ConfigError,
    DataError,
    Diverged,
    OSError,
    record.RecordError,
)
"""What people can do something about; the message says what."""

PACKAGES = ("neuralsort", "torch", "numpy", "lightning-fabric", "scikit-learn", "scipy")


def environment() -> dict[str, Any]:
    """What a number depends on besides the options: versions, source, machine; and the date."""
    return {
        "versions": machine.versions(PACKAGES),
        "commit": machine.commit(),
        "augmentation": _hash(Path(augmentation.__file__).read_text()),
        "machine": machine.machine() | machine.arithmetic(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def run(study: Study, config: StudyConfig) -> Line:
    """Trains at every temperature, tests the best on validation, and adds a line to the results.

    Interrupted or killed, it goes on where it was when called again with the same options; a run
    that has finished is not done again.

    Returns:
        The line.

    Raises:
        Busy: If another process is at work in the run's folder.
        CheckpointError: If another run is kept there.
        ConfigError: If there is not enough memory.
        Diverged: If no temperature gives finite numbers, or the test of the best one does not.
        Interrupted: After Ctrl-C or a SIGTERM, with a checkpoint.
    """
    folder, path = config.folder(study.name), config.results / f"{study.name}.jsonl"
    fabric = make_fabric(config.device, config.precision)
    usual = study.plan(config)
    plan, taus = config.adjusted(usual), config.tau or study.taus(config)
    _check_memory(study.memory(config, plan), _less(config))
    torch.set_num_threads(plan.threads)
    if fabric.is_global_zero:
        with files.turn_at(path):
            pass  # better to hear now than after the training that there is no permission
    with files.alone_in(folder) if fabric.is_global_zero else nullcontext():
        line = _finished(study, config, folder, plan, taus, fabric.world_size)
        if line is None:
            line = _run(study, config, folder, fabric, usual, plan, taus)
        if fabric.is_global_zero:
            record.append(path, line)  # if it has finished, it may have been killed before that
        return line


def _run(
    study: Study,
    config: StudyConfig,
    folder: Path,
    fabric: Fabric,
    usual: Plan,
    plan: Plan,
    taus: Sequence[float],
) -> Line:
    now = environment()
    splits = study.load(config)
    trials: list[Trial] = []
    lost: dict[float, Diverged] = {}
    for tau in taus:
        inside = folder / f"tau-{tau!r}" if len(taus) > 1 else folder
        try:
            trials.append(_train(study, config, splits, tau, plan, inside, fabric, now))
        except Diverged as error:
            lost[tau] = error
    if not trials:
        raise next(iter(lost.values()))
    best = min(trials, key=lambda trial: trial.loss)
    model = best.task.model
    tested = _tested(study, config, model, splits)
    states = [trial.state for trial in trials] + [x.state for x in lost.values() if x.state]
    start, *later = [one for trial in trials for one in trial.state.sittings] or [now]
    changed = [
        {x: fact for x, fact in one.items() if x != "date" and fact != start.get(x)}
        for one in later
    ]
    facts = {x: fact for x, fact in start.items() if x != "augmentation"}
    line = Line(
        study=study.name,
        **config.identity,
        tau=best.tau,
        metrics=tested.metrics,
        intervals=tested.intervals,
        intervals_over=tested.over,
        validation=best.state.best,
        steps=best.state.step,
        wall_seconds=round(sum(state.seconds for state in states), 1),
        config={
            "plan": asdict(plan),
            "steps_of_recipe": usual.steps,
            "taus": list(taus),
            "parameters": sum(one.numel() for one in model.parameters()),
            "processes": fabric.world_size,
            "device": fabric.device.type,
        }
        | config.tempering
        | study.facts(config),
        trials=[{"tau": trial.tau, "history": trial.state.history} for trial in trials]
        + [
            {
                "tau": tau,
                "history": error.state.history if error.state else [],
                "diverged": str(error),
            }
            for tau, error in lost.items()
        ],
        **facts,
        command=_command(study, config, fabric.world_size),
        digests={
            "data": checkpoint.digest(_tensors(splits)),
            "network": _architecture(model),
            "augmentation": start.get("augmentation", now["augmentation"]),
        },
        sittings=[one for one in changed if one],
        extras=tested.extras,
    )
    line = Line.from_facts(json.loads(line.to_json()))  # as anybody will read it
    if fabric.is_global_zero:
        checkpoint.write(folder / MODEL, model.state_dict(), {"line": asdict(line)})
    return line


def evaluate(
    study: Study, config: StudyConfig, path: Path, *, lengths: Sequence[int] = ()
) -> Iterator[Line]:
    """Tests a finished run again, on lists of its own length or of others; adds a line for each.

    Commit, versions and machine of a line stay those of the training; where it was tested stands
    beside them.

    Args:
        study: The study of the run.
        config: Options; what makes the run this run is taken from its line.
        path: Folder of the run, or the file of its best parameters.
        lengths: Of the test lists; none given, that of the run.

    Yields:
        The lines.

    Raises:
        ConfigError: If the method of the run is tied to the length it was trained at.
    """
    tensors, line = finished(path)
    try:
        names = [name for name in config.identity if name != "sizes"]
        config = replace(config, **line.sizes, **{name: getattr(line, name) for name in names})
        rare = {name: line.config[name] for name in config.rare if line.config.get(name)}
        config = replace(config, temperature=line.temperature, **rare)
        torch.set_num_threads(line.plan.get("threads", 1))
        splits = study.load(config)
        plan = Plan(**line.plan)
        model = study.task(config, splits, line.tau or 1.0, plan).model
        if line.precision == "64-true":
            model.double()
        model.load_state_dict(tensors)
    except (KeyError, TypeError, RuntimeError) as error:
        raise checkpoint.CheckpointError(
            f"{path} does not hold a finished run of this version: {error}. Train it again."
        ) from None
    where = environment()
    for one in [_resized(config, model, n) for n in lengths] or [config]:
        _check_memory(study.memory(one, replace(plan, batch=0)), "--n")
        tested = _tested(study, one, model, splits)
        new = replace(
            line,
            **one.identity,
            metrics=tested.metrics,
            intervals=tested.intervals,
            intervals_over=tested.over,
            extras=tested.extras,
            tested=where,
        )
        record.append(config.results / f"{study.name}.jsonl", new)
        yield new


def _tested(study: Study, config: Any, model: nn.Module, splits: Any) -> Tested:
    """The test, if all its metrics are finite; without intervals that are not."""
    tested = study.test(config, model, splits)
    for name, value in tested.metrics.items():
        if not math.isfinite(value):
            raise Diverged(
                f"In the test, {name} is {value}. Train with a lower --lr, or with a larger test."
            )
    whole = {name: x for name, x in tested.intervals.items() if all(map(math.isfinite, x))}
    return replace(tested, intervals=whole)


def _resized(config: Any, model: Any, n: int) -> Any:
    """The options for testing a model on lists of another length, where its method takes any."""
    if "n" not in config.sizes:
        raise ConfigError(f"This run has no lists to test at another length, got --n {n}.")
    if n != config.n and not model.any_length:
        raise ConfigError(
            f"{config.method} was trained for lists of {config.n} and takes no others, got --n {n}."
            " Train it at that length."
        )
    return replace(config, n=n)


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
    splits: Any,
    tau: float,
    plan: Plan,
    folder: Path,
    fabric: Fabric,
    now: dict[str, Any],
) -> Trial:
    torch.manual_seed(seed_for(config.seed, "parameters"))
    task = study.task(config, splits, tau, plan)
    if not any(True for _ in task.model.parameters()):  # nothing to train
        start = time.monotonic()
        best = task.validate(task.model)
        seconds = time.monotonic() - start
        return Trial(tau, task, State(best=best, seconds=seconds, sittings=[now]))
    trainer = Trainer(
        task,
        plan,
        seed=config.seed,
        folder=folder,
        fabric=fabric,
        identity=config.identity | {"tau": tau} | config.tempering | study.facts(config),
        checkpoint_seconds=config.checkpoint_seconds,
        log_folder=folder / "tensorboard" if config.tensorboard else None,
        sitting=now,
    )
    size = f"{config.shown}={getattr(config, config.shown)}"
    try:
        return Trial(tau, task, trainer.run(f"{study.name} {config.method} {size} tau={tau:g}"))
    except Diverged as error:
        error.state = trainer.state
        raise


# -- finished runs ---------------------------------------------------------------------------------


def finished(path: Path) -> tuple[dict[str, Tensor], Line]:
    """The best parameters and the line of a run that has finished.

    Args:
        path: Folder of the run, or the file of its best parameters.

    Raises:
        CheckpointError: If it has not, or this is something else.
    """
    file = path if path.is_file() else path / MODEL
    if not file.is_file():
        raise checkpoint.CheckpointError(
            f"{path} is not the folder of a finished run. Run `neuralsort train` to its end."
        )
    tensors, facts = checkpoint.read(file)
    try:
        return tensors, Line.from_facts(facts["line"])
    except (KeyError, TypeError, ValueError) as error:
        raise checkpoint.CheckpointError(
            f"{file} holds no finished run of this version ({error}). Run `neuralsort train` again."
        ) from None


def _finished(
    study: Study,
    config: StudyConfig,
    folder: Path,
    plan: Plan,
    taus: Sequence[float],
    processes: int,
) -> Line | None:
    """The line of the run that is asked for, if it has finished.

    Where its file is damaged, the last checkpoint makes it again.

    Raises:
        CheckpointError: If another run has finished there.
    """
    try:
        _, line = finished(folder)
    except checkpoint.CheckpointError:
        return None
    found, asked = told(line, study, config, plan, taus, processes)
    if found != asked:
        raise checkpoint.CheckpointError(
            f"{folder} holds another run: {differences(found, asked)}. "
            "Give another --run, or delete that folder."
        )
    return line


def told(
    line: Line,
    study: Study,
    config: StudyConfig,
    plan: Plan,
    taus: Sequence[float],
    processes: int = 1,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What makes a run this run: as its line says, and as the options ask for it.

    Raises:
        CheckpointError: If the line is of another version, whose lines say other things.
    """
    asked = config.identity | {"study": study.name, "plan": asdict(plan), "taus": list(taus)}
    facts = study.facts(config)
    asked |= {"temperature": config.temperature, "processes": processes} | facts
    found = {name: getattr(line, name) for name in (*config.identity, "study")}
    try:
        found["plan"] = asdict(Plan(**line.plan))
        found["taus"] = line.config["taus"]
    except (KeyError, TypeError) as error:
        raise checkpoint.CheckpointError(
            f"The line of {study.name} {line.method}, seed {line.seed}, is of another version "
            f"({error}). Delete it or its folder, and do that run again."
        ) from None
    found["temperature"] = line.temperature
    found["processes"] = line.processes
    found |= {name: line.config.get(name) for name in facts}
    return found, asked


# -- what a record says ----------------------------------------------------------------------------


def _check_memory(needed: int, less: str) -> None:
    there = machine.available_memory()
    if there is not None and needed > there:
        raise ConfigError(
            f"This run needs at least {needed / 1e9:,.0f} GB of memory, and {there / 1e9:,.0f} GB "
            f"are free. Lower {less}."
        )


def _less(config: StudyConfig) -> str:
    """The options that memory goes with."""
    lists = "--n, --places, --test-lists, --validation-lists, --overlap or "
    return f"{lists if 'n' in config.sizes else ''}--batch"


def _tensors(splits: dict[str, Any]) -> dict[str, Tensor]:
    """All tensors of the data, by split and name."""
    return {
        f"{split}.{one.name}": getattr(part, one.name)
        for split, part in splits.items()
        if is_dataclass(part)
        for one in fields(part)
        if isinstance(getattr(part, one.name), Tensor)
    }


def _command(study: Study, config: StudyConfig, processes: int) -> str:
    """What to type to do a run again, with the settings before it that change its rounding."""
    own = process.own_rounding(os.environ)
    words = [f"{name}={shlex.quote(value)}" for name, value in own.items()]
    return " ".join([*words, config.command(study.name, program(processes))])


def program(processes: int) -> str:
    """How the command line is started with so many processes."""
    if processes > 1:
        return f"torchrun --nproc-per-node {processes} -m -- neuralsort.experiments"
    return "neuralsort"


def _architecture(model: nn.Module) -> str:
    """A digest of layers and shapes, whatever the parameters are."""
    shapes = [f"{name} {tuple(one.shape)}" for name, one in model.state_dict().items()]
    return _hash("\n".join([repr(model), *shapes]))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
