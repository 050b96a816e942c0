"""The report: static HTML and Markdown from lines of results. It never trains."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from .. import record
from ..record import Line
from ..studies import STUDIES
from ..training.plan import ConfigError
from . import figures, tables
from .knn_tables import knn_by_k_table, knn_table
from .list_tables import DIFFERENCE, MEDIAN, SORT, choices_table, list_table
from .selection import budgets, chosen, grouped, in_cells, main_runs, preferred, within
from .summary import summaries
from .tables import Table

INTRODUCTION = (
    "An image shows a number of several handwritten digits. A model sees lists of such images, and "
    "learns to put them in order, largest first. It is never told a number, only the right order "
    "of training lists; in the second study, only their median. Sorting is a step function, which "
    "has no useful gradient; NeuralSort replaces it by a smooth one, and the other methods are "
    "what it is compared with.",
    "In the third study a network embeds images so that the nearest neighbours of an image have "
    "its label. Which images are the nearest is a sort as well. The fourth ranks documents.",
    "Every number is of one test set, which is the same for every run and made of images that no "
    "model has seen. The best parameters of a run and its votes were chosen on a validation set; "
    "so was the temperature, unless its recipe gives it, as told below. Every interval is of 95 %, "
    "and says over what: over seeds it is Student's, from three seeds on, always on the same test "
    "lists; of one seed it is over the test lists, or over those and the images they share, and "
    "over images or queries it is Wilson's or the bootstrap's. Cells that nobody has run say so.",
)

RECIPES = (
    "Our recipe (fast): one small network reads every digit, and a score is a sum over the places "
    "of a number. Digits are moved, turned and scaled a little. AdamW, one cycle of the learning "
    "rate, a moving average of the parameters. All methods share the reader and the number of "
    "steps; those that have a temperature choose it from the same four; all but REINFORCE, which "
    "needs a cost of hard orders, share the loss. In medians, methods that sort by a score use one "
    "number as score and as value; those that need a matrix have a layer for each. For neighbours "
    "it is a network of seven convolutions (SmallNetwork), and the temperature is 1 for both forms "
    "of NeuralSort. The stochastic one is also trained with points four times as far apart, beside "
    "the same noise, and the temperature 16; validation chooses between the two.",
    "The paper's recipe (paper): its networks, Adam at 1e-4, batches of 20, the temperature chosen "
    "from its grid at full length; in the runs here, which are shorter, one was given.",
    "The paper's network, tuned (tuned): the same network, trained much as our recipe trains ours: "
    "a high learning rate in one cycle, shared images, a moving average, the same loss; and every "
    "unit of that network begins with mean 0 and variance 1. A run is 10,000 steps of 20 images, "
    "or up to 30 for the longest lists. Runs of 12,000 steps, which are for deterministic "
    "NeuralSort alone, have three times as many images a step. NeuralSort has "
    "the temperatures of Prillo and Eisenschlos (2020), 1024 up to seven numbers and 128 beyond; "
    "the Sinkhorn methods choose from 1, 32 and 1024.",
    "Runs are compared only with runs of the same recipe, the same number of steps and lists "
    "drawn in the same way, so that each of these has tables of its own. At one length they share "
    "all of the plan, such as lists a step and the learning rate, and seeds of a cell all options. "
    "Of several settings the one with the most methods counts, then that with the most seeds, then "
    "the last; the last table has all. Commits and processors may differ within a cell, as it "
    "tells. The time of a cell is that of the quickest of its seeds.",
)

SETS = {"mnist": "MNIST digits", "digits": "scikit-learn's 8 x 8 digits"}


@dataclass(frozen=True)
class Figure:
    """A picture: where it is, and what it shows."""

    link: str
    text: str


@dataclass
class Section:
    """A part of the report.

    Attributes:
        title: Heading.
        texts: Paragraphs.
        tables: To print.
        figures: To show.
    """

    title: str
    texts: Sequence[str] = ()
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """What links point to, as pages of Markdown make it."""
        return re.sub(r"[^\w\- ]", "", self.title.lower()).replace(" ", "-")


def write_report(results: Path, out: Path) -> Path:
    """Renders everything that the lines of a folder say.

    Args:
        results: Folder of `*.jsonl`.
        out: Folder for `index.html`, `report.md` and `figures/`.

    Returns:
        The path of `index.html`.

    Raises:
        ConfigError: If there is nothing to show.
    """
    lines = chosen(record.read(results, STUDIES))
    if not lines:
        raise ConfigError(f"There are no lines of results in {results}. Train something first.")
    sections = [Section("Summary", tables=summaries(lines)), Section("Recipes", RECIPES)]
    lists = [line for line in lines if line.study in ("sort", "median")]
    for data in sorted({line.data for line in lists}, reverse=True):
        sections += _list_sections([line for line in lists if line.data == data], data, out)
    images = [line for line in lines if line.study == "knn"]
    if images:
        sections.append(_neighbours_section(images, out))
    ranked = tables.rank_table(lines)
    if ranked.rows:
        sections.append(Section("Rankings", tables=[ranked]))
    shown = ("sort", "median", "knn", "rank")
    for study in sorted({line.study for line in lines}.difference(shown)):
        mine = [line for line in lines if line.study == study]
        sections.append(Section(study.capitalize(), tables=tables.metrics_tables(mine)))
    runs = [line for line in lines if line.study != "rank"]  # of which there are hundreds
    sections.append(Section("Runs", tables=[tables.runs_table(runs)] if runs else []))
    sections = [one for one in sections if one.texts or one.tables or one.figures]
    loader = jinja2.PackageLoader(__package__ or "", "templates")
    for name, escape in (("report.md", False), ("index.html", True)):
        templates = jinja2.Environment(
            loader=loader, autoescape=escape, trim_blocks=True, undefined=jinja2.StrictUndefined
        )
        text = templates.get_template(f"{name}.jinja").render(
            introduction=INTRODUCTION, sections=sections, missing=tables.MISSING
        )
        out.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(re.sub(r"\n{3,}", "\n\n", text.strip()) + "\n")
    return out / "index.html"


def _list_sections(lines: Sequence[Line], data: str, out: Path) -> list[Section]:
    """One section of tables for every budget, and one of figures."""
    title = SETS.get(data, data)
    sections = []
    for index, budget in enumerate(budgets(lines)):
        group = within(lines, budget)
        made = [
            list_table(kind, group, data, whole=index == 0) for kind in (SORT, MEDIAN, DIFFERENCE)
        ]
        section = Section(f"{title}: {budget.title}", tables=[one for one in made if one.rows])
        sections.append(section)
    choices = choices_table(lines, data)
    sections.append(Section(f"{title}: temperatures", tables=[choices] if choices.rows else []))
    sections.append(Section(f"{title}: figures", figures=_list_figures(lines, data, out)))
    return sections


def _list_figures(lines: Sequence[Line], data: str, out: Path) -> list[Figure]:
    """Of every recipe the budget with the most cells; each run at the length it was trained at."""
    recipes = sorted({line.recipe for line in lines})
    shown = [line for recipe in recipes for line in in_cells(main_runs(lines, recipe))]
    folder = out / "figures"
    drawn = [
        (
            figures.learning_curves(shown, "sort", folder / f"{data}-sort-learning.png"),
            "Sorting: exact match on validation lists during training.",
        ),
        (
            figures.learning_curves(shown, "median", folder / f"{data}-median-learning.png"),
            "Medians: error on validation lists during training.",
        ),
        (
            figures.gradient_variance(lines, folder / f"{data}-gradient-variance.png"),
            "Log-variance of gradients during training, and where several temperatures were tried, "
            "at the end against temperature; from the running moments of the optimiser, averaged "
            "over parameters; after clipping, where the recipe clips.",
        ),
        (
            figures.medians(shown, folder / f"{data}-medians.png"),
            "True against predicted medians of 2,000 test lists.",
        ),
    ]
    for line in shown:
        run = (line.study, line.method, line.seed)
        if run == ("sort", "neuralsort", 0) and line.extras["examples"]:
            n, places = line.sizes["n"], line.sizes["places"]
            sizes = f"n{n}-trained{line.train_n}-places{places}"
            path = folder / f"{data}-examples-{sizes}-{line.recipe}.png"
            caption = (
                f"Test lists of {n} as they came, and in the order that Deterministic "
                f"NeuralSort gives them ({line.recipe} recipe): green where the number is right."
            )
            drawn.append((figures.examples(line, path), caption))
    return _linked(drawn, out)


def _linked(drawn: Sequence[tuple[Path | None, str]], out: Path) -> list[Figure]:
    return [
        Figure(path.relative_to(out).as_posix(), text) for path, text in drawn if path is not None
    ]


def _neighbours_section(lines: Sequence[Line], out: Path) -> Section:
    """Tables and figures of the study of nearest neighbours."""
    made = [knn_table(lines), knn_by_k_table(lines)]
    folder = out / "figures"
    drawn: list[tuple[Path | None, str]] = []
    for data in sorted({line.data for line in lines}):
        mine = [line for line in lines if line.data == data]
        kinds = grouped(mine, lambda line: (line.method, line.recipe, line.sizes["k"]))
        shown = [line for kind in kinds.values() for line in preferred(kind)]
        curves = figures.learning_curves(shown, "knn", folder / f"{data}-knn-learning.png")
        drawn.append((curves, f"{data}: accuracy on validation images during training."))
        for recipe in sorted({line.recipe for line in mine}):
            ours = [x for x in mine if (x.method, x.recipe) == ("neuralsort", recipe)]
            if not ours:
                continue
            line = preferred(ours)[0]
            about = f"{data}, Deterministic NeuralSort, {line.recipe} recipe"
            end = f"{data}-{line.recipe}.png"
            drawn += [
                (
                    figures.projection(line, folder / f"knn-projection-{end}"),
                    f"{about}: the embedding of test images before and after training, in the "
                    "plane by t-SNE.",
                ),
                (
                    figures.neighbours(line, folder / f"knn-neighbours-{end}"),
                    f"{about}: test images and their nearest training images, green where the "
                    "label is the same. The last rows are of images that were classified wrongly.",
                ),
            ]
    return Section(
        "Nearest neighbours",
        tables=[table for table in made if table.rows],
        figures=_linked(drawn, out),
    )
