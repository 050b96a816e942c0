"""A page to play with: drag scores, turn the temperature, see what a relaxation makes of them.

The page is hand-written, runs in the browser alone and needs nothing else, not even a server:
`neuralsort play`, or `python -m neuralsort.play` without any extra, opens it.
"""

import webbrowser
from pathlib import Path

PAGE = Path(__file__).parent / "index.html"
"""The page, which any browser can open."""


def play(*, browser: bool = True) -> None:
    """Open a page to play with in the browser: scores, temperature, relaxations, gradients.

    Args:
        browser: Open it. Else only say where it is.
    """
    print(PAGE.as_uri())
    if browser and not webbrowser.open(PAGE.as_uri()):
        print("No browser was found here; open the address above in one.")
