"""Learning to rank on LETOR's MQ2008: a small scorer trained with each loss, beside LambdaMART.

Five folds, fixed by the data: three parts train, one chooses, one tests. Every query of a part
counts in its metrics; one in which nothing is relevant counts 0, for every method alike.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

import neuralsort.torch as ns
from neuralsort.torch import metrics

from . import record
from .intervals import bootstrap
from .letor import FEATURES, FOLDS, Queries, load_fold
from .options import ConfigError
from .randomness import generator_for, seed_for

SELECTED_BY = "ndcg@10"

Loss = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
"""`loss(scores, relevance, order, mask, tau)`: `order` breaks ties of relevance at random."""


LOSSES: Mapping[str, Loss] = MappingProxyType(
    {
        "neural_ndcg": lambda s, r, order, mask, tau: ns.neural_ndcg(
            s, r, tau=tau, k=10, mask=mask
        ),
        "approx_ndcg": lambda s, r, order, mask, tau: ns.approx_ndcg(s, r, tau=tau, mask=mask),
        "permutation_cross_entropy": lambda s, r, order, mask, tau: ns.permutation_cross_entropy(
            ns.neuralsort(s, tau=tau, mask=mask), order, mask=mask
        ),
        "plackett_luce_nll": lambda s, r, order, mask, tau: ns.plackett_luce_nll(
            s / tau, order, mask=mask
        ),
        "spearman_loss": lambda s, r, order, mask, tau: ns.spearman_loss(s, r, tau=tau, mask=mask),
        "kendall_loss": lambda s, r, order, mask, tau: ns.kendall_loss(s, r, tau=tau, mask=mask),
        "ranknet_loss": lambda s, r, order, mask, tau: ns.ranknet_loss(s, r, tau=tau, mask=mask),
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


@dataclass(frozen=True)
class RankingConfig:
    """Options of a run on one fold of MQ2008."""

    method: str = "neural_ndcg"
    """The loss, or `lambdamart`."""
    fold: int = 1
    """Which of the five folds."""
    tau: tuple[float, ...] = (0.1, 1.0, 10.0)
    """Temperatures to try; the best on validation is tested."""
    epochs: int = 25
    """Passes over the training queries; the best on validation is tested."""
    batch: int = 32
    """Queries in a batch."""
    lr: float = 2e-3
    """Peak of the one-cycle learning rate."""
    width: int = 64
    """Units of the two hidden layers."""
    dropout: float = 0.3
    """Share of units left out in training."""
    weight_decay: float = 1e-2
    """Decay of AdamW."""
    seed: int = 0
    """Seed of parameters, batches and noise."""
    data_dir: Path | None = None
    """Folder that holds `letor/MQ2008`; else NEURALSORT_DATA."""
    results: Path = Path("results")
    """Folder of the result lines."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(
                f"--method must be one of {', '.join(METHODS)}, got {self.method!r}. Choose one."
            )
        if not 1 <= self.fold <= FOLDS:
            raise ConfigError(f"--fold must be from 1 to {FOLDS}, got {self.fold}. Choose one.")


# -- learning --------------------------------------------------------------------------------------


def measure(scores: Tensor, queries: Queries) -> dict[str, Tensor]:
    """One value per query of every metric."""
    lists = (scores, queries.relevance)
    options: dict[str, Any] = {"mask": queries.mask, "reduction": "none"}
    return {
        "ndcg@5": metrics.ndcg(*lists, k=5, **options),
        "ndcg@10": metrics.ndcg(*lists, k=10, **options),
        "mrr": metrics.mean_reciprocal_rank(*lists, **options),
    }


@dataclass
class Trial:
    """One setting: the best value on validation, and the test scores that go with it."""

    setting: dict[str, float]
    validation: float = -1.0
    test_scores: Tensor = field(default_factory=lambda: torch.empty(0))


def scorer(config: RankingConfig) -> nn.Module:
    """Features of a document to its score."""

    def hidden(inputs: int) -> list[nn.Module]:
        return [nn.Linear(inputs, config.width), nn.ReLU(), nn.Dropout(config.dropout)]

    head = nn.Linear(config.width, 1)
    return nn.Sequential(*hidden(FEATURES), *hidden(config.width), head, nn.Flatten(-2))


def train_scorer(config: RankingConfig, tau: float, train: Queries, *held_out: Queries) -> Trial:
    """Trains with one loss at one temperature; the best epoch on validation counts."""
    validation, test = held_out
    loss = LOSSES[config.method]
    torch.manual_seed(seed_for(config.seed, "ranking", config.fold))
    model = scorer(config)
    # Without a pair of different relevance there is nothing to learn from a query.
    highest = train.relevance.masked_fill(~train.mask, -torch.inf).amax(-1)
    lowest = train.relevance.masked_fill(~train.mask, torch.inf).amin(-1)
    usable = (highest > lowest).nonzero().squeeze(-1)
    steps = -(-len(usable) // config.batch)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=config.lr, weight_decay=config.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, config.lr, total_steps=config.epochs * steps
    )
    trial = Trial({"tau": tau})
    for epoch in range(config.epochs):
        generator = generator_for(config.seed, "ranking", config.fold, epoch)
        model.train()
        # Queries of about one length together: a batch is as long as the longest of them.
        lengths = train.mask[usable].sum(-1) * (1 + torch.rand(len(usable), generator=generator))
        batches = usable[lengths.argsort()].split(config.batch)
        for index in torch.randperm(len(batches), generator=generator).tolist():
            batch = train[batches[index]]
            noise = torch.rand(batch.relevance.shape, generator=generator)
            key = (batch.relevance + 0.5 * noise).masked_fill(~batch.mask, -torch.inf)
            order = key.argsort(-1, descending=True)
            scores = model(batch.features)
            optimiser.zero_grad()
            loss(scores, batch.relevance, order, batch.mask, tau).backward()
            optimiser.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            found = measure(model(validation.features), validation)[SELECTED_BY].mean().item()
            if found > trial.validation:
                trial.validation, trial.test_scores = found, model(test.features)
    return trial


def train_lambdamart(
    config: RankingConfig, setting: dict[str, float], train: Queries, *held_out: Queries
) -> Trial:
    """LightGBM's LambdaMART with one setting, stopped by validation."""
    import lightgbm

    validation, test = held_out

    def dataset(queries: Queries, reference: Any = None) -> Any:
        mask = queries.mask
        return lightgbm.Dataset(
            queries.features[mask].numpy(),
            queries.relevance[mask].numpy(),
            group=mask.sum(-1).numpy(),
            reference=reference,
            free_raw_data=False,
        )

    def scores(queries: Queries) -> Tensor:
        flat = torch.as_tensor(booster.predict(queries.features[queries.mask].numpy()))
        padded = torch.zeros(queries.mask.shape, dtype=torch.float64)
        return padded.masked_scatter(queries.mask, flat)

    options = {
        "objective": "lambdarank",
        "metric": "ndcg",
        "eval_at": [10],
        "lambdarank_truncation_level": 20,
        "feature_fraction": 0.8,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "seed": config.seed,
        "num_threads": 1,
        "deterministic": True,
        "verbosity": -1,
    }
    rows = dataset(train)
    booster = lightgbm.train(
        options | setting,
        rows,
        num_boost_round=500,
        valid_sets=[dataset(validation, rows)],
        callbacks=[lightgbm.early_stopping(50, verbose=False)],
    )
    found = measure(scores(validation), validation)[SELECTED_BY].mean().item()
    return Trial(setting | {"rounds": booster.best_iteration}, found, scores(test))


def run(config: RankingConfig) -> dict[str, Any]:
    """Trains every setting on one fold, tests the best on validation, adds a line to the results.

    Returns:
        The line.
    """
    start = time.perf_counter()
    pieces = load_fold(config.fold, config.data_dir)
    if config.method == "lambdamart":
        settings = [
            dict(zip(BOOSTING, values, strict=True)) for values in product(*BOOSTING.values())
        ]
        trials = [train_lambdamart(config, setting, *pieces) for setting in settings]
    else:
        trials = [train_scorer(config, tau, *pieces) for tau in config.tau]
    best = max(trials, key=lambda trial: trial.validation)
    tested = measure(best.test_scores, pieces[-1])
    options = asdict(config)
    line = {
        "study": "rank",
        "method": config.method,
        "data": "mq2008",
        "fold": config.fold,
        "seed": config.seed,
        "config": {name: options[name] for name in options if name not in ("data_dir", "results")},
        "metrics": {name: values.mean().item() for name, values in tested.items()},
        "intervals": {name: bootstrap(values) for name, values in tested.items()},
        "chosen": best.setting,
        "validation": {SELECTED_BY: best.validation},
        "trials": [trial.setting | {SELECTED_BY: trial.validation} for trial in trials],
        "wall_seconds": round(time.perf_counter() - start, 1),
    } | record.environment()
    if config.method == "lambdamart":
        line["versions"]["lightgbm"] = metadata.version("lightgbm")
    record.append(config.results / "ranking.jsonl", line)
    return line


# -- report ----------------------------------------------------------------------------------------

MARKS = ("<!-- table of the ranking study: begin -->", "<!-- end -->")


def table(lines: list[dict[str, Any]]) -> str:
    """Mean and standard deviation over folds of every method, in Markdown, the best first."""
    names = ("ndcg@5", "ndcg@10", "mrr")
    runs = [line for line in lines if line.get("study") == "rank"]
    rows = []
    for method in sorted({line["method"] for line in runs}):
        folds = {line["fold"]: line for line in runs if line["method"] == method}
        values = torch.tensor(
            [[line["metrics"][name] for name in names] for line in folds.values()]
        )
        missing = "" if len(folds) == FOLDS else f" ({len(folds)} of {FOLDS} folds)"
        means, sds = values.mean(0).tolist(), values.std(0).tolist()
        cells = [f"{mean:.3f} ± {sd:.3f}" for mean, sd in zip(means, sds, strict=True)]
        rows.append((means[1], f"| `{method}`{missing} | {' | '.join(cells)} |"))
    head = ["| method | NDCG@5 | NDCG@10 | MRR |", "|---|---|---|---|"]
    return "\n".join(head + [row for _, row in sorted(rows, reverse=True)])


def update_page(page: Path, results: Path) -> None:
    """Puts the table of the lines in a folder of results between the marks of a page."""
    begin, end = MARKS
    before, rest = page.read_text().split(begin)
    after = rest.split(end, 1)[1]
    page.write_text(f"{before}{begin}\n{table(record.read(results))}\n{end}{after}")
