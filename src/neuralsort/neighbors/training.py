"""Learning an embedding through soft neighbours."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import joblib
import torch
from torch import Tensor, nn

ONE_THREAD = 10**9
"""A step of fewer products than this is done by one thread before others have woken up."""

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": partial(torch.optim.SGD, momentum=0.9),
}


class Batch(NamedTuple):
    """What a loss sees at a time.

    Attributes:
        queries: `(q, d)`. Embedded.
        candidates: `(n, d)`. Embedded.
        wanted: `(q, ...)`. Targets of the queries.
        known: `(n, ...)`. Targets of the candidates.
        mask: `(q, n)`. False where a candidate is the query itself.
    """

    queries: Tensor
    candidates: Tensor
    wanted: Tensor
    known: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Schedule:
    """How long and in what portions to train.

    Attributes:
        epochs: Passes over the training points as queries.
        batch: Queries at a time.
        candidates: Points that a query sorts.
        learning_rate: Of the optimiser.
        optimizer: One of `OPTIMIZERS`.
        patience: Epochs without a better validation before stopping.
    """

    epochs: int
    batch: int
    candidates: int
    learning_rate: float
    optimizer: str
    patience: int


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seeds torch's global generators, on every device, and leaves them as they were.

    `torch.manual_seed` reaches all devices of the machine's accelerator, whatever its make, so the
    states of all of them are kept.
    """
    module, devices = None, []
    if torch.accelerator.is_available():
        module = torch.get_device_module(torch.accelerator.current_accelerator())
        devices = range(torch.accelerator.device_count())
    # Where there is one device, some modules do not take its number.
    places = [()] if len(devices) == 1 else [(device,) for device in devices]
    states = [module.get_rng_state(*place) for place in places] if module else []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            yield
        finally:
            for state, place in zip(states, places, strict=True) if module else ():
                module.set_rng_state(state, *place)  # pyright: ignore[reportOptionalMemberAccess]


@contextmanager
def suited_threads(network: nn.Module, rows: int, *, dense: bool) -> Iterator[None]:
    """Limits torch's threads to what a step of training can use, and leaves them as they were.

    One where steps are small; else no more than there are cores for this process, by its affinity
    and the limits of its container. Threads that share a core wait for each other at the end of
    every operation, and a fit has tens of thousands of them.

    Args:
        network: What is trained.
        rows: Points in a step.
        dense: Whether a point passes every parameter once, so that the size of a step is known.
    """
    before = torch.get_num_threads()
    products = rows * sum(one.numel() for one in network.parameters())
    small = dense and products < ONE_THREAD
    torch.set_num_threads(1 if small else min(before, joblib.cpu_count()))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def train(
    network: nn.Module,
    loss: Callable[[Batch], Tensor],
    points: Tensor,
    targets: Tensor,
    schedule: Schedule,
    *,
    validate: Callable[[], float] | None = None,
    report: Callable[[int, float, tuple[str, float] | None], None],
) -> list[dict[str, float]]:
    """Trains a network in place; with validation, the best parameters are what is left in it.

    Every training point is a query once an epoch. The queries of a batch share candidates, drawn
    from all training points; no query is its own neighbour. Random numbers are torch's global
    ones.

    Args:
        network: Points to embeddings, which are flattened.
        loss: Of a batch.
        points: `(m, ...)`.
        targets: `(m, ...)`.
        schedule: How long.
        validate: A score of the network as it is, larger is better; None trains to the end.
        report: Called after every epoch with its number from 1, the mean loss, and the score, if
            there is one, with its name.

    Returns:
        The mean loss of every epoch, and its score if there is one.
    """
    parameters = [one for one in network.parameters() if one.requires_grad]
    if not parameters:
        if schedule.epochs:
            warnings.warn("The embedding has nothing to learn: it stays as it is.", stacklevel=5)
        return []
    optimizer = OPTIMIZERS[schedule.optimizer](parameters, lr=schedule.learning_rate)
    history: list[dict[str, float]] = []
    best, kept, stale = -float("inf"), {}, 0
    if validate is not None:  # where training starts may be the best
        best, kept = validate(), copy.deepcopy(network.state_dict())
    for epoch in range(schedule.epochs):
        network.train()
        total = 0.0
        for queries in torch.randperm(len(points)).split(schedule.batch):
            drawn = torch.randperm(len(points))[: schedule.candidates]
            both = network(points[torch.cat((queries, drawn))]).flatten(1)
            ours, theirs = both[: len(queries)], both[len(queries) :]
            others = (queries.unsqueeze(-1) != drawn).to(both.device)
            value = loss(Batch(ours, theirs, targets[queries], targets[drawn], others))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            total += value.item() * len(queries)
        entry = {"loss": total / len(points)}
        history.append(entry)
        if validate is None:
            report(epoch + 1, entry["loss"], None)
            continue
        entry["score"] = score = validate()
        report(epoch + 1, entry["loss"], ("validation", score))
        stale = 0 if score > best else stale + 1
        if score >= best:  # of equals the one that learned longest
            best, kept = score, copy.deepcopy(network.state_dict())
        if stale >= schedule.patience:
            break
    if validate is not None:
        network.load_state_dict(kept)
    return history
