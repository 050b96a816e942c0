"""Which examples in docstrings and docs can run: those of the frameworks that are installed."""

from importlib.util import find_spec

ROOMS = {"jax": "jax", "tf": "tensorflow"}

_missing = [room for room, framework in ROOMS.items() if find_spec(framework) is None]

collect_ignore = [f"src/neuralsort/{room}" for room in _missing]
if _missing:
    collect_ignore.append("docs/frameworks.md")  # which shows all three side by side
