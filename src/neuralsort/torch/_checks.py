"""Every rule for input, one message each: what was expected, what came, what to do."""

import math
from collections.abc import Callable

import torch
from torch import Tensor


def scores(name: str, value: Tensor) -> Tensor:
    """Floating-point tensor with at least one dimension."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`{name}` expects a torch.Tensor, got {type(value).__name__}. "
            "Wrap the values with torch.as_tensor(...)."
        )
    if not value.is_floating_point():
        raise TypeError(
            f"`{name}` expects a floating-point tensor, got {value.dtype}. "
            "Convert it with .float() or .double()."
        )
    if value.dim() == 0:
        raise ValueError(
            f"`{name}` expects at least one dimension (..., n), got a 0-d tensor. "
            "A list of one item has shape (1,)."
        )
    return value


def tau(value: float | Tensor, scores: Tensor) -> float | Tensor:
    """Non-negative number, or a tensor with one temperature per list.

    The value of a tensor is not read: that would force a synchronisation.
    """
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise TypeError(
                f"`tau` expects a number or a floating-point tensor, got {value.dtype}. "
                "Convert it with .float()."
            )
        lists = (*scores.shape[:-1], 1)
        shape = tuple(value.shape)
        fits = len(shape) <= len(lists) and all(
            a in (1, b) for a, b in zip(reversed(shape), reversed(lists), strict=False)
        )
        if not fits:
            raise ValueError(
                f"`tau` must be one number or one temperature per list: a shape that broadcasts to "
                f"{lists} for scores {tuple(scores.shape)}, got {shape}. "
                "For a batch of temperatures use tau.unsqueeze(-1)."
            )
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"`tau` expects a number or a tensor, got {type(value).__name__}. "
            "Pass a float such as 1.0, or a 0-d tensor to learn it."
        )
    if math.isnan(value) or value < 0 or math.isinf(value):
        raise ValueError(
            f"`tau` must be a finite number that is not negative, got {value}. "
            "Use tau=0 for the hard permutation, a positive number to relax it."
        )
    return float(value)


def power(value: float) -> float:
    """The exponent of SoftSort's distance."""
    if value not in (1, 2):
        raise ValueError(
            f"`power` must be 1 or 2, got {value!r}. Power 1 is the absolute difference of scores, "
            "power 2 its square."
        )
    return float(value)


def mask(value: Tensor | None, scores: Tensor) -> Tensor | None:
    """Boolean tensor that broadcasts to the scores, True where the item exists."""
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.dtype is not torch.bool:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`mask` expects a boolean tensor, True where the item exists, got {came}. "
            "Convert it with mask.bool()."
        )
    try:
        return value.expand(scores.shape)
    except RuntimeError:
        raise ValueError(
            f"`mask` must have the shape of the scores, {tuple(scores.shape)}, or broadcast to it, "
            f"got {tuple(value.shape)}. Give one flag per item."
        ) from None


def k(value: int, n: int) -> int:
    """How many items to take from a list of n."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            f"`k` expects an int, got {type(value).__name__}. Pass a whole number from 0 to {n}."
        )
    if not 0 <= value <= n:
        raise ValueError(
            f"`k` must be between 0 and the length of the list, {n}, got {value}. "
            "Take fewer items or give longer lists."
        )
    return value


def dim(value: int, tensor: Tensor) -> int:
    """A dimension of the tensor, counted from the front."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(
            f"`dim` expects an int, got {type(value).__name__}. Pass one dimension, such as -1."
        )
    rank = tensor.dim()
    if not -rank <= value < rank:
        raise ValueError(
            f"`dim` must be between {-rank} and {rank - 1} for a tensor of shape "
            f"{tuple(tensor.shape)}, got {value}. Name the dimension that holds the list."
        )
    return value % rank


def quantile(value: float | Tensor, like: Tensor) -> Tensor:
    """Number in [0, 1], or a 0-d or 1-d tensor of them."""
    q = torch.as_tensor(value, dtype=torch.float64, device=like.device)
    if q.dim() > 1:
        raise ValueError(
            f"`q` must be a number or a 1-d tensor, got shape {tuple(q.shape)}. Flatten it first."
        )
    if not isinstance(value, Tensor) and not bool(((q >= 0) & (q <= 1)).all()):
        raise ValueError(f"`q` must lie in [0, 1], got {value}. The median is q=0.5.")
    return q


def payload(value: Tensor, n: int, what: str) -> Tensor:
    """Floating-point operand of a product with P."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`{what}` expects a floating-point tensor, got {came}. Convert it with .float()."
        )
    where = -1 if value.dim() == 1 else -2
    if value.dim() == 0 or value.shape[where] != n:
        raise ValueError(
            f"`{what}` expects {n} items in dimension {where}, got shape {tuple(value.shape)}. "
            "The payload needs one row per item, as in torch.matmul."
        )
    return value


def list_values(value: Tensor, shape: torch.Size, what: str) -> Tensor:
    """One floating-point value per item, in lists of the right length."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`{what}` expects a floating-point tensor, got {came}. Convert it with .float()."
        )
    if value.dim() == 0 or value.shape[-1] != shape[-1]:
        raise ValueError(
            f"`{what}` expects lists of {shape[-1]} values, shape (..., {shape[-1]}), got "
            f"{tuple(value.shape)}. Give one value per item."
        )
    return value


def positions(value: Tensor, shape: torch.Size) -> Tensor:
    """One item index per row of P."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype is torch.bool:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`log_prob` expects integer item indices, got {came}. "
            "Pass a permutation such as torch.argsort(x, descending=True)."
        )
    if value.dim() == 0 or value.shape[-1] != shape[-2]:
        raise ValueError(
            f"`log_prob` expects one item per row, shape (..., {shape[-2]}), got "
            f"{tuple(value.shape)}. For the first k places use P.top(k).log_prob(...)."
        )
    return value.long()


def matrix(value: Tensor) -> Tensor:
    """Square floating-point matrices."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`from_dense` expects a floating-point tensor, got {came}. Convert it with .float()."
        )
    if value.dim() < 2 or value.shape[-1] != value.shape[-2]:
        raise ValueError(
            f"`from_dense` expects square matrices (..., n, n), got shape {tuple(value.shape)}. "
            "Rows are positions and columns are items."
        )
    return value


def keyed_values(values: Tensor, key: Tensor) -> Tensor:
    """Values whose leading dimensions are those of the key."""
    if not isinstance(values, Tensor) or not values.is_floating_point():
        came = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(
            f"`soft_sort_by` expects floating-point values, got {came}. Convert them with .float()."
        )
    if values.shape[: key.dim()] != key.shape:
        raise ValueError(
            f"`soft_sort_by` expects values of shape key.shape + payload, key.shape being "
            f"{tuple(key.shape)}, got {tuple(values.shape)}. Move the payload's dimensions last."
        )
    return values


def blur(value: float) -> float:
    """How many neighbouring ranks should blend."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"`ranks` expects a number, got {type(value).__name__}. Pass e.g. 1.0.")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(
            f"`ranks` must be a positive number of ranks, got {value}. For no blur use tau=0."
        )
    return float(value)


def relax(value: Callable[..., object]) -> Callable[..., object]:
    """A relaxation is a function, not its name."""
    if not callable(value):
        raise TypeError(
            f"`relax` expects a function such as neuralsort or softsort, got {value!r}. "
            "Fix its options with functools.partial."
        )
    return value
