"""Scores to relaxed permutations: one published method, one file."""

from .neuralsort import neuralsort
from .softsort import softsort

__all__ = ["neuralsort", "softsort"]
