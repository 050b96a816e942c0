"""Files that are whole or not there."""

import os
import uuid
from pathlib import Path


def replace(path: Path, content: bytes) -> None:
    """Puts content into a file in one step that survives a crash; makes its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
