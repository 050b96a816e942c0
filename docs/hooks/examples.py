"""`Example:` in a docstring is code to show, as `Examples:` is in the style that is read."""

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Renames the section before docstrings are read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for every object, once its members are known."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^Example:$", "Examples:", obj.docstring.value)
