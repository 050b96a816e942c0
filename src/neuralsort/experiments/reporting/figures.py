"""Figures of the report, drawn from lines of results alone."""

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # into files, also where there is no screen

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..networks.orderings import NEURALSORT
from ..record import Line
from .selection import PLACES, sweeps
from .tables import name

COLOURS = plt.get_cmap("tab10").colors  # pyright: ignore[reportAttributeAccessIssue]
CHOSEN = {
    "sort": ("exact_match", "exact match"),
    "median": ("mse", "mean squared error"),
    "knn": ("accuracy", "accuracy"),
}
CLASSES = {
    "fashion-mnist": (
        "T-shirt", "trousers", "pullover", "dress", "coat",
        "sandal", "shirt", "sneaker", "bag", "boot",
    ),
    "cifar10": (
        "airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    ),
}  # fmt: skip
"""What labels stand for, where they are not digits."""


def learning_curves(lines: Sequence[Line], study: str, path: Path) -> Path | None:
    """Validation against steps, one panel per size that was trained.

    Args:
        lines: One for each seed of a cell.
        study: Whose of them.
        path: Where to draw.
    """
    lines = [line for line in lines if line.study == study and line.trials[0]["history"]]
    lengths = sorted({_trained(line) for line in lines})
    if not lengths:
        return None
    metric, label = CHOSEN[study]
    figure, panels = _panels(len(lengths))
    methods = sorted({(line.method, line.recipe) for line in lines})
    for axes, n in zip(panels, lengths, strict=True):
        seen = set()
        for line in [line for line in lines if _trained(line) == n]:
            key = (line.method, line.recipe)
            history = next(t["history"] for t in line.trials if t["tau"] == line.tau)
            axes.plot(
                [one["step"] for one in history],
                [one[metric] for one in history],
                color=COLOURS[methods.index(key) % len(COLOURS)],
                marker="o",
                markersize=3,
                label=None if key in seen else f"{name(key[0])}, {key[1]}",
            )
            seen.add(key)
        axes.set(title=_size(*n), xlabel="step", ylabel=f"{label} (validation)")
        if study == "median":
            axes.set_yscale("log")
        axes.legend(frameon=False, fontsize=7)
    return _save(figure, path)


def _trained(line: Line) -> tuple[str, int, int]:
    """The neighbours that the loss counted; or how long lists were, and of how many digits."""
    if line.study == "knn":
        return "k", line.sizes["k"], PLACES
    return "n", line.train_n or 0, line.sizes["places"]


def _size(name: str, size: int, places: int) -> str:
    return f"{name} = {size}" + ("" if places == PLACES else f", numbers of {places} digits")


def gradient_variance(lines: Sequence[Line], path: Path) -> Path | None:
    """Log-variance of gradient entries during training; and at its end, against temperature.

    Where there are runs at several temperatures, those at one are left out.
    """
    runs: dict[str, list[tuple[float, list[dict[str, float]]]]] = {}
    for line in [line for line in sweeps(lines) if line.method in NEURALSORT]:
        curves = [
            (trial["tau"], [one for one in trial["history"] if one["log_variance"] is not None])
            for trial in line.trials
        ]
        curves = sorted((tau, points) for tau, points in curves if points)
        if curves:
            runs[f"{name(line.method)}, {_size(*_trained(line))}, {line.recipe}"] = curves
    several = {title: curves for title, curves in runs.items() if len(curves) > 1}
    runs = several or runs
    if not runs:
        return None
    figure, panels = _panels(sum(1 + (len(curves) > 1) for curves in runs.values()))
    for title, curves in sorted(runs.items()):
        axes = panels.pop(0)
        for index, (tau, points) in enumerate(curves):
            steps, values = [one["step"] for one in points], [one["log_variance"] for one in points]
            axes.plot(steps, values, color=COLOURS[index % 10], marker="o", markersize=3)
            axes.annotate(f" tau = {tau:g}", (steps[-1], values[-1]), fontsize=7)
        axes.margins(x=0.25)  # for the words
        axes.set(xlabel="step", ylabel="log variance of a gradient entry")
        axes.set_title(title, fontsize=9)
        if len(curves) > 1:
            axes = panels.pop(0)
            taus, ends = zip(
                *((tau, points[-1]["log_variance"]) for tau, points in curves), strict=True
            )
            axes.semilogx(taus, ends, color="black", marker="o", markersize=3)
            axes.set_xticks(taus, [f"{tau:g}" for tau in taus])
            axes.minorticks_off()
            axes.set(xlabel="temperature", ylabel="the same, at the end")
            axes.set_title(title, fontsize=9)
    return _save(figure, path)


def medians(lines: Sequence[Line], path: Path) -> Path | None:
    """True against predicted medians of 2,000 test lists."""
    lines = [
        line
        for line in lines
        if line.study == "median" and line.method != "constant" and line.seed == 0
    ]
    if not lines:
        return None
    figure, panels = _panels(len(lines))
    lines = sorted(lines, key=lambda line: (line.method, line.recipe, line.sizes["n"]))
    for axes, line in zip(panels, lines, strict=True):
        true, predicted = zip(*line.extras["points"], strict=True)
        axes.scatter(true, predicted, s=2, alpha=0.4, color=COLOURS[0], rasterized=True)
        top = 10 ** line.sizes["places"]
        axes.plot((0, top), (0, top), color="black", linewidth=0.6)
        r2 = line.metrics["r2"]
        axes.set_title(
            f"{name(line.method)}, {line.recipe}, n = {line.sizes['n']}: R² {r2:.3f}", fontsize=8
        )
        axes.set(xlabel="true median", ylabel="predicted", xlim=(0, top), ylim=(0, top))
        axes.set_aspect("equal")
    return _save(figure, path)


def examples(line: Line, path: Path) -> Path:
    """A few test lists of one run: the images as they came, and in the predicted order."""
    shown = line.extras["examples"]
    n = line.sizes["n"]
    figure, grid = plt.subplots(
        2 * len(shown), n, figsize=(1.5 * n, 1.3 * len(shown)), layout="constrained", squeeze=False
    )
    for row, one in enumerate(shown):
        goal = sorted(one["values"], reverse=True)
        for place in range(n):
            _draw_image(grid[2 * row][place], one["images"][place], "", "black")
            item = one["predicted"][place]
            right = one["values"][item] == goal[place]
            _draw_image(
                grid[2 * row + 1][place],
                one["images"][item],
                str(one["values"][item]),
                "green" if right else "red",
            )
        grid[2 * row][0].set_ylabel("list", rotation=0, ha="right", va="center", fontsize=7)
        grid[2 * row + 1][0].set_ylabel("sorted", rotation=0, ha="right", va="center", fontsize=7)
    return _save(figure, path)


def projection(line: Line, path: Path) -> Path:
    """Test images in the plane, by their embedding before and after training."""
    kept = line.extras["projection"]
    figure, panels = _panels(2)
    for axes, when in zip(panels, ("before", "after"), strict=True):
        x, y = zip(*kept[when], strict=True)
        for label, colour in enumerate(COLOURS):
            mine = [i for i, one in enumerate(kept["labels"]) if one == label]
            axes.scatter([x[i] for i in mine], [y[i] for i in mine], s=4, color=colour)
        axes.set(title=f"{when} training", xticks=[], yticks=[])
    names = [_class_name(line, label) for label in range(len(COLOURS))]
    panels[1].legend(names, markerscale=3, fontsize=7, bbox_to_anchor=(1, 1))
    return _save(figure, path)


def neighbours(line: Line, path: Path) -> Path:
    """Test images, each with its nearest training images: green where the label is the same."""
    shown = line.extras["queries"]
    columns = 1 + len(shown[0]["neighbours"])
    figure, grid = plt.subplots(
        len(shown),
        columns,
        figsize=(1.1 * columns, 1.25 * len(shown)),
        layout="constrained",
        squeeze=False,
    )
    for row, query in zip(grid, shown, strict=True):
        asked = _class_name(line, query["label"])
        _draw_image(row[0], query["image"], f"query: {asked}", "black")
        for axes, one in zip(row[1:], query["neighbours"], strict=True):
            same = one["label"] == query["label"]
            known = _class_name(line, one["label"])
            _draw_image(axes, one["image"], known, "green" if same else "red")
    return _save(figure, path)


def _class_name(line: Line, label: int) -> str:
    return CLASSES[line.data][label] if line.data in CLASSES else str(label)


def _draw_image(axes: Axes, image: str, text: str, colour: str) -> None:
    axes.imshow(plt.imread(io.BytesIO(base64.b64decode(image))), cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(text, color=colour, fontsize=7, labelpad=1)
    for spine in axes.spines.values():
        spine.set_color(colour if text else "lightgray")


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """So many axes, three in a row."""
    columns = min(3, count)
    rows = math.ceil(count / columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(4.4 * columns, 3.4 * rows), layout="constrained", squeeze=False
    )
    axes = list(grid.flat)
    for spare in axes[count:]:
        spare.set_visible(False)
    return figure, axes[:count]


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path
