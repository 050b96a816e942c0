"""The command line `neuralsort`: the paper's studies, from data to report."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape

from . import sources
from .checkpoint import CheckpointError
from .knn import KNNConfig
from .median import MedianConfig
from .plan import ConfigError
from .quickstart import quickstart
from .ranking import RankingConfig
from .ranking import run as run_ranking
from .record import RecordError
from .report import write_report
from .reproduction import reproduce
from .sorting import SortConfig
from .studies import STUDIES
from .study import evaluate, finished_line, run
from .train import Diverged, Interrupted

FAILURES = (ConfigError, sources.DataError, CheckpointError, RecordError, Diverged)
"""What people can do something about; the message says what."""

Source = Literal["mnist", "fashion-mnist", "cifar10"]

app = tyro.extras.SubcommandApp()
train = tyro.extras.SubcommandApp()
files = tyro.extras.SubcommandApp()

app.command(quickstart)
app.command(train, name="train", help="Train on one study.")


@train.command(name="sort")
def train_sort(config: tyro.conf.OmitArgPrefixes[SortConfig]) -> None:
    """Learn to sort images of large numbers from lists with their order."""
    _tell(run(STUDIES["sort"].study, config))


@train.command(name="median")
def train_median(config: tyro.conf.OmitArgPrefixes[MedianConfig]) -> None:
    """Learn to predict the median of images of large numbers from lists with their median."""
    _tell(run(STUDIES["median"].study, config))


@train.command(name="knn")
def train_knn(config: tyro.conf.OmitArgPrefixes[KNNConfig]) -> None:
    """Learn an embedding of images in which the nearest neighbours have the same label."""
    _tell(run(STUDIES["knn"].study, config))


@train.command(name="rank")
def train_rank(config: tyro.conf.OmitArgPrefixes[RankingConfig]) -> None:
    """Learn to rank documents by relevance on one fold of MQ2008."""
    line = run_ranking(config)
    print(f"rank {line['method']}, {line['data']}, fold {line['fold']}:")
    _tell_metrics(line)


@app.command(name="evaluate")
def evaluate_run(
    run: tyro.conf.Positional[Path],
    n: tuple[int, ...] = (),
    data_dir: Path | None = None,
    results: Path = Path("results"),
) -> None:
    """Test a finished run again, also on lists of other lengths, and add lines to the results.

    Args:
        run: Folder of the run.
        n: Lengths of the test lists. None given: the length it was trained at.
        data_dir: Folder with the data; else NEURALSORT_DATA, else the user's cache.
        results: Folder of the result lines.
    """
    study, config = STUDIES[finished_line(run)["study"]]
    options = config(data_dir=data_dir, results=results)
    for line in evaluate(study, options, run, lengths=n):
        _tell(line)


app.command(reproduce)


@app.command
def report(results: Path = Path("results"), out: Path = Path("report")) -> None:
    """Render tables and figures from the lines of results, as HTML and Markdown.

    Args:
        results: Folder of the result lines.
        out: Folder for index.html, report.md and the figures.
    """
    print(f"The report is in {write_report(results, out)}")


app.command(files, name="data", help="Look after the data.")


@files.command(name="list")
def list_data() -> None:
    """Name the sources of images and where their files would come from."""
    print("digits         1,797 images of 8 x 8, part of scikit-learn; nothing to download")
    print("mnist          70,000 images of 28 x 28, four files, 12 MB")
    print("fashion-mnist  70,000 images of 28 x 28, four files, 31 MB")
    print("cifar10        60,000 images of 32 x 32 in colour, one archive, 170 MB")
    folders = (
        ", ".join(map(str, sources.data_directories(None))) or "none: NEURALSORT_DATA is not set"
    )
    print(f"Folders looked at first: {folders}")


@files.command
def fetch(source: tyro.conf.Positional[Source] = "mnist", data_dir: Path | None = None) -> None:
    """Download what is not there yet, and check it.

    Args:
        source: What to fetch.
        data_dir: Folder to look at first.
    """
    for path in sources.find(source, data_dir).values():
        print(f"good  {path}")


@files.command
def check(source: tyro.conf.Positional[Source] = "mnist", data_dir: Path | None = None) -> None:
    """Check the files that are there; download nothing.

    Args:
        source: What to check.
        data_dir: Folder to look at first.
    """
    for path in sources.find(source, data_dir, download=False).values():
        print(f"good  {path}")


def _tell(line: dict[str, Any]) -> None:
    """Prints what a run came to; of several processes, the first does."""
    if os.environ.get("RANK", "0") != "0":
        return
    size = STUDIES[line["study"]].config.sizes[0]
    about = f"{line['data']}, {size} = {line[size]}, {line['recipe']}"
    print(f"{line['study']} {line['method']}, {about}:")
    _tell_metrics(line)
    print(f"  {line['steps']} steps in {line['wall_seconds'] / 60:.1f} minutes")


def _tell_metrics(line: dict[str, Any]) -> None:
    for name, value in line["metrics"].items():
        low, high = line["intervals"].get(name, (None, None))
        interval = "" if low is None else f"   95 % interval {low:.4g} to {high:.4g}"
        print(f"  {name:<20}{value:<10.4g}{interval}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Returns:
        The exit status: 0, 2 for options or data that cannot be, 130 after an interrupt.
    """
    console = Console(stderr=True)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app.cli(prog="neuralsort", args=given)
    except (*FAILURES, OSError) as error:
        text = escape(str(error))
        console.print(f"[bold red]Error:[/] {text}", highlight=False, soft_wrap=True)
        return 2
    except (Interrupted, KeyboardInterrupt) as stop:
        kept = ", with a checkpoint" if isinstance(stop, Interrupted) else ""
        command = escape(f"neuralsort {shlex.join(given)}")
        console.print(f"Stopped{kept}. To go on, run the same command again:")
        console.print(f"  {command}", highlight=False, soft_wrap=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
