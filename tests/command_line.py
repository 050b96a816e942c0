"""`python -m tests.command_line`: writes the page of the command line, from its own help."""

import contextlib
import io
import os
import re
from pathlib import Path
from unittest import mock

from neuralsort.experiments import cli
from neuralsort.experiments.studies import STUDIES

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "command-line.md"

COMMANDS = (
    ("quickstart",),
    ("play",),
    *(("train", study) for study in STUDIES),
    ("evaluate",),
    ("reproduce",),
    ("report",),
    ("data", "list"),
    ("data", "fetch"),
    ("data", "check"),
)

HEAD = """# The command line

`neuralsort` comes with the extra `experiments`. [The studies](../studies.md) show it at work;
this is what `--help` says.
"""


def help_of(command: tuple[str, ...]) -> str:
    """What `--help` prints, without the lines that are drawn."""
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        cli.app.cli(prog="neuralsort", args=[*command, "--help"])
    lines = (line.rstrip() for line in printed.getvalue().splitlines())
    text = "\n".join(line for line in lines if not re.fullmatch(r" *-+", line))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def page() -> str:
    """The whole page."""
    sections = (
        f"## neuralsort {' '.join(command)}\n\n```text\n{help_of(command)}\n```\n"
        for command in COMMANDS
    )
    return "\n".join((HEAD, *sections))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
