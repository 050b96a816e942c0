"""Runs the notebooks of the gallery and writes their pages, with outputs and figures.

A notebook is a Python file of this folder in Jupytext's percent format: text and code in turn.
Its page is `docs/gallery/<name>.md`, its figures are beside it in `figures/`. The last line that it
prints says what was measured; it becomes the entry of the notebook in the list of all.

    python -m examples.gallery                        # all of them, in a quarter of an hour
    python -m examples.gallery trimmed_regression     # one
"""

import argparse
import os
import re
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbformat import NotebookNode
from traitlets.config import Config

SOURCES = Path(__file__).parent
PAGES = SOURCES.parents[1] / "docs" / "gallery"
HEAVIEST = 200_000
"""Bytes of the figures of one page, at most."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONWARNINGS": "ignore::UserWarning",
}
ENTRY = re.compile(r"^\*\*Measured:\*\* (?P<result>.*) \*\((?P<seconds>\d+) s of CPU\)\*$", re.M)


def names() -> list[str]:
    """Every notebook."""
    return sorted(path.stem for path in SOURCES.glob("[!_]*.py"))


def title(text: str) -> str:
    """The heading of a page."""
    return text.splitlines()[0].removeprefix("# ")


def last_line(notebook: NotebookNode) -> str:
    """What the notebook printed last."""
    texts = [
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream" and output.name == "stdout"
    ]
    return texts[-1].strip().splitlines()[-1]


def page(name: str) -> tuple[str, dict[str, bytes]]:
    """Runs a notebook; its page, and its figures by their path beside the page."""
    notebook = jupytext.read(SOURCES / f"{name}.py", fmt="py:percent")
    before = os.times()
    NotebookClient(notebook, timeout=None, kernel_name="python3").execute()
    after = os.times()
    seconds = sum(after[2:4]) - sum(before[2:4])  # of the kernel, which has ended by now
    template = "figures/{unique_key}_{cell_index}_{index}{extension}"
    config = Config(ExtractOutputPreprocessor={"output_filename_template": template})
    exporter = MarkdownExporter(config=config)
    body, resources = exporter.from_notebook_node(notebook, {"unique_key": name})
    body = re.sub(r"[ \t]+$", "", body, flags=re.M)
    body = re.sub(r"\n{3,}", "\n\n", body).strip()
    body = body.replace("![png]", f"![{title(body)}]")
    source = f"[examples/gallery/{name}.py](../../examples/gallery/{name}.py)"
    result = f"**Measured:** {last_line(notebook)} *({seconds:.0f} s of CPU)*"
    footer = f"{result}\n\nThis page is the output of {source}, run by `make gallery`."
    return f"{body}\n\n{footer}\n", resources.get("outputs", {})


def write(name: str) -> None:
    """Runs a notebook and replaces its page and figures."""
    text, figures = page(name)
    weight = sum(map(len, figures.values()))
    if weight > HEAVIEST:
        raise SystemExit(f"The figures of {name} take {weight:,} bytes; {HEAVIEST:,} are allowed.")
    for old in (PAGES / "figures").glob(f"{name}_[0-9]*"):
        old.unlink()
    for path, data in figures.items():
        (PAGES / path).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / path).write_bytes(data)
    (PAGES / f"{name}.md").write_text(text, encoding="utf-8")


def entries() -> str:
    """The list of all notebooks, from their pages."""
    rows = ["| notebook | what was measured | seconds |", "|---|---|---:|"]
    for name in names():
        path = PAGES / f"{name}.md"
        if path.exists():
            text = path.read_text(encoding="utf-8")
            found = ENTRY.search(text)
            assert found, f"{path} does not say what was measured"
            rows.append(f"| [{title(text)}]({name}.md) | {found['result']} | {found['seconds']} |")
    return "\n".join(rows)


def index(text: str) -> str:
    """The page that lists the notebooks, with the list as it is now."""
    begin, end = "<!-- notebooks: begin -->", "<!-- notebooks: end -->"
    before, after = text.split(begin)[0], text.split(end)[1]
    return f"{before}{begin}\n\n{entries()}\n\n{end}{after}"


def main() -> None:
    """Runs the notebooks that are named, or all."""
    parser = argparse.ArgumentParser(description="Runs the notebooks of the gallery.")
    parser.add_argument("names", nargs="*", help="all, if none is named")
    for name in parser.parse_args().names or names():
        print(name, flush=True)
        write(name)
    path = PAGES / "index.md"
    path.write_text(index(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    main()
