"""Operators as trees of tensors: taken apart and put together by copies, pickles and transforms."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor
from torch.utils import _pytree

Class = TypeVar("Class", bound=type["Tree"])


class Tree(ABC):
    """What has parts, tensors or other trees, and for the rest is made of plain values."""

    @abstractmethod
    def _taken_apart(self) -> tuple[list[Any], Any]:
        """Parts, and all the rest that it takes to put them together."""

    @classmethod
    @abstractmethod
    def _put_together(cls, parts: list[Any], rest: Any) -> Any:
        """The same object of these parts, or of others."""

    def _children(self) -> list[Any]:
        """The parts with the dimensions of the batch in front of each, as `vmap` expects it."""
        return self._taken_apart()[0]

    def _mapped(self, function: Callable[[Any], Any]) -> Any:
        """Another one, of changed parts."""
        parts, rest = self._taken_apart()
        return type(self)._put_together([function(part) for part in parts], rest)

    def __reduce__(self) -> tuple:
        """Pickles and copies hold the parts, and nothing that was computed from them."""
        return _put_together, (type(self), *self._taken_apart())


def _put_together(cls: type[Tree], parts: list[Any], rest: Any) -> Any:
    return cls._put_together(parts, rest)


class Husk:
    """Stands for an operator while a map over trees puts something else than tensors in it."""

    def __init__(self, cls: type, parts: list[Any], rest: Any) -> None:
        self.cls, self.parts, self.rest = cls, parts, rest

    def __repr__(self) -> str:
        return f"{self.cls.__name__}{tuple(self.parts)}"


def pytree(cls: Class) -> Class:
    """Registers a class with PyTorch's trees: `vmap`, `torch.func` and `tree_map` pass it on."""

    def flatten(one: Any) -> tuple[list[Any], Any]:
        return one._children(), one._taken_apart()[1]

    def unflatten(parts: Any, rest: Any) -> Any:
        parts = list(parts)
        if all(isinstance(part, Tensor | Tree) for part in parts):
            return cls._put_together(parts, rest)
        return Husk(cls, parts, rest)

    name = f"{cls.__module__}.{cls.__qualname__}"
    _pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=name)
    return cls


_pytree.register_pytree_node(
    Husk,
    lambda husk: (husk.parts, (husk.cls, husk.rest)),
    lambda parts, rest: Husk(rest[0], list(parts), rest[1]),
    serialized_type_name=f"{__name__}.Husk",
)
