"""Our docstrings in the style that the site reads."""

import re
from typing import Any

from griffe import Extension, Object

RETURNS = re.compile(r"(?ms)^Returns:\n.*?(?=^\S|\Z)")


class Docstrings(Extension):
    """Changes them before they are read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for every object, once its members are known."""
        if obj.docstring:
            text = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
            # What stands before a colon would be taken for a type.
            obj.docstring.value = RETURNS.sub(without_colons, text)


def without_colons(section: re.Match[str]) -> str:
    """A section with dashes for its colons, but for that of its title."""
    title, lines = section[0].split("\n", 1)
    return f"{title}\n" + re.sub(r":(?=\s)", " –", lines)
