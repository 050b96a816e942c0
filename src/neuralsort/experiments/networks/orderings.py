"""From lists of items to relaxed permutations: the methods that the studies compare."""

from collections.abc import Callable

from torch import Tensor, nn

import neuralsort.torch as ns
from neuralsort.torch import registry

Network = Callable[[int], nn.Module]
"""Makes a network with so many outputs for each item of a list."""

Cost = Callable[[ns.RelaxedPermutation], Tensor]
"""From permutations `(..., B, n, n)` to one cost per list, `(..., B)`."""

Tau = float | ns.nn.Temperature
"""A temperature, or one that is annealed or learned."""

SAMPLES = 5
"""Of the stochastic methods, as in the paper."""


def now(tau: Tau) -> float | Tensor:
    """What a temperature is at this step."""
    return tau() if isinstance(tau, ns.nn.Temperature) else tau


def mixed(outputs: Tensor, which: Tensor | None) -> Tensor:
    """Other lists of the same items: `(B, n, ...), (L, n) -> (L, n, ...)`; None for the B lists."""
    return outputs if which is None else outputs.flatten(0, 1)[which]


class Ordering(nn.Module):
    """What a network says of the items of lists, to a relaxed permutation of each list.

    Args:
        network: Looks at one item at a time.
    """

    needs_finite_costs = False
    """Whether costs are asked at permutations, where a cross-entropy is infinite."""
    any_length = False
    """Whether lists of any length can be sorted, whatever the length it was trained at."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def outputs(self, items: Tensor, which: Tensor | None = None) -> Tensor:
        """`(L, n, outputs)`. What the network says of every item; all else here takes that.

        Args:
            items: `(B, n, ...)`, as the network takes them.
            which: `(L, n)` makes L other lists of the same items. The network looks at every item
                once, however many lists it stands in.
        """
        return mixed(self.network(items), which)

    def forward(self, outputs: Tensor) -> ns.RelaxedPermutation:
        """`(L, n, n)`. Relaxes the descending sort of the items; nothing is sampled."""
        raise NotImplementedError

    def expected(self, cost: Cost, outputs: Tensor) -> Tensor:
        """`(L,)`. The cost to be made small in training, the mean over samples if there are any."""
        return self.averaged(cost, outputs)

    def averaged(self, value: Cost, outputs: Tensor) -> Tensor:
        """`(L,)`. A value of the permutation, the mean over samples if the method samples it."""
        return value(self(outputs))


class ByScore(Ordering):
    """One score per item, sorted by a relaxation."""

    any_length = True

    def __init__(self, network: Network, *, relax: Callable[..., ns.RelaxedPermutation], tau: Tau):
        super().__init__(network(1))
        self.relax = relax
        self.tau = tau

    def forward(self, outputs: Tensor) -> ns.RelaxedPermutation:
        return self.relax(outputs.squeeze(-1), tau=now(self.tau))


class BySampledScore(ByScore):
    """Stochastic NeuralSort: scores are logits of Plackett-Luce, and samples of it are relaxed."""

    def averaged(self, value: Cost, outputs: Tensor) -> Tensor:
        scores, tau = outputs.squeeze(-1), now(self.tau)
        return ns.estimators.relaxed_expectation(value, scores, tau=tau, samples=SAMPLES)


class ByScoreFunction(ByScore):
    """REINFORCE: exact samples of Plackett-Luce, with a leave-one-out baseline.

    It has seen permutations alone, so without samples it gives the hard sort.
    """

    needs_finite_costs = True

    def forward(self, outputs: Tensor) -> ns.RelaxedPermutation:
        return self.relax(outputs.squeeze(-1), tau=0.0)

    def expected(self, cost: Cost, outputs: Tensor) -> Tensor:
        scores = outputs.squeeze(-1)
        return ns.estimators.score_function_expectation(cost, scores, samples=SAMPLES)


class BySinkhorn(Ordering):
    """n outputs per item, stacked into a matrix that Sinkhorn makes doubly stochastic."""

    def __init__(self, network: Network, *, n: int, tau: Tau) -> None:
        super().__init__(network(n))
        self.tau = tau

    def logits(self, outputs: Tensor) -> Tensor:
        """`(L, n, n)`. Row = position, column = item."""
        return outputs.mT

    def forward(self, outputs: Tensor) -> ns.RelaxedPermutation:
        return ns.sinkhorn(self.logits(outputs), tau=now(self.tau))


class ByItemSinkhorn(BySinkhorn):
    """Sinkhorn as in the paper's code: what an item says is read as the row of its own position.

    There item i of the list names the item that belongs at place i, though it sees none but itself.
    """

    def logits(self, outputs: Tensor) -> Tensor:
        return outputs


class ByGumbelSinkhorn(BySinkhorn):
    """Sinkhorn of a matrix under Gumbel noise."""

    def averaged(self, value: Cost, outputs: Tensor) -> Tensor:
        logits = self.logits(outputs)
        return value(ns.gumbel_sinkhorn(logits, tau=now(self.tau), samples=SAMPLES)).mean(0)


class ByRows(Ordering):
    """Vanilla: n outputs per item, joined, and three layers that say the item of each place."""

    def __init__(self, network: Network, *, n: int) -> None:
        super().__init__(network(n))
        self.layers = nn.Sequential(
            nn.Linear(n * n, n * n),
            nn.ReLU(),
            nn.Linear(n * n, n * n),
            nn.ReLU(),
            nn.Linear(n * n, n * n),
        )

    def forward(self, outputs: Tensor) -> ns.RelaxedPermutation:
        n = outputs.shape[-2]
        joined = self.layers(outputs.flatten(-2)).unflatten(-1, (n, n))
        return ns.RelaxedPermutation.from_dense(joined.softmax(-1))


NEURALSORT = ("neuralsort", "stochastic_neuralsort")
BASELINES = ("vanilla", "sinkhorn", "gumbel_sinkhorn")
"""The methods of the paper: its own, and those it is compared with."""

WITHOUT_TAU = ("constant", "vanilla", "reinforce")
"""The methods that no temperature changes."""

BY_MATRIX = ("vanilla", "sinkhorn", "sinkhorn_by_item", "gumbel_sinkhorn")
"""The methods that ask for n outputs per item instead of one, and are tied to lists of n."""


def build(method: str, network: Network, *, n: int, tau: Tau) -> Ordering:
    """The ordering of that name.

    Args:
        method: One of `METHODS`.
        network: Makes a network with the asked number of outputs.
        n: Length of the lists, which the baselines are tied to.
        tau: Temperature.
    """
    return METHODS[method](network, n, tau)


def _by_score(
    relax: Callable[..., ns.RelaxedPermutation], kind: type[ByScore] = ByScore
) -> Callable[[Network, int, Tau], Ordering]:
    return lambda network, n, tau: kind(network, relax=relax, tau=tau)


METHODS: dict[str, Callable[[Network, int, Tau], Ordering]] = {
    "neuralsort": _by_score(ns.neuralsort),
    "stochastic_neuralsort": _by_score(ns.neuralsort, BySampledScore),
    "vanilla": lambda network, n, tau: ByRows(network, n=n),
    "sinkhorn": lambda network, n, tau: BySinkhorn(network, n=n, tau=tau),
    "sinkhorn_by_item": lambda network, n, tau: ByItemSinkhorn(network, n=n, tau=tau),
    "gumbel_sinkhorn": lambda network, n, tau: ByGumbelSinkhorn(network, n=n, tau=tau),
    "reinforce": _by_score(ns.neuralsort, ByScoreFunction),
}
METHODS |= {
    name: _by_score(method.function)
    for name, method in registry.METHODS.items()
    if (method.takes, method.gives) == ("scores", "P") and name not in METHODS
}
"""Every method by the name that options and results use: those of the paper, then the library's."""
