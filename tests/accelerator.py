"""A device made in Python, for machines that have no other: what it is given, it does on the CPU.

Its tensors say that they live elsewhere. An operation that mixes them with a tensor of the CPU
raises, as a GPU's would; also where PyTorch is lenient, with a single number in a CPU tensor. Every
time that the host must wait for the device, since it reads a value or a size that depends on
values, is written down, and so is every copy from one to the other.

    with Accelerator() as device:
        scores = device.put(torch.randn(5))
        ...
    device.log   # ["aten.nonzero", ...]
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from neuralsort.torch.matrixlike import Matrixlike

aten = torch.ops.aten

READS = {
    aten._local_scalar_dense: "item",
    aten.equal: "equal",
    aten.is_nonzero: "item",
    aten.nonzero: "nonzero",
    aten.masked_select: "masked_select",
    aten._unique2: "unique",
    aten.unique_dim: "unique",
    aten.unique_consecutive: "unique",
}
"""Operations after which the host knows something of the values."""


LIKE = (torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like)


class Meeting(RuntimeError):
    """A tensor of the device met one of the CPU."""


class DeviceTensor(Tensor):
    """A tensor that says it lives on the device; its values are in `held`."""

    held: Tensor
    on: torch.device
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore

    @staticmethod
    def __new__(cls, held: Tensor, on: torch.device) -> "DeviceTensor":
        new = torch.Tensor._make_wrapper_subclass(  # pyright: ignore
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            requires_grad=False,
        )
        new.held, new.on = held, on
        return new

    @property
    def device(self) -> torch.device:  # pyright: ignore
        return self.on

    def tolist(self) -> list:
        Accelerator.active().log.append("tolist")
        return self.held.tolist()

    def __repr__(self) -> str:  # pyright: ignore
        return f"DeviceTensor({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return Accelerator.active().run(func, args, kwargs or {})


class _ToHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: DeviceTensor) -> Tensor:  # pyright: ignore
        return x.held.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore
        return Accelerator.active().cross(grad)


class _FromHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # pyright: ignore
        return Accelerator.active()._wrap(x.clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore
        return Accelerator.active().cross(grad)


class _Crossings(TorchFunctionMode):
    """Copies between device and host, and constants, which PyTorch makes where none can watch."""

    def __init__(self, accelerator: "Accelerator") -> None:
        self.accelerator = accelerator

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and self._is_here(kwargs.get("device")):
            del kwargs["device"]
            if isinstance(args[0], DeviceTensor):
                return args[0].to(kwargs.get("dtype") or args[0].dtype)
            made = func(*args, **kwargs)
            return self.accelerator.cross(made)
        elsewhere = "device" in kwargs and not self._is_here(kwargs["device"])
        if func in LIKE and isinstance(args[0], DeviceTensor) and elsewhere:
            return func(args[0].held, *args[1:], **kwargs)
        if func is Tensor.cpu:
            return self.accelerator.cross(args[0]) if isinstance(args[0], DeviceTensor) else args[0]
        if func is Tensor.numpy and isinstance(args[0], DeviceTensor):
            raise TypeError(f"can't convert {self.accelerator.device} tensor to numpy")
        if func is Tensor.to:
            x, *rest = args
            kwargs.pop("copy", None)  # which changes no value
            if rest and isinstance(rest[0], Tensor):
                device, dtype = rest[0].device, rest[0].dtype
            else:
                device, dtype, *_ = torch._C._nn._parse_to(*rest, **kwargs)  # pyright: ignore
            if device is not None and self._is_here(device) != isinstance(x, DeviceTensor):
                x = self.accelerator.cross(x if dtype is None else x.to(dtype))
            return x if dtype is None else x.to(dtype)
        operators = [type(x) for x in args if isinstance(x, Matrixlike)]
        if operators:  # what they do is to be watched as well
            with _Crossings(self.accelerator):
                return operators[0].__torch_function__(func, types, args, kwargs)
        return func(*args, **kwargs)

    def _is_here(self, device: Any) -> bool:
        return device is not None and torch.device(device).type == self.accelerator.device.type


class Accelerator(TorchDispatchMode):
    """While it is entered, `device.type` is a device.

    Args:
        type_: How it is called: `"xla"` for a device like a GPU, `"mps"` for one without float64.
    """

    _active: list["Accelerator"] = []

    def __init__(self, type_: str = "xla") -> None:
        super().__init__()
        self.device = torch.device(type_, 0)
        self.log: list[str] = []
        self._numbers: set[int] = set()

    @classmethod
    def active(cls) -> "Accelerator":
        return cls._active[-1]

    def __enter__(self) -> "Accelerator":
        self._active.append(self)
        self._crossings = _Crossings(self)
        self._crossings.__enter__()
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        self._crossings.__exit__(*args)
        self._active.pop()

    def put(self, tensor: Tensor) -> Tensor:
        """A copy on the device, a leaf of its own."""
        moved = DeviceTensor(tensor.detach().clone(), self.device)
        return moved.requires_grad_(tensor.requires_grad)

    def cross(self, x: Tensor) -> Tensor:
        """From the device to the host, or from the host to the device."""
        if isinstance(x, DeviceTensor):
            self.log.append("to the host")
            return _ToHost.apply(x)  # pyright: ignore
        self.log.append("from the host")
        return _FromHost.apply(x)  # pyright: ignore

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        return self.run(func, args, kwargs or {})

    # -- one operation ---------------------------------------------------------------------------

    def run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        tensors = _tensors_in((*args, *kwargs.values()))
        here = [x for x in tensors if isinstance(x, DeviceTensor)]
        there = [x for x in tensors if not isinstance(x, DeviceTensor)]
        where = kwargs.get("device")
        made_here = where is not None and torch.device(where).type == self.device.type
        if here and there and not all(id(x) in self._numbers for x in there):
            shapes = [tuple(x.shape) for x in there]
            raise Meeting(f"{func} meets tensors of the CPU, of shapes {shapes}")
        if here:
            self._note(func.overloadpacket, args, kwargs)
        if where is not None:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if here and self.device.type == "mps" and func.overloadpacket is aten.cumsum:
            return self._wrap(_short_cumsum(args[0].held, args[1]))
        named = {name: _each(_held, x) for name, x in kwargs.items()}
        result = func(*(_each(_held, x) for x in args), **named)
        if func.overloadpacket is aten.scalar_tensor and not made_here:
            self._numbers.add(id(result))  # a plain number of an operation, inside PyTorch
            self._kept = result
            return result
        if _in_place(func):
            return args[0]
        return _each(self._wrap, result) if made_here or here else result

    def _wrap(self, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if self.device.type == "mps" and x.dtype is torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return DeviceTensor(x, self.device)

    def _note(self, packet: Any, args: tuple, kwargs: dict) -> None:
        """Writes down what makes the host wait."""
        if packet in READS:
            self.log.append(READS[packet])
        if packet in (aten.index, aten.index_put, aten.index_put_):
            masks = [x for x in args[1] if x is not None and x.dtype in (torch.bool, torch.uint8)]
            self.log.extend("index by mask" for _ in masks)
        if packet is aten.repeat_interleave and kwargs.get("output_size") is None:
            self.log.append("repeat_interleave")


def _short_cumsum(x: Tensor, dim: int) -> Tensor:
    """Running sums in the dtype of x; the CPU takes a longer one on the way."""
    return torch.from_numpy(
        np.cumsum(x.numpy(), axis=dim, dtype=None if x.dtype.is_floating_point else np.int64)
    )


# The arguments of an operation are tensors, numbers, or lists of these: `tree_map` would look
# for deeper structures in everything, which took a third of the time.


def _tensors_in(arguments: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for x in arguments:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, list | tuple):
            found.extend(y for y in x if isinstance(y, Tensor))
    return found


def _each(function: Callable[[Any], Any], x: Any) -> Any:
    """The function of an argument or result, or of each in a list of them."""
    if isinstance(x, list):
        return [function(y) for y in x]
    return tuple(function(y) for y in x) if isinstance(x, tuple) else function(x)


def _held(x: Any) -> Any:
    return x.held if isinstance(x, DeviceTensor) else x


@functools.cache
def _in_place(func: Any) -> bool:
    """Whether an operation returns its first argument, changed."""
    first = func._schema.arguments[0] if func._schema.arguments else None
    return bool(first and first.alias_info and first.alias_info.is_write and func._schema.returns)


def on_host(x: Tensor) -> Tensor:
    """Its values, for comparisons outside."""
    return x.held if isinstance(x, DeviceTensor) else x
