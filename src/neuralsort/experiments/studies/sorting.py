"""The study of sorting: put images of large numbers in order, having seen only orders."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
import tyro
from torch import Tensor, nn

import neuralsort.torch as ns

from ..data.images import png
from ..data.numbers import Digits, Sequences
from ..data.randomness import generator_for
from ..networks import orderings
from ..networks.readers import PaperNetwork
from ..training.plan import ConfigError, Plan
from .intervals import of_mean, of_share
from .lists import ListConfig, ListModel, ListStudy, SequenceTask, images_for, readings
from .study import Tested

if TYPE_CHECKING:
    Method = str
else:
    Method = tyro.extras.literal_type_from_choices(orderings.METHODS)


STANDARDISED = 200
"""Training images that the tuned recipe's first parameters are fitted to."""

EXAMPLES, LONGEST_EXAMPLE = 4, 9
"""How many test lists a line keeps with their images, and up to which length."""


@dataclass(frozen=True)
class SortConfig(ListConfig):
    """Learn to sort images of large numbers from lists with their order."""

    method: Method = "neuralsort"
    """How lists are sorted."""
    recipe: Literal["fast", "paper", "tuned"] = "fast"
    """`fast`: ours, for a CPU; `paper`: as in the paper; `tuned`: its network, trained better."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n < 2:
            raise ConfigError(f"--n must be at least 2, so that lists have orders; got {self.n}.")


class SortModel(ListModel):
    """The loss of sorting: the cross-entropy between the true order and a relaxed one.

    Methods that only see permutations, where it is infinite, get the share of wrong places instead.

    Args:
        reader: Images to what the ordering takes.
        ordering: The method.
        jittered_places: Digits of an image to move about in training; 0 for none.
        chance: Share of chance mixed into every row in the loss, which bounds what one place can
            cost; 0 for the plain cross-entropy.
    """

    def __init__(
        self,
        reader: nn.Module,
        ordering: orderings.Ordering,
        *,
        jittered_places: int = 0,
        chance: float = 0.0,
    ) -> None:
        super().__init__(reader, any_length=ordering.any_length, jittered_places=jittered_places)
        self.ordering, self.chance = ordering, chance

    def forward(self, images: Tensor, order: Tensor, which: Tensor | None = None) -> Tensor:
        """`(B, n, height, width), (L, n) -> ()`; `which` makes other lists of the images."""

        def cost(P: ns.RelaxedPermutation) -> Tensor:
            if self.ordering.needs_finite_costs:
                return 1 - P.log_prob(order).exp().mean(-1)
            if not self.chance:
                return ns.permutation_cross_entropy(P, order, reduction="none")
            log_chance = torch.tensor(self.chance / order.shape[-1]).log()
            rows = P.log_prob(order) + torch.tensor(1 - self.chance).log()
            return -torch.logaddexp(rows, log_chance).mean(-1)

        outputs = self.ordering.outputs(self.read(images), which)
        return self.ordering.expected(cost, outputs).mean()

    def relaxed(self, items: Tensor) -> ns.RelaxedPermutation:
        """The relaxed order of what the reader made of images."""
        return self.ordering(self.ordering.outputs(items))


class SortTask(SequenceTask):
    """Sorting, chosen by the share of lists in exactly the right order."""

    metric = "exact_match"
    larger_is_better = True

    def target(self, sequences: Sequences) -> Tensor:
        return sequences.order()

    def validate(self, model: SortModel) -> dict[str, float]:
        return {name: x.mean().item() for name, x in outcomes(model, self.validation).items()}


class SortStudy(ListStudy):
    """The study as the engine runs it."""

    name = "sort"
    config = SortConfig

    def taus(self, config: SortConfig) -> tuple[float, ...]:
        """The temperatures that the recipe tries."""
        if config.recipe == "tuned":
            return (1024.0,) if config.n <= 7 else (128.0,)
        return super().taus(config)

    def plan(self, config: SortConfig) -> Plan:
        """How the recipe trains lists of that length."""
        if config.recipe == "paper":
            # The paper gives no number of steps; its code has 200 epochs, each of as many steps as
            # it takes to show 50,000 digits if lists had one number.
            return Plan(steps=125_000, batch=20, lr=1e-4, validate_every=625)
        ours = super().plan(config)
        if config.recipe == "tuned":
            # As ours, with a sixth of the images a step, since each takes longer, or a few more
            # for the longest lists.
            return replace(
                ours,
                steps=10_000,
                batch=max(2, -(-20 // config.n)),
                optimizer="adam",
                weight_decay=0.0,
                validate_every=1_000,
            )
        return ours

    def task(
        self, config: SortConfig, splits: dict[str, Digits], tau: float, plan: Plan
    ) -> SortTask:
        """What is trained at one temperature."""
        reader, network = config.networks(splits["train"])
        tempered = config.tempered(tau, plan)
        ordering = orderings.build(config.method, network, n=config.n, tau=tempered)
        model = SortModel(
            reader,
            ordering,
            jittered_places=config.jittered_places,
            chance=0.0 if config.recipe == "paper" else 0.02,
        )
        if config.recipe == "tuned":
            generator = generator_for(config.seed, "standardise")
            some = Sequences.draw(splits["train"], STANDARDISED, 1, config.places, generator)
            for module in model.modules():
                if isinstance(module, PaperNetwork):
                    module.standardise(some.images())
        return SortTask(model, config, splits, plan)

    def facts(self, config: SortConfig) -> dict[str, Any]:
        """Also how parameters begin, where that is not as PyTorch has it."""
        begin = {"begin": "standardised"} if config.recipe == "tuned" else {}
        return super().facts(config) | begin

    def test(self, config: SortConfig, model: SortModel, splits: dict[str, Digits]) -> Tested:
        """Exact match and element-wise match on the fixed test set."""
        sequences = config.fixed(splits, "test")
        model.eval()
        with torch.no_grad():
            found = outcomes(model, sequences)
            shown = examples(model, sequences[:EXAMPLES]) if config.n <= LONGEST_EXAMPLE else []
        made_of = sequences.index.flatten(1)
        return Tested(
            {name: value.mean().item() for name, value in found.items()},
            {
                "exact_match": of_share(found["exact_match"], made_of),
                # Places of one list depend on each other: what varies is lists, not places.
                "element_wise": of_mean(found["element_wise"], made_of, most=1.0),
                "squared_difference": of_mean(found["squared_difference"], made_of, most=1.0),
            },
            "lists and images",
            {"examples": shown},
        )


def outcomes(model: SortModel, sequences: Sequences) -> dict[str, Tensor]:
    """For each list: exactly right or not, share of right places, distance from a hard order.

    The item of a place is the largest of its row. A place is right if that item's number is the one
    that belongs there, so of two equal numbers either may come first.

    Args:
        model: A `SortModel`, in evaluation mode.
        sequences: What to sort.
    """
    parts: dict[str, list[Tensor]] = {
        "exact_match": [],
        "element_wise": [],
        "squared_difference": [],
    }
    for chunk, read in readings(model, sequences):
        dense = model.relaxed(read).to_dense().cpu()
        items = dense.argmax(-1)
        right = chunk.values.gather(-1, items) == chunk.values.sort(-1, descending=True).values
        hard = torch.nn.functional.one_hot(items, items.shape[-1])
        parts["exact_match"].append(right.all(-1).double())
        parts["element_wise"].append(right.double().mean(-1))
        parts["squared_difference"].append((dense - hard).square().mean((-1, -2)).double())
    return {name: torch.cat(values) for name, values in parts.items()}


def examples(model: SortModel, sequences: Sequences) -> list[dict[str, Any]]:
    """A few lists with their images, for people to look at."""
    read = model.reader(images_for(model, sequences))
    items = model.relaxed(read).to_dense().argmax(-1).tolist()
    return [
        {
            "values": values,
            "predicted": order,
            "images": [png((255 - 255 * one).byte()) for one in images],
        }
        for values, order, images in zip(
            sequences.values.tolist(), items, sequences.images(), strict=True
        )
    ]
