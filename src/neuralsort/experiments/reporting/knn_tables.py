"""Tables of the study of nearest neighbours, beside the paper's."""

from collections import defaultdict
from collections.abc import Sequence

from ..networks.orderings import NEURALSORT
from ..record import Line
from . import paper
from .selection import preferred, validation
from .tables import MISSING, Table, limited, mean, name, place, spread, time_of


def knn_table(lines: Sequence[Line]) -> Table:
    """Accuracy of nearest neighbours on every data set: the paper's Table 3."""
    found: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
    for line in lines:
        if line.study == "knn":
            found[line.method, line.recipe, line.data].append(line)
    recipes = {(method, recipe) for method, recipe, _ in found}
    recipes |= {(method, "fast") for method in paper.KNN_ACCURACY} if found else set()
    sets = [*paper.KNN_DATA, *sorted({data for *_, data in found} - set(paper.KNN_DATA))]
    rows = []
    for method, recipe in sorted(recipes, key=lambda key: (place(key[0]), key[1])):
        row = [[name(method), f"recipe: {recipe}"]]
        for data in sets:
            cell = _cell(found.get((method, recipe, data), []))
            if data in paper.KNN_DATA:
                printed = paper.KNN_ACCURACY[method][paper.KNN_DATA.index(data)]
                cell.append(f"paper: {100 * printed:.1f} %")
            row.append(cell)
        rows.append(row)
    return Table(
        "Nearest neighbours: accuracy",
        "Share of test images whose label wins the vote of the nearest training images, all of "
        "which are looked at; the number of neighbours and their weights are those that did best "
        "on validation images, for each seed its own. Where several numbers of neighbours, "
        "learning rates, networks or distances between points were trained with, those that did "
        "best on validation, among those with the recipe's number of steps and the most seeds. "
        "More is better.",
        ["method", *sets],
        rows,
    )


def _cell(lines: list[Line]) -> list[str]:
    """The runs of the setting that validation likes best."""
    if not lines:
        return [MISSING]
    runs = preferred(lines)
    best = max(runs, key=validation)
    votes = [votes for run in runs if (votes := run.extras.get("chosen"))]
    cell = [f"{100 * mean(runs, 'accuracy'):.2f} %", *spread(runs, {"accuracy": "{:.4f}".format})]
    if votes:
        kinds = dict.fromkeys(f"k = {one['k']}, {one['weights']}" for one in votes)  # in order
        cell.append(f"vote: {' / '.join(kinds)}")
    if best.method in NEURALSORT:
        cell.append(f"trained with k = {best.sizes['k']}")
        cell += _apart(best)
    if best.steps:
        cell.append(f"{best.config['network']}, {time_of(runs)}")
    if limited(best):
        cell.append(f"{best.plan['steps']:,} of {best.config['steps_of_recipe']:,} steps")
    return cell


def knn_by_k_table(lines: Sequence[Line]) -> Table:
    """Accuracy of the learned embeddings by the number of neighbours."""
    rows = []
    kinds = [*paper.KNN_ACCURACY_BY_K]
    kinds += [("digits", method) for method in NEURALSORT]
    for data, method in kinds:
        mine = [
            line for line in lines if (line.study, line.data, line.method) == ("knn", data, method)
        ]
        printed = paper.KNN_ACCURACY_BY_K.get((data, method))
        recipes = {line.recipe for line in mine} | ({"fast"} if printed else set())
        for recipe in sorted(recipes):
            row = [[f"{data}, {name(method)}", f"recipe: {recipe}"]]
            runs = [line for line in mine if line.recipe == recipe]
            for column, k in enumerate(paper.KNN_KS):
                cell = _by_k_cell(runs, k)
                cell += [] if printed is None else [f"paper: {100 * printed[column]:.1f} %"]
                row.append(cell)
            rows.append(row)
    return Table(
        "Nearest neighbours: accuracy by k",
        "The vote of k neighbours with equal weights, in the embedding trained with that k, or "
        "with another where it says so; of several settings, in that which did best on validation. "
        "One seed, or the mean of several where it says so.",
        ["data, method", *(f"k = {k}" for k in paper.KNN_KS)],
        rows,
    )


def _by_k_cell(runs: list[Line], k: int) -> list[str]:
    """The vote of k neighbours, in embeddings trained with that k if there are any."""
    if not runs:
        return [MISSING]
    own = [line for line in runs if line.sizes["k"] == k]
    at = preferred(own or runs)
    trained = [] if own else [f"trained with k = {at[0].sizes['k']}"]
    metric = f"accuracy_k{k}"
    several = spread(at, {metric: "{:.4f}".format}) if len(at) > 1 else []
    return [f"{100 * mean(at, metric):.2f} %", *several, *trained, *_apart(at[0])]


def _apart(line: Line) -> list[str]:
    """How far apart the loss saw points, where it was not as they are."""
    scale = line.config.get("scale")
    return [] if scale is None else [f"points {scale:g} times as far apart"]
