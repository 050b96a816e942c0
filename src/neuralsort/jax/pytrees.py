"""Classes as pytrees: which attributes are leaves, and what an object of odd leaves is."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

Class = TypeVar("Class", bound=type)


def pytree(*arrays: str, static: tuple[str, ...] = ()) -> Callable[[Class], Class]:
    """Registers a class as a pytree with these attributes for leaves; the others are static."""

    def register(cls: Class) -> Class:
        def flatten(one: Any) -> tuple[list, tuple]:
            return [getattr(one, a) for a in arrays], tuple(getattr(one, a) for a in static)

        def unflatten(options: tuple, leaves: Any) -> Any:
            new = object.__new__(cls)
            new.__dict__.update(zip(arrays, leaves, strict=True))
            new.__dict__.update(zip(static, options, strict=True))
            return new

        jax.tree_util.register_pytree_node(cls, flatten, unflatten)
        return cls

    return register


def described(one: Any, describe: Callable[[], str]) -> str:
    """What an object is; its bare leaves, if a map over them put something else than arrays."""
    try:
        return describe()
    except (AttributeError, IndexError, TypeError):
        return f"{type(one).__name__}{tuple(jax.tree.leaves(one))}"
