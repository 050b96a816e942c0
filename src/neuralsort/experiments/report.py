"""The report: static HTML and Markdown from lines of results. It never trains."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import figures, record, tables
from .plan import ConfigError
from .tables import Line, Table

INTRODUCTION = (
    "An image shows a number of several handwritten digits. A model sees lists of such images, and "
    "learns to put them in order, largest first. It is never told a number, only the right order "
    "of training lists; in the second study, only their median. Sorting is a step function, which "
    "has no useful gradient; NeuralSort replaces it by a smooth one, and the other methods are "
    "what it is compared with.",
    "In the third study a network embeds images so that the nearest neighbours of an image have "
    "its label. Which images are the nearest is a sort as well.",
    "Numbers are measured once, on a test set that is the same for every run and made of "
    "images that no model has seen; whatever was chosen was chosen on a validation set. Intervals "
    "of one run are Wilson's for shares of lists and of images, and the bootstrap's over lists for "
    "the others. Cells that nobody has run say so.",
)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1, h2, h3 { line-height: 1.2 } h2 { margin-top: 3rem; border-bottom: 1px solid #ccc }
table { border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto }
th, td { padding: 0.4rem 0.7rem; border-bottom: 1px solid #ddd }
th, td { text-align: left; vertical-align: top }
td small { display: block; color: #666 } td b { font-size: 1rem } img { max-width: 100% }
.note { color: #555; max-width: 52rem } .missing { color: #999 }
"""


@dataclass
class Section:
    """A part of the report.

    Attributes:
        title: Heading.
        tables: To print.
        figures: Paths with captions.
    """

    title: str
    tables: list[Table] = field(default_factory=list)
    figures: list[tuple[Path, str]] = field(default_factory=list)


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
    lines = [_complete(one) for one in record.read(results) if one["study"] in figures.CHOSEN]
    if not lines:
        raise ConfigError(f"There are no lines of results in {results}. Train something first.")
    lists = [line for line in lines if line["study"] != "knn"]
    sources = sorted({line["data"] for line in lists}, reverse=True)
    sections = [_section(lists, data, out) for data in sources]
    images = tables.chosen([line for line in lines if line["study"] == "knn"])
    if images:
        sections.append(_neighbours_section(images, out))
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(_markdown(sections, out))
    page = out / "index.html"
    page.write_text(_html(sections, out))
    return page


def _complete(line: Line) -> Line:
    """A line with all that a report shows.

    Raises:
        RecordError: If something is missing.
    """
    missing = {"data", "recipe", "method", "seed", "steps", "tau", "metrics", "intervals"} | {
        "validation",
        "config",
        "trials",
        "extras",
        "wall_seconds",
        "machine",
        "commit",
    }
    missing -= line.keys()
    if missing:
        raise record.RecordError(
            f"A line of the study {line['study']} lacks {', '.join(sorted(missing))}. Delete it, "
            "and do that run again."
        )
    return line


def _section(lines: Sequence[Line], data: str, out: Path) -> Section:
    """Tables and figures of one source of digits."""
    every = [line for line in lines if line["data"] == data]
    mine = tables.chosen(every)
    titles = {"mnist": "MNIST digits", "digits": "scikit-learn's 8 x 8 digits"}
    section = Section(titles.get(data, data))
    make = [tables.sort_table, tables.median_table, tables.difference_table]
    section.tables = [one for one in (f(mine, data) for f in make) if one.rows]
    if mine:
        section.tables.append(tables.runs_table(mine))
    folder = out / "figures"
    drawn = [
        (
            figures.learning_curves(mine, "sort", folder / f"{data}-sort-learning.png"),
            "Sorting: exact match on validation lists during training.",
        ),
        (
            figures.learning_curves(mine, "median", folder / f"{data}-median-learning.png"),
            "Medians: error on validation lists during training.",
        ),
        (
            figures.gradient_variance(every, folder / f"{data}-gradient-variance.png"),
            "Log-variance of gradients during training, and where several temperatures were tried, "
            "at the end against temperature; from the running moments of the optimiser, averaged "
            "over parameters; after clipping, where the recipe clips.",
        ),
        (
            figures.medians(mine, folder / f"{data}-medians.png"),
            "True against predicted medians of 2,000 test lists.",
        ),
    ]
    for line in mine:
        run = (line["study"], line["method"], line["seed"])
        if run == ("sort", "neuralsort", 0) and line["extras"]["examples"]:
            sizes = f"n{line['n']}-trained{line['config']['train_n']}-places{line['places']}"
            path = folder / f"{data}-examples-{sizes}-{line['recipe']}.png"
            caption = (
                f"Test lists of {line['n']} as they came, and in the order that Deterministic "
                f"NeuralSort gives them ({line['recipe']} recipe): green where the number is right."
            )
            drawn.append((figures.examples(line, path), caption))
    section.figures = [(path, caption) for path, caption in drawn if path is not None]
    return section


def _neighbours_section(lines: Sequence[Line], out: Path) -> Section:
    """Tables and figures of the study of nearest neighbours."""
    made = [tables.knn_table(lines), tables.knn_by_k_table(lines), tables.runs_table(lines)]
    section = Section("Nearest neighbours", [table for table in made if table.rows])
    folder = out / "figures"
    for data in sorted({line["data"] for line in lines}):
        mine = [line for line in lines if line["data"] == data]
        curves = figures.learning_curves(mine, "knn", folder / f"{data}-knn-learning.png")
        if curves is not None:
            caption = f"{data}: accuracy on validation images during training."
            section.figures.append((curves, caption))
        for line in mine:
            if (line["method"], line["seed"], line["k"]) != ("neuralsort", 0, 9):
                continue
            about = f"{data}, Deterministic NeuralSort, {line['recipe']} recipe"
            end = f"{data}-{line['recipe']}.png"
            section.figures += [
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
    return section


def _markdown(sections: Sequence[Section], out: Path) -> str:
    parts = ["# The paper's studies", *INTRODUCTION]
    for section in sections:
        parts.append(f"## {section.title}")
        for table in section.tables:
            rows = [
                "| " + " | ".join("<br>".join(cell) for cell in row) + " |" for row in table.rows
            ]
            head = ["| " + " | ".join(table.header) + " |", "|---" * len(table.header) + "|"]
            parts += [f"### {table.title}", table.note, "\n".join(head + rows)]
        parts += [
            f"![{text}]({path.relative_to(out).as_posix()})\n\n{text}"
            for path, text in section.figures
        ]
    return "\n\n".join(parts) + "\n"


def _html(sections: Sequence[Section], out: Path) -> str:
    parts = [f"<p>{html.escape(text)}</p>" for text in INTRODUCTION]
    for section in sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        for table in section.tables:
            head = "".join(f"<th>{html.escape(text)}</th>" for text in table.header)
            rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
            parts.append(
                f"<h3>{html.escape(table.title)}</h3><p class=note>{html.escape(table.note)}</p>"
                f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            )
        for path, text in section.figures:
            link = html.escape(path.relative_to(out).as_posix())
            parts.append(
                f'<figure><img src="{link}" alt="{html.escape(text)}">'
                f"<figcaption class=note>{html.escape(text)}</figcaption></figure>"
            )
    title = "The paper's studies"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1>{''.join(parts)}</body></html>\n"
    )


def _cell(cell: list[str]) -> str:
    first, *rest = cell
    kind = " class=missing" if first == tables.MISSING else ""
    small = "".join(f"<small>{html.escape(text)}</small>" for text in rest)
    return f"<td{kind}><b>{html.escape(first)}</b>{small}</td>"
