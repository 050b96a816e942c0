"""The study of rankings, on LETOR's MQ2008: a small scorer for each loss, beside LambdaMART.

Five folds, fixed by the data: three parts train, one chooses, one tests. Every query of a part
counts in its metrics; one in which nothing is relevant counts 0, for every method alike.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import tyro
from torch import Tensor, nn

import neuralsort.torch as ns
from neuralsort.torch import metrics

from ..data.letor import FEATURES, FOLDS, Queries, load_fold
from ..data.randomness import generator_for
from ..networks.orderings import Tau, now
from ..training.plan import ConfigError, Plan
from .intervals import bootstrap
from .study import StudyConfig, Tested

SELECTED_BY = "ndcg@10"

Loss = Callable[[Tensor, Tensor, Tensor, Tensor, float | Tensor], Tensor]
"""`loss(scores, relevance, order, mask, tau)`: `order` breaks ties of relevance at random."""


def _by_relevance(loss: Callable[..., Tensor], **options: Any) -> Loss:
    return lambda s, r, order, mask, tau: loss(s, r, tau=tau, mask=mask, **options)


LOSSES: Mapping[str, Loss] = MappingProxyType(
    {
        "neural_ndcg": _by_relevance(ns.neural_ndcg, k=10),
        "approx_ndcg": _by_relevance(ns.approx_ndcg),
        "permutation_cross_entropy": lambda s, r, order, mask, tau: ns.permutation_cross_entropy(
            ns.neuralsort(s, tau=tau, mask=mask), order, mask=mask
        ),
        "plackett_luce_nll": lambda s, r, order, mask, tau: ns.plackett_luce_nll(
            s / tau, order, mask=mask
        ),
        "spearman_loss": _by_relevance(ns.spearman_loss),
        "kendall_loss": _by_relevance(ns.kendall_loss),
        "ranknet_loss": _by_relevance(ns.ranknet_loss),
        "listnet_loss": _by_relevance(ns.listnet_loss),
        "lambda_loss": _by_relevance(ns.lambda_loss, k=10),
        "smooth_ap_loss": _by_relevance(ns.smooth_ap_loss),
        "recall_at_k_loss": _by_relevance(ns.recall_at_k_loss, k=(1, 5, 10)),
        "topk_cross_entropy": lambda s, r, order, mask, tau: ns.topk_cross_entropy(
            s, order[..., 0], k={1: 0.5, min(5, s.shape[-1]): 0.5}, tau=tau, mask=mask
        ),
        "knn_loss": lambda s, r, order, mask, tau: ns.knn_loss(
            ns.neuralsort(s, tau=tau, mask=mask), r > 0, k=min(5, s.shape[-1]), mask=mask
        ),
    }
)
"""Every loss of the library, as a loss of rankings by relevance.

Two of them are made for something else: `topk_cross_entropy` here wants one of the most relevant
documents among the first 1 and 5, and `knn_loss` is the precision at 5.
"""

METHODS = (*LOSSES, "lambdamart")

BOOSTING = {"num_leaves": (7, 15, 31), "learning_rate": (0.05, 0.1), "min_data_in_leaf": (20, 60)}
"""What is tried for LambdaMART; the best on validation is tested."""


WIDTH, DROPOUT = 64, 0.3
"""Units of the two hidden layers of a scorer, and the share left out in training."""

if TYPE_CHECKING:
    Method = str
else:
    Method = tyro.extras.literal_type_from_choices(METHODS)


@dataclass(frozen=True)
class RankConfig(StudyConfig):
    """Learn to rank documents by relevance on one fold of MQ2008."""

    data: Literal["mq2008"] = "mq2008"
    """Queries with their documents; the files are to be had from the authors of LETOR."""
    method: Method = "neural_ndcg"
    """The loss, or `lambdamart`."""
    recipe: Literal["fast"] = "fast"
    """There is only this one."""
    fold: int = 1
    """Which of the five folds."""

    sizes: ClassVar[tuple[str, ...]] = ("fold",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fold > FOLDS:
            raise ConfigError(f"--fold must be from 1 to {FOLDS}, got {self.fold}. Choose one.")


def measure(scores: Tensor, queries: Queries) -> dict[str, Tensor]:
    """One value per query of every metric."""
    lists = (scores, queries.relevance)
    options: dict[str, Any] = {"mask": queries.mask, "reduction": "none"}
    return {
        "ndcg@5": metrics.ndcg(*lists, k=5, **options),
        "ndcg@10": metrics.ndcg(*lists, k=10, **options),
        "mrr": metrics.reciprocal_rank(*lists, **options),
        "map": metrics.average_precision(*lists, **options),
        "precision@5": metrics.precision_at_k(*lists, k=5, **options),
        "recall@10": metrics.recall_at_k(*lists, k=10, **options),
    }


class Scorer(nn.Module):
    """A small network from the features of a document to its score, and its loss.

    Args:
        loss: Of scores.
        tau: Temperature.
    """

    def __init__(self, loss: Loss, tau: Tau) -> None:
        super().__init__()
        self.loss, self.tau = loss, tau

        def hidden(inputs: int) -> list[nn.Module]:
            return [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Dropout(DROPOUT)]

        head = nn.Linear(WIDTH, 1)
        self.layers = nn.Sequential(*hidden(FEATURES), *hidden(WIDTH), head, nn.Flatten(-2))

    def forward(self, features: Tensor, relevance: Tensor, order: Tensor, mask: Tensor) -> Tensor:
        """`(B, n, FEATURES), (B, n), (B, n), (B, n) -> ()`."""
        return self.loss(self.layers(features), relevance, order, mask, now(self.tau))

    def scores(self, queries: Queries) -> Tensor:
        """`(queries, longest)`."""
        return self.layers(queries.features.to(next(self.parameters())))


class LambdaMART(nn.Module):
    """LightGBM's trees, stopped by validation; of the settings tried, the best there.

    Args:
        seed: Of LightGBM.
        train: Queries to learn from.
        validation: Queries to choose by.
    """

    trees: Tensor

    def __init__(self, seed: int, train: Queries, validation: Queries) -> None:
        super().__init__()
        kinds = [dict(zip(BOOSTING, one, strict=True)) for one in product(*BOOSTING.values())]
        tried = [_boosted(seed, kind, train, validation) for kind in kinds]
        found = [measure(_predicted(one, validation), validation) for one in tried]
        best = max(range(len(kinds)), key=lambda i: found[i][SELECTED_BY].mean().item())
        text = tried[best].model_to_string().encode()
        self.register_buffer("trees", torch.frombuffer(bytearray(text), dtype=torch.uint8))

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.trees = torch.empty_like(state[prefix + "trees"])  # other trees have another length
        super()._load_from_state_dict(state, prefix, *rest)

    def scores(self, queries: Queries) -> Tensor:
        """`(queries, longest)`."""
        import lightgbm

        booster = lightgbm.Booster(model_str=self.trees.cpu().numpy().tobytes().decode())
        return _predicted(booster, queries)


def _boosted(seed: int, setting: dict[str, float], train: Queries, validation: Queries) -> Any:
    import lightgbm

    def dataset(queries: Queries, reference: Any = None) -> Any:
        mask = queries.mask
        return lightgbm.Dataset(
            queries.features[mask].numpy(),
            queries.relevance[mask].numpy(),
            group=mask.sum(-1).numpy(),
            reference=reference,
            free_raw_data=False,
        )

    options = {
        "objective": "lambdarank",
        "metric": "ndcg",
        "eval_at": [10],
        "lambdarank_truncation_level": 20,
        "feature_fraction": 0.8,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "seed": seed,
        "num_threads": 1,
        "deterministic": True,
        "verbosity": -1,
    }
    rows = dataset(train)
    return lightgbm.train(
        options | setting,
        rows,
        num_boost_round=500,
        valid_sets=[dataset(validation, rows)],
        callbacks=[lightgbm.early_stopping(50, verbose=False)],
    )


def _predicted(booster: Any, queries: Queries) -> Tensor:
    flat = torch.as_tensor(booster.predict(queries.features[queries.mask].numpy()))
    padded = torch.zeros(queries.mask.shape, dtype=torch.float64)
    return padded.masked_scatter(queries.mask, flat)


class RankTask:
    """Batches of queries of about one length, chosen by NDCG at 10.

    Args:
        model: `model(features, relevance, order, mask)` is the loss.
        config: Fold and seed.
        splits: The queries.
        batch: Queries at a time.
    """

    metric = SELECTED_BY
    larger_is_better = True

    def __init__(
        self, model: nn.Module, config: RankConfig, splits: dict[str, Queries], batch: int
    ) -> None:
        self.model, self.config, self.size = model, config, batch
        self.train, self.validation = splits["train"], splits["validation"]
        # Without a pair of different relevance there is nothing to learn from a query.
        highest = self.train.relevance.masked_fill(~self.train.mask, -torch.inf).amax(-1)
        lowest = self.train.relevance.masked_fill(~self.train.mask, torch.inf).amin(-1)
        self.usable = (highest > lowest).nonzero().squeeze(-1)

    def batch(self, step: int, part: slice) -> tuple[Tensor, ...]:
        """Features, relevance, an order by it with ties at random, and mask."""
        seed = self.config.seed
        epoch, place = divmod(step, -(-len(self.usable) // self.size))
        generator = generator_for(seed, "epoch", epoch)
        # Queries of about one length together: a batch is as long as the longest of them.
        lengths = self.train.mask[self.usable].sum(-1)
        lengths = lengths * (1 + torch.rand(len(self.usable), generator=generator))
        batches = self.usable[lengths.argsort()].split(self.size)
        chosen = batches[torch.randperm(len(batches), generator=generator)[place]]
        # Where there are fewer queries than processes, the others repeat the first, and the mean
        # of their gradients is still that of the batch.
        queries = self.train[chosen[part] if len(chosen[part]) else chosen[:1]]
        noise = torch.rand(queries.relevance.shape, generator=generator_for(seed, "ties", step))
        key = (queries.relevance + 0.5 * noise).masked_fill(~queries.mask, -torch.inf)
        order = key.argsort(-1, descending=True)
        return queries.features, queries.relevance, order, queries.mask

    def validate(self, model: Any) -> dict[str, float]:
        """The metrics on the validation queries."""
        found = measure(model.scores(self.validation), self.validation)
        return {name: values.mean().item() for name, values in found.items()}


class RankStudy:
    """The study as the engine runs it."""

    name = "rank"
    config = RankConfig

    def taus(self, config: RankConfig) -> tuple[float, ...]:
        """The temperatures that are tried."""
        return (1.0,) if config.method == "lambdamart" else (0.1, 1.0, 10.0)

    def plan(self, config: RankConfig) -> Plan:
        """About 25 passes over the queries."""
        return Plan(
            steps=275,
            batch=32,
            lr=2e-3,
            optimizer="adamw",
            weight_decay=0.01,
            schedule="one_cycle",
            validate_every=11,
        )

    def memory(self, config: RankConfig, plan: Plan) -> int:
        """Of no account."""
        return 0

    def load(self, config: RankConfig) -> dict[str, Queries]:
        """The queries of the three splits."""
        return load_fold(config.fold, config.data_dir)

    def task(
        self, config: RankConfig, splits: dict[str, Queries], tau: float, plan: Plan
    ) -> RankTask:
        """What is trained at one temperature; trees are grown at once."""
        if config.method == "lambdamart":
            model = LambdaMART(config.seed, splits["train"], splits["validation"])
        else:
            model = Scorer(LOSSES[config.method], config.tempered(tau, plan))
        return RankTask(model, config, splits, plan.batch)

    def test(self, config: RankConfig, model: Any, splits: dict[str, Queries]) -> Tested:
        """Every metric on the test queries."""
        model.eval()
        with torch.no_grad():
            found = measure(model.scores(splits["test"]), splits["test"])
        return Tested(
            {name: values.mean().item() for name, values in found.items()},
            {name: bootstrap(values) for name, values in found.items()},
            "queries",
        )

    def facts(self, config: RankConfig) -> dict[str, Any]:
        """The scorer."""
        if config.method == "lambdamart":
            return {"network": "LambdaMART", "augmentation": {}}
        return {"network": f"two layers of {WIDTH}, dropout {DROPOUT}", "augmentation": {}}
