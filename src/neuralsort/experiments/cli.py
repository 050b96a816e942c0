"""The command line `neuralsort`: the paper's studies, from data to report."""

import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.markup import escape

from neuralsort.play import play

from .data import downloads
from .quickstart import quickstart
from .record import Line, RecordWarning
from .reproduction.command import reproduce
from .reproduction.queue import Unfinished
from .studies import STUDIES
from .studies.running import FAILURES, evaluate, finished, program, run
from .studies.study import Study
from .training.plan import ConfigError
from .training.trainer import Interrupted

Downloaded = Literal["mnist", "fashion-mnist", "cifar10"]

app = tyro.extras.SubcommandApp()
train = tyro.extras.SubcommandApp()
data = tyro.extras.SubcommandApp()

app.command(quickstart)
app.command(play)
app.command(train, name="train", help="Train on one study.")


def _training(study: Study) -> Callable[..., None]:
    """The command that trains on a study."""

    def train_study(config: Any) -> None:
        _tell(run(study, config))

    train_study.__annotations__["config"] = tyro.conf.OmitArgPrefixes[study.config]
    train_study.__doc__ = study.config.__doc__
    return train_study


for _study in STUDIES.values():
    train.command(name=_study.name)(_training(_study))


@app.command(name="evaluate")
def evaluate_run(
    run: tyro.conf.Positional[Path],
    n: tuple[int, ...] = (),
    data_dir: Path | None = None,
    results: Path = Path("results"),
) -> None:
    """Test a finished run again, also on lists of other lengths, and add lines to the results.

    Args:
        run: Folder of the run, or a file of parameters that is kept with the results.
        n: Lengths of the test lists. None given: the length it was trained at.
        data_dir: Folder with the data; else NEURALSORT_DATA, else the user's cache.
        results: Folder of the result lines.
    """
    name = finished(run)[1].study
    if name not in STUDIES:
        raise ConfigError(
            f"{run} is a run of the study {name!r}, which this version does not know. It knows "
            f"{', '.join(STUDIES)}."
        )
    study = STUDIES[name]
    config = study.config(data_dir=data_dir, results=results)
    for line in evaluate(study, config, run, lengths=n):
        _tell(line)


app.command(reproduce)


@app.command
def report(results: Path = Path("results"), out: Path = Path("report")) -> None:
    """Render tables and figures from the lines of results, as HTML and Markdown.

    Args:
        results: Folder of the result lines.
        out: Folder for index.html, report.md and the figures.
    """
    from .reporting.report import write_report  # draws: what that needs takes a second to import

    print(f"The report is in {write_report(results, out)}")


app.command(data, name="data", help="Look after the data.")


@data.command(name="list")
def list_data() -> None:
    """Name the sets of images and where their files would come from."""
    print("digits         1,797 images of 8 x 8, part of scikit-learn; nothing to download")
    print("mnist          70,000 images of 28 x 28, four files, 12 MB")
    print("fashion-mnist  70,000 images of 28 x 28, four files, 31 MB")
    print("cifar10        60,000 images of 32 x 32 in colour, one archive, 170 MB")
    folders = (
        ", ".join(map(str, downloads.data_directories(None))) or "none: NEURALSORT_DATA is not set"
    )
    print(f"Folders looked at first: {folders}")


@data.command
def fetch(name: tyro.conf.Positional[Downloaded] = "mnist", data_dir: Path | None = None) -> None:
    """Download what is not there yet, and check it.

    Args:
        name: What to fetch.
        data_dir: Folder to look at first.
    """
    for path in downloads.find(name, data_dir).values():
        print(f"good  {path}")


@data.command
def check(name: tyro.conf.Positional[Downloaded] = "mnist", data_dir: Path | None = None) -> None:
    """Check the files that are there; download nothing.

    Args:
        name: What to check.
        data_dir: Folder to look at first.
    """
    for path in downloads.find(name, data_dir, download=False).values():
        print(f"good  {path}")


def _tell(line: Line) -> None:
    """Prints what a run came to; of several processes, the first does."""
    if not _is_first_process():
        return
    size = STUDIES[line.study].config.sizes[0]
    about = f"{line.data}, {size} = {line.sizes[size]}, {line.recipe}"
    print(f"{line.study} {line.method}, {about}:")
    for name, value in line.metrics.items():
        low, high = line.intervals.get(name, (None, None))
        interval = "" if low is None else f"   95 % interval {low:.4g} to {high:.4g}"
        print(f"  {name:<20}{value:<10.4g}{interval}")
    print(f"  {line.steps} steps in {line.wall_seconds / 60:.1f} minutes")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: What comes after `neuralsort`; not given: what was typed.

    Returns:
        The exit status: 0, 2 for options or data that cannot be, 130 after an interrupt.
    """
    console = Console(stderr=True)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RecordWarning)
            warnings.showwarning = partial(_warn, console, warnings.showwarning)
            app.cli(prog="neuralsort", args=given)
    except (*FAILURES, Unfinished) as error:
        _say(console, "Error:", str(error))
        return 2
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_about_memory(error):
            raise
        advice = "There is not enough memory for this. Lower --batch, or --n and --test-lists."
        _say(console, "Error:", f"{error} {advice}".strip())
        return 2
    except (Interrupted, KeyboardInterrupt) as stop:
        if _is_first_process():
            kept = ", with a checkpoint" if isinstance(stop, Interrupted) else ""
            command = escape(f"{program(int(os.environ.get('WORLD_SIZE', 1)))} {shlex.join(given)}")
            console.print(f"Stopped{kept}. To go on, run the same command again:")
            console.print(f"  {command}", highlight=False, soft_wrap=True)
        return 130
    return 0


def _is_first_process() -> bool:
    """Of several that train together, one talks."""
    return os.environ.get("RANK", "0") == "0"


def _say(console: Console, kind: str, text: str) -> None:
    console.print(f"[bold red]{kind}[/] {escape(text)}", highlight=False, soft_wrap=True)


def _warn(
    console: Console, usual: Callable[..., None], message: Any, category: type, *rest: Any
) -> None:
    """Says a warning of ours in a sentence, and leaves those of others as they are."""
    if issubclass(category, RecordWarning):
        _say(console, "Warning:", str(message))
    else:
        usual(message, category, *rest)


def _is_about_memory(error: RuntimeError) -> bool:
    return "allocate" in str(error)
