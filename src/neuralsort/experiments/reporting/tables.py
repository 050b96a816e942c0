"""What tables of the report are, what their cells say, and those of rankings and of all runs."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..networks.orderings import WITHOUT_TAU
from ..record import Line
from ..studies.intervals import Interval, over_seeds
from . import paper
from .selection import PLACES, per_fold, per_seed, rankings

MISSING = "missing"

WITHOUT_NEIGHBOURS = ("pixels", "pca", "autoencoder", "cross_entropy")
"""Methods that look for none while they train."""


@dataclass(frozen=True)
class Table:
    """A table for people.

    Attributes:
        title: What it shows.
        note: How to read it.
        header: One heading per column.
        rows: Cells; each is lines of text, the first being the number.
    """

    title: str
    note: str
    header: list[str]
    rows: list[list[list[str]]] = field(default_factory=list)


# -- what cells say --------------------------------------------------------------------------------


def name(method: str) -> str:
    """The name of a method in print."""
    return paper.NAMES.get(method, method)


def place(method: str) -> tuple[int, str]:
    """Where a method stands in tables: those of the paper in its order, then others by name."""
    order = list(paper.NAMES)
    return (order.index(method) if method in order else len(order)), method


def mean(runs: Sequence[Line], metric: str) -> float:
    """Over the seeds."""
    return sum(run.metrics[metric] for run in runs) / len(runs)


def together(parts: Iterable[str]) -> str:
    """The first, and the others in brackets."""
    first, *others = parts
    return first + "".join(f" ({one})" for one in others)


def spread(runs: Sequence[Line], forms: Mapping[str, Callable[[float], str]]) -> list[str]:
    """An interval over seeds, the range of two, or the interval of one; and which it is.

    Args:
        runs: One for each seed.
        forms: How to print the ends of an interval, by metric.
    """

    def text(ends: Mapping[str, Interval]) -> str:
        return together(
            f"{forms[metric](low)} to {forms[metric](high)}" for metric, (low, high) in ends.items()
        )

    values = {metric: [run.metrics[metric] for run in runs] for metric in forms}
    seeds = {metric: ends for metric, one in values.items() if (ends := over_seeds(one))}
    if seeds:
        return [f"{len(runs)} seeds, 95 %: {text(seeds)}"]
    if len(runs) > 1:
        ranges = {metric: (min(one), max(one)) for metric, one in values.items()}
        return [f"{len(runs)} seeds, range: {text(ranges)}"]
    only = runs[0]
    ends = {metric: only.intervals[metric] for metric in forms if metric in only.intervals}
    return [f"1 seed, 95 % over {only.intervals_over}: {text(ends)}"] if ends else []


def limited(line: Line) -> bool:
    """Whether a run had fewer steps than its recipe."""
    return bool(line.steps) and line.plan["steps"] < line.config.get("steps_of_recipe", 0)


def time_of(runs: Sequence[Line]) -> str:
    """How long the quickest of them took: the others had more company on their machine."""
    minutes = min(run.wall_seconds for run in runs) / 60
    return f"{minutes:.0f} min" if minutes >= 1 else f"{60 * minutes:.0f} s"


# -- rankings --------------------------------------------------------------------------------------


def rank_table(lines: Sequence[Line]) -> Table:
    """Mean over folds of every method, with Student's interval, the best first."""
    found: dict[str, list[Line]] = defaultdict(list)
    for line in rankings(lines):
        found[line.method].append(line)
    methods = [list(per_fold(mine).values()) for mine in found.values()]
    methods = [runs for runs in methods if runs]
    methods.sort(key=lambda runs: -mean(runs, "ndcg@10"))
    metrics = ("ndcg@5", "ndcg@10", "mrr")
    rows = [
        [
            [name(runs[0].method), "1 fold" if len(runs) == 1 else f"{len(runs)} folds"],
            *(_over_folds(runs, metric) for metric in metrics),
        ]
        for runs in methods
    ]
    return Table(
        "Rankings: MQ2008",
        "The test queries of five folds. Folds share training queries, so that intervals over them "
        "are a little too narrow; and they differ more than methods do. More is better.",
        ["method", "NDCG@5", "NDCG@10", "MRR"],
        rows,
    )


def _over_folds(runs: Sequence[Line], metric: str) -> list[str]:
    ends = over_seeds([run.metrics[metric] for run in runs])
    told = [] if ends is None else [f"95 % over folds: {ends[0]:.3f} to {ends[1]:.3f}"]
    return [f"{mean(runs, metric):.3f}", *told]


# -- studies without tables of their own -----------------------------------------------------------


def metrics_tables(lines: Sequence[Line]) -> list[Table]:
    """One table for every data set, recipe and size of a study: methods by metrics."""
    found: dict[tuple[str, str, str], dict[str, list[Line]]] = defaultdict(dict)
    for line in lines:
        sizes = ", ".join(f"{key} = {value}" for key, value in line.sizes.items())
        found[line.data, line.recipe, sizes].setdefault(line.method, []).append(line)
    made = []
    for key, methods in sorted(found.items()):
        metrics = sorted(
            set.intersection(*(set(line.metrics) for x in methods.values() for line in x))
        )
        rows = []
        for method in sorted(methods, key=place):
            runs = per_seed(methods[method])
            cells = [
                [f"{mean(runs, one):.4g}", *spread(runs, {one: "{:.4g}".format})] for one in metrics
            ]
            rows.append([[name(method)], *cells])
        title = ", ".join(filter(None, key))
        made.append(Table(title, "Means over seeds, on the test set.", ["method", *metrics], rows))
    return made


# -- all runs --------------------------------------------------------------------------------------


def runs_table(lines: Sequence[Line]) -> Table:
    """Every run: what was trained, for how long, on what."""
    rows = []
    for line in lines:
        sorts = line.method not in (*WITHOUT_TAU, *WITHOUT_NEIGHBOURS)
        steps = f"{line.steps:,}"
        if limited(line):
            steps += f" (limited; the recipe has {line.config['steps_of_recipe']:,})"
        where = line.machine
        arithmetic = [where["isa"]] if "isa" in where else []
        if threads := where.get("threads"):
            arithmetic.append(f"{threads} thread{'s' if threads > 1 else ''}")
        processor = where.get("processor") or "unknown"
        cells = [
            f"{line.study}, {name(line.method)}",
            line.data,
            size(line) if "n" in line.sizes or sorts else "-",
            line.recipe,
            str(line.seed),
            f"{line.tau:g}" if sorts and line.tau is not None else "-",
            steps,
            str(line.plan["batch"]) if line.steps else "-",
            _options(line) if line.steps else "-",
            f"{line.wall_seconds / 60:.1f} min",
            ", ".join([f"{where.get('cores')} cores, {processor}", *arithmetic]),
            (line.commit or "released")[:7],
        ]
        rows.append([[cell] for cell in cells])
    header = ["run", "data", "size", "recipe", "seed", "tau", "steps", "batch", "other options"]
    header += ["time", "machine", "commit"]
    note = (
        "Time includes validation, over all temperatures tried and all sittings. Those of rankings "
        "are in `results/rank.jsonl`."
    )
    return Table("All runs", note, header, rows)


def _options(line: Line) -> str:
    """What people may have chosen besides, where it is not the same in nearly all runs."""
    told = [f"lr {line.plan['lr']:g}"] if "lr" in line.plan else []
    told += [f"overlap {line.plan['overlap']}"] if line.plan["overlap"] > 1 else []
    told += [f"temperature {line.temperature}"] if line.temperature != "fixed" else []
    told += [f"scale {line.config['scale']:g}"] if line.config.get("scale") else []
    told += [line.precision] if line.precision != "32-true" else []
    told += [f"{line.processes} processes"] if line.processes > 1 else []
    told += [f"patience {line.plan['patience']}"] if line.plan.get("patience") else []
    told += [line.config["device"]] if line.config.get("device", "cpu") != "cpu" else []
    usual = {"places": PLACES, "validation_lists": 2_000, "test_lists": 10_000}
    told += [
        f"{name.replace('_', ' ')} {line.sizes[name]}"
        for name, value in usual.items()
        if line.sizes.get(name, value) != value
    ]
    return ", ".join(told)


def size(line: Line) -> str:
    """Lengths of lists, the number of neighbours that the loss counted, or what else there is."""
    if "n" not in line.sizes:
        return ", ".join(f"{key} = {value}" for key, value in line.sizes.items())
    trained, n = line.train_n, line.sizes["n"]
    return f"n = {n}" + ("" if trained == n else f" (trained at {trained})")
