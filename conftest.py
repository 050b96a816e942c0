"""Which examples in docstrings and docs can run: those of the frameworks that are installed."""

from importlib.util import find_spec

ROOMS = {"jax": "jax", "tf": "tensorflow"}

_missing = [room for room, framework in ROOMS.items() if find_spec(framework) is None]

# Of globs, because folders that are named as places of tests are not ignored by their own names.
collect_ignore_glob = [f"src/neuralsort/{room}/*" for room in _missing]
if _missing:
    collect_ignore_glob.append("docs/frameworks.md")  # which shows all three side by side

collect_ignore_glob.append("docs/hooks/*")  # parts of the site, which has tools of its own
