"""Files that are whole or not there, and folders with one writer at a time."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"
_DRAFT = re.compile(r"\..+\.[0-9a-f]{32}")


class Busy(Exception):
    """Another process is at work here; the message says where."""


def replace(path: Path, content: bytes) -> None:
    """Puts content into a file in one step that survives a crash; makes its folder if need be.

    Raises:
        OSError: If there is no room, or no permission; it names the file, and leaves no draft.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with naming(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names the file in errors: what writes into an open one does not know its name."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(error.errno, f"Could not write: {error.strerror}", str(path)) from None


def remove_drafts(folder: Path) -> None:
    """Removes what writers left that were killed; only for whoever holds the folder's lock."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _DRAFT.fullmatch(path.name):
            path.unlink(missing_ok=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Holds a folder for one process; the lock goes with the process, however that ends.

    Raises:
        Busy: If another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / LOCK, timeout=0):
            remove_drafts(folder)
            yield
    except Timeout:
        raise Busy(
            f"Another process is at work in {folder}. Wait for it to end, or give another folder."
        ) from None


@contextmanager
def turn_at(path: Path) -> Iterator[None]:
    """Waits for one's turn to change a file that several processes add to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}{LOCK}")):
        yield
