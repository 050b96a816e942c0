"""Formulas become MathML while the site is built: browsers show it without scripts or fonts."""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\s*\\[(\[](?P<tex>.*?)\\[)\]]\s*</\1>', re.DOTALL
)
"""What Markdown makes of `$...$` and `$$...$$`."""

UNKNOWN = re.compile(r"\\[a-zA-Z]+")


def mathml(tex: str, *, display: str) -> str:
    r"""One formula. A command that is not known is an error, in place of `\command` on the page."""
    converted = convert(tex, display=display)
    if unknown := UNKNOWN.search(converted):
        raise PluginError(f"{unknown[0]} cannot be shown: write the formula {tex!r} without it.")
    return converted


def on_page_content(html: str, **_: Any) -> str:
    """Replaces every formula of a page."""

    def replaced(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return mathml(unescape(found["tex"]), display=display)

    return FORMULA.sub(replaced, html)
