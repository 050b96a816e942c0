"""The training engine: steps, validation, checkpoints, resume; on Lightning Fabric."""

import copy
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

import neuralsort.torch as ns
from neuralsort.runtime.progress import TrainingProgress

from ..data.randomness import seed_for
from . import checkpoint
from .plan import ConfigError, Plan

CHECKPOINT = "checkpoint.safetensors"


class Interrupted(Exception):
    """Training was asked to stop, and left a checkpoint to go on from."""


class Diverged(Exception):
    """A loss, gradient, parameter or metric is no finite number; the message says what to try."""

    state: "State | None" = None
    """How far the training came, if it was one."""


class Task(Protocol):
    """What is trained: `model(*batch)` is the loss, `validate` says how good a model is.

    A batch depends on the step alone. The random numbers of torch are set anew before every step
    from the seed and the step, so a model may use them freely.
    """

    @property
    def model(self) -> nn.Module:
        """What is trained."""
        ...

    @property
    def metric(self) -> str:
        """The metric that chooses the best parameters."""
        ...

    @property
    def larger_is_better(self) -> bool:
        """Which way."""
        ...

    def batch(self, step: int, part: slice) -> tuple[Tensor, ...]:
        """The lists or images of that step, those in `part` of the whole batch."""
        ...

    def validate(self, model: Any) -> dict[str, float]:
        """Metrics on the validation set."""
        ...


@dataclass
class State:
    """How far a run has come; with the tensors, all that a checkpoint holds.

    Attributes:
        step: Steps done.
        seconds: Time spent, also in earlier sittings.
        history: One entry per validation.
        best: The entry of the best validation.
        stale: Validations since then.
        sittings: Commit, versions, augmentation, machine and date of every sitting.
    """

    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] = field(default_factory=dict)
    stale: int = 0
    sittings: list[dict[str, Any]] = field(default_factory=list)


def make_fabric(device: str, precision: str = "32-true") -> Fabric:
    """Fabric for one process, or for all those that `torchrun` started."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    strategy = "ddp" if processes > 1 else "auto"
    try:
        fabric = Fabric(
            accelerator=device,
            devices=processes,
            strategy=strategy,
            precision=precision,  # type: ignore[arg-type]
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"--device {device} cannot be used here: {error}. Try --device cpu."
        ) from None
    fabric.launch()
    return fabric


class Trainer:
    """Trains a task and keeps a checkpoint in a folder; made anew in the same folder, it goes on.

    Killed at any moment and started again, a run ends with the same parameters to the bit on the
    same machine: batches, noise and learning rate are functions of the step.

    Args:
        task: What to train.
        plan: How.
        seed: Of batches and noise.
        folder: For the checkpoint.
        fabric: Devices, precision and processes.
        identity: What makes the run this run; a checkpoint of another is refused.
        checkpoint_seconds: Time between checkpoints.
        log_folder: For TensorBoard, if wanted.
        sitting: What a record says of where and when this is.
    """

    def __init__(
        self,
        task: Task,
        plan: Plan,
        *,
        seed: int,
        folder: Path,
        fabric: Fabric,
        identity: dict[str, Any],
        checkpoint_seconds: float,
        log_folder: Path | None = None,
        sitting: dict[str, Any] | None = None,
    ) -> None:
        if plan.batch % fabric.world_size:
            raise ConfigError(
                f"A batch of {plan.batch} does not divide among {fabric.world_size} processes. "
                f"Give a --batch that is a multiple of {fabric.world_size}."
            )
        self.task, self.plan, self.seed, self.fabric = task, plan, seed, fabric
        self.path = folder / CHECKPOINT
        self.identity = identity | {"plan": asdict(plan), "processes": fabric.world_size}
        self.checkpoint_seconds = checkpoint_seconds
        self.model = task.model
        self.temperatures = [
            one for one in self.model.modules() if isinstance(one, ns.nn.Temperature)
        ]
        self.wrapped, self.optimizer = fabric.setup(
            self.model, plan.make_optimizer(self.model.parameters())
        )
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.best: dict[str, Tensor] = {}
        self.state = State()
        self.writer = _tensorboard(log_folder) if log_folder and fabric.is_global_zero else None
        if self.path.exists():
            self._restore()
        if not self.done:
            self.state.sittings.append(sitting or {})

    # -- the loop ----------------------------------------------------------------------------------

    def run(self, title: str) -> State:
        """Trains to the end of the plan, and leaves the best parameters in the task's model.

        Raises:
            Interrupted: After Ctrl-C or a SIGTERM, with the checkpoint written.
            Diverged: If the loss, its gradient or a validation is infinite or NaN.
        """
        earlier, start = self.state.seconds, time.monotonic()
        saved = start
        show = self.fabric.is_global_zero
        with (
            _stop_requests() as stop,
            TrainingProgress(title, self.plan.steps, show=show) as progress,
        ):
            while not self.done:
                loss = self.step()
                self.state.seconds = earlier + time.monotonic() - start
                if self._is_validation_due():
                    self._validate(loss)
                    self.state.seconds = earlier + time.monotonic() - start
                progress.trained(self.state.step, loss, self._latest())
                late = time.monotonic() - saved > self.checkpoint_seconds
                stopping, due = self._agree(bool(stop), late)
                if stopping or self.done or due:
                    self.save()
                    saved = time.monotonic()
                if stopping:
                    raise Interrupted
        if self.writer is not None:
            self.writer.close()
        self.model.load_state_dict(self.best)
        return self.state

    @property
    def done(self) -> bool:
        """Whether all steps are done, or validation has stopped improving."""
        if self.plan.patience and self.state.stale >= self.plan.patience:
            return True
        return self.state.step >= self.plan.steps

    def step(self) -> float:
        """Does one step of the training, and returns its loss."""
        step, rank = self.state.step, self.fabric.global_rank
        batch = self.task.batch(step, slice(rank, None, self.fabric.world_size))
        torch.manual_seed(seed_for(self.seed, "step", step, rank))
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.lr_at(step)
        self.optimizer.zero_grad()
        loss = self.wrapped(*(one.to(self.fabric.device) for one in batch))
        self.fabric.backward(loss)
        value, norm = loss.item(), 0.0
        if self.plan.clip:
            found = self.fabric.clip_gradients(
                self.wrapped, self.optimizer, max_norm=self.plan.clip, error_if_nonfinite=False
            )
            norm = float(torch.as_tensor(found))
        (lost,) = self._agree(not (math.isfinite(value) and math.isfinite(norm)))
        if lost:
            raise Diverged(
                f"Training diverged at step {step}: the loss is {value}, the norm of its gradient "
                f"{norm}. Lower --lr, or raise --tau."
            )
        self.optimizer.step()
        for temperature in self.temperatures:
            temperature.step()
        self._follow()
        self.state.step += 1
        return value

    @torch.no_grad()
    def _follow(self) -> None:
        """Moves the average towards the parameters; the first steps count for less."""
        decay = min(self.plan.average, (1 + self.state.step) / (10 + self.state.step))
        for mean, now in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(now, 1 - decay)
        for mean, now in zip(self.average.buffers(), self.model.buffers(), strict=True):
            mean.copy_(now)

    def _agree(self, *wishes: bool) -> list[bool]:
        """What any process wishes, all must do at the same step, or they wait for ever."""
        if self.fabric.world_size == 1:
            return list(wishes)
        counts = self.fabric.all_reduce(torch.tensor(wishes, dtype=torch.float), reduce_op="sum")
        return (torch.as_tensor(counts) > 0).tolist()

    # -- validation --------------------------------------------------------------------------------

    def _is_validation_due(self) -> bool:
        step = self.state.step
        return step % self.plan.validate_every == 0 or step == self.plan.steps

    def _validate(self, loss: float) -> None:
        """Validates the same model in every process, and believes the first."""
        for buffer in self.average.buffers():  # such as the statistics of a part of the batch
            buffer.copy_(self.fabric.broadcast(buffer))
        tensors = [one for one in self.average.state_dict().values() if one.is_floating_point()]
        if not all(one.isfinite().all() for one in tensors):
            raise Diverged(
                f"Training diverged before step {self.state.step}: a parameter is no finite "
                "number. Lower --lr, or raise --tau."
            )
        self.average.eval()
        with torch.no_grad():
            metrics = self.fabric.broadcast(self.task.validate(self.average))
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise Diverged(
                    f"Training diverged before step {self.state.step}: on validation, {name} is "
                    f"{value}. Lower --lr, or raise --tau."
                )
        entry = {"step": self.state.step, "seconds": round(self.state.seconds, 1), "loss": loss}
        entry |= metrics | {"log_variance": self._log_variance()}
        if self.temperatures:
            entry["tau"] = self.temperatures[0]().item()
        self.state.history.append(entry)
        sign = 1 if self.task.larger_is_better else -1
        if (
            not self.best
            or sign * (metrics[self.task.metric] - self.state.best[self.task.metric]) > 0
        ):
            self.state.best, self.state.stale = entry, 0
            self.best = copy.deepcopy(self.average.state_dict())
        else:
            self.state.stale += 1
        if self.writer is not None:
            for name, value in entry.items():
                if value is not None:
                    self.writer.add_scalar(name, value, self.state.step)

    def _latest(self) -> tuple[str, float] | None:
        history = self.state.history
        return (self.task.metric, history[-1][self.task.metric]) if history else None

    def _log_variance(self) -> float | None:
        """Log of the mean variance of a gradient entry, from the running moments of Adam."""
        total, entries = 0.0, 0
        for one in self.optimizer.state.values():
            if "exp_avg_sq" in one:
                count = int(one["step"])
                mean = one["exp_avg"] / (1 - 0.9**count)
                square = one["exp_avg_sq"] / (1 - 0.999**count)
                total += (square - mean.square()).clamp_min(0).sum().item()
                entries += mean.numel()
        return math.log(total / entries) if 0 < total < math.inf else None

    # -- checkpoints -------------------------------------------------------------------------------

    def save(self) -> None:
        """Writes everything that the next step depends on."""
        if self.fabric.is_global_zero:
            tensors = checkpoint.named("model", self.model.state_dict())
            tensors |= checkpoint.named("average", self.average.state_dict())
            tensors |= checkpoint.named("best", self.best)
            for index, state in self.optimizer.state_dict()["state"].items():
                tensors |= checkpoint.named(f"optimizer.{index}", state)
            checkpoint.write(self.path, tensors, {"identity": self.identity} | asdict(self.state))
        self.fabric.barrier()

    def _restore(self) -> None:
        try:
            tensors, facts = checkpoint.read(self.path)
        except checkpoint.CheckpointError as error:
            raise checkpoint.CheckpointError(
                f"{error} Delete it to start again, or give another --run."
            ) from None
        identity = facts.pop("identity", {})
        if identity != self.identity:
            raise checkpoint.CheckpointError(
                f"{self.path} belongs to another run: {differences(identity, self.identity)}. "
                "Give another --run, or delete that folder to start again."
            )
        try:
            self.state = State(**facts)
        except TypeError as error:
            raise checkpoint.CheckpointError(
                f"{self.path} is a checkpoint of another version ({error}). Delete it to start "
                "again, or give another --run."
            ) from None
        try:
            self.model.load_state_dict(checkpoint.under("model", tensors))
            self.average.load_state_dict(checkpoint.under("average", tensors))
        except RuntimeError as error:
            raise checkpoint.CheckpointError(
                f"{self.path} is of another network ({str(error).splitlines()[0]}). Delete it to "
                "start again, or give another --run."
            ) from None
        self.best = checkpoint.under("best", tensors)
        moments = {}
        for index, parameter in enumerate(self.model.parameters()):
            found = checkpoint.under(f"optimizer.{index}", tensors)
            # In the memory layout of the parameter, so that updates round as they would have.
            moments[index] = {
                name: torch.empty_like(parameter).copy_(one)
                if one.shape == parameter.shape
                else one
                for name, one in found.items()
            }
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict(
            {"state": {k: v for k, v in moments.items() if v}, "param_groups": groups}
        )


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> str:
    """What two configurations do not share."""
    parts = []
    for name in sorted(old.keys() | new.keys()):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            parts.append(differences(a, b, f"{prefix}{name}."))
        elif a != b:
            parts.append(f"{prefix}{name} is {a!r} there and {b!r} here")
    return ", ".join(filter(None, parts))


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "--tensorboard needs the package tensorboard. Install it with pip install tensorboard."
        ) from None
    return SummaryWriter(str(folder))


@contextmanager
def _stop_requests() -> Iterator[list[int]]:
    """Collects Ctrl-C and SIGTERM, so that a step is never left half done; the second one kills."""
    requests: list[int] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: object) -> None:
        requests.append(number)
        signal.signal(number, previous[number])

    if threading.current_thread() is threading.main_thread():  # elsewhere signals do not arrive
        previous |= {one: signal.signal(one, note) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requests
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
