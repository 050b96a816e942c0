"""The study of medians: predict the median of a list of images, having seen only medians."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import tyro
from torch import Tensor, nn

from ..data.numbers import Digits, Sequences
from ..data.randomness import seed_for
from ..networks import orderings
from ..networks.readers import Gain
from ..training.plan import ConfigError, Plan
from .intervals import of_mean, of_r2
from .lists import ListConfig, ListModel, ListStudy, SequenceTask, readings
from .study import Tested

METHODS = ("constant", *orderings.METHODS)

if TYPE_CHECKING:
    Method = str
else:
    Method = tyro.extras.literal_type_from_choices(METHODS)


@dataclass(frozen=True)
class MedianConfig(ListConfig):
    """Learn to predict the median of images of large numbers from lists with their median."""

    method: Method = "neuralsort"
    """How lists are sorted; `constant` always says the middle of the range."""
    recipe: Literal["fast", "paper"] = "fast"
    """`fast`: ours, for a CPU; `paper`: the paper's network and optimisation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n % 2 == 0:
            raise ConfigError(f"--n must be odd, so that a median is in the list; got {self.n}.")


class Predictor(nn.Module):
    """Items `(B, n, ...)` to a median `(B,)`, scaled; `which` as in `Ordering.outputs`."""

    any_length = False
    """Whether lists of any length will do, whatever the length it was trained at."""

    def loss(self, items: Tensor, target: Tensor, which: Tensor | None = None) -> Tensor:
        """`(L,)`. The squared error."""
        return (self(items, which) - target).square()


class SortedMedian(Predictor):
    """The middle row of a relaxed order times estimates of all values.

    Args:
        ordering: The method.
        values: Items to one value each, `(B, n, 1)`.
    """

    def __init__(self, ordering: orderings.Ordering, values: nn.Module) -> None:
        super().__init__()
        self.ordering, self.values = ordering, values
        self.any_length = ordering.any_length

    def _middle(self, items: Tensor, which: Tensor | None) -> orderings.Cost:
        """What a permutation makes the median be."""
        values = orderings.mixed(self.values(items), which).squeeze(-1)
        return lambda P: P.sort(values)[..., values.shape[-1] // 2]

    def loss(self, items: Tensor, target: Tensor, which: Tensor | None = None) -> Tensor:
        """`(L,)`. The expected squared error."""
        middle, outputs = self._middle(items, which), self.ordering.outputs(items, which)
        return self.ordering.expected(lambda P: (middle(P) - target).square(), outputs)

    def forward(self, items: Tensor, which: Tensor | None = None) -> Tensor:
        """`(L,)`. The prediction, averaged over samples for the methods that sample."""
        middle, outputs = self._middle(items, which), self.ordering.outputs(items, which)
        return self.ordering.averaged(middle, outputs)


class VanillaMedian(Predictor):
    """No sorting: outputs of all images, joined, and three layers of ten units."""

    def __init__(self, network: orderings.Network, n: int) -> None:
        super().__init__()
        self.network = network(n)
        self.layers = nn.Sequential(
            nn.Linear(n * n, 10),
            nn.ReLU(),
            nn.Linear(10, 10),
            nn.ReLU(),
            nn.Linear(10, 10),
            nn.ReLU(),
            nn.Linear(10, 1),
        )

    def forward(self, items: Tensor, which: Tensor | None = None) -> Tensor:
        """`(L,)`. The prediction."""
        outputs = orderings.mixed(self.network(items), which)
        return self.layers(outputs.flatten(-2)).squeeze(-1)


class ConstantMedian(Predictor):
    """Always the middle of the range."""

    any_length = True

    def forward(self, items: Tensor, which: Tensor | None = None) -> Tensor:
        """`(L,)` zeros."""
        return items.new_zeros(len(items if which is None else which))


class MedianModel(ListModel):
    """The loss of a predictor of medians, which sees values scaled to mean 0 and variance 1.

    Args:
        reader: Images to what the predictor takes.
        predictor: Items to a scaled median, and to its loss.
        places: Digits of a number, which give the scale.
        jittered_places: Digits of an image to move about in training; 0 for none.
    """

    def __init__(
        self, reader: nn.Module, predictor: Predictor, places: int, jittered_places: int
    ) -> None:
        super().__init__(reader, any_length=predictor.any_length, jittered_places=jittered_places)
        self.predictor = predictor
        self.middle, self.scale = (10**places - 1) / 2, 10**places / 12**0.5

    def forward(self, images: Tensor, median: Tensor, which: Tensor | None = None) -> Tensor:
        """`(B, n, height, width), (L,) -> ()`; `which` makes other lists of the images."""
        target = (median - self.middle) / self.scale
        return self.predictor.loss(self.read(images), target, which).mean()

    def predict(self, items: Tensor) -> Tensor:
        """`(B,)`. Medians, of what the reader made of the images."""
        return self.middle + self.scale * self.predictor(items)


class MedianTask(SequenceTask):
    """Prediction of medians, chosen by the mean squared error."""

    metric = "mse"
    larger_is_better = False

    def target(self, sequences: Sequences) -> Tensor:
        return medians(sequences)

    def validate(self, model: MedianModel) -> dict[str, float]:
        errors = predictions(model, self.validation) - medians(self.validation)
        return {"mse": errors.double().square().mean().item()}


class MedianStudy(ListStudy):
    """The study as the engine runs it."""

    name = "median"
    config = MedianConfig

    def plan(self, config: MedianConfig) -> Plan:
        """How the recipe trains lists of that length."""
        if config.recipe == "paper":
            # As for sorting, with four times as many steps of a batch of 5.
            return Plan(steps=500_000, batch=5, lr=1e-4, validate_every=2_500)
        return super().plan(config)

    def task(
        self, config: MedianConfig, splits: dict[str, Digits], tau: float, plan: Plan
    ) -> MedianTask:
        """What is trained at one temperature."""
        reader, network = config.networks(splits["train"])
        if config.method == "constant":
            reader, predictor = nn.Identity(), ConstantMedian()
        elif config.method == "vanilla":
            predictor = VanillaMedian(network, config.n)
        else:
            values = network(1)
            if config.recipe == "fast" and config.method not in orderings.BY_MATRIX:
                # One number per image is both what is sorted by and what is predicted.
                reader, values = nn.Sequential(reader, values), nn.Identity()
                network = Gain
            tempered = config.tempered(tau, plan)
            ordering = orderings.build(config.method, network, n=config.n, tau=tempered)
            predictor = SortedMedian(ordering, values)
        model = MedianModel(reader, predictor, config.places, config.jittered_places)
        return MedianTask(model, config, splits, plan)

    def test(self, config: MedianConfig, model: MedianModel, splits: dict[str, Digits]) -> Tested:
        """Mean squared error, in units of the numbers, and R^2 on the fixed test set."""
        sequences = config.fixed(splits, "test")
        model.eval()
        with torch.no_grad():
            predicted = predictions(model, sequences).double()
        both = torch.stack((medians(sequences).double(), predicted), -1)
        made_of = sequences.index.flatten(1)
        points = both[:2_000].round().long().tolist()
        return Tested(
            {"mse": mse(both).item(), "r2": r2(both).item()},
            {
                "mse": of_mean((both[:, 0] - both[:, 1]).square(), made_of),
                "r2": of_r2(both, made_of),
            },
            "lists and images",
            {"points": points},
        )


def medians(sequences: Sequences) -> Tensor:
    """`(lists,)`. The true medians."""
    return sequences.values.median(-1).values


def predictions(model: MedianModel, sequences: Sequences) -> Tensor:
    """`(lists,)`. What a model in evaluation mode predicts; samples are the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for("predictions"))
        parts = [model.predict(read).cpu() for _, read in readings(model, sequences)]
    return torch.cat(parts)


def mse(both: Tensor) -> Tensor:
    """Mean squared error of pairs (true, predicted), `(lists, 2) -> ()`."""
    return (both[:, 0] - both[:, 1]).square().mean()


def r2(both: Tensor) -> Tensor:
    """Coefficient of determination: the share of the variance of the true that is explained."""
    return 1 - mse(both) / both[:, 0].var(correction=0)
