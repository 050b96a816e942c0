"""Sorting inside gradient-based learning.

This root package imports no framework. Choose a backend by its import:

    import neuralsort.torch as ns  # pip install "neuralsort[torch]"
"""

__version__ = "0.1.0"
