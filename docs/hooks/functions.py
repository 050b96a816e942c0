"""A function that shares its name with the file it is in: the reference shows the function."""

from typing import Any

from griffe import Extension, Module
from mkdocs.exceptions import PluginError

FRAMEWORKS = ("torch", "jax", "tf")


class Functions(Extension):
    """Leads `neuralsort.torch.softsort` to the function, not to the file `softsort.py`."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Called once all files are read."""
        for framework in FRAMEWORKS:
            for name, member in pkg[framework].members.items():
                if not member.is_alias or not member.target_path.startswith(f"{pkg.path}."):
                    continue
                target = pkg[member.target_path.removeprefix(f"{pkg.path}.")]
                if target.is_alias or not target.is_module:
                    continue
                if name in target.members:
                    member.target_path = f"{member.target_path}.{name}"
                elif name in map(str, pkg[framework].exports or ()):
                    raise PluginError(f"{member.path} is public, and leads to a file.")
