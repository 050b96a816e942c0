"""Which cases of a test every run has, and which are left to `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest


def some_of(cases: Iterable[Any], *every_run: Any) -> list:
    """Parameters for all of these: the ones that are named for every run, the others for long ones.

    A case is a value, or a tuple of several.
    """
    found, named = [], list(every_run)
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = () if case in named else pytest.mark.long
        found.append(pytest.param(*values, marks=marks))
    assert sum(not case.marks for case in found) >= len(named), "a case that is named is not there"
    return found
