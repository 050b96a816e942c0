"""Every rule for tensors, one message each: what was expected, what came, what to do."""

import operator
from typing import Any, NoReturn

import torch
from torch import Tensor

from .. import _options
from .._blur import Blur
from .arrays import longest, seen

Tau = float | Tensor | Blur
"""What every `tau=` takes."""


def scores(name: str, value: Tensor) -> Tensor:
    """Floating-point tensor with at least one dimension."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`{name}` expects a torch.Tensor, got {type(value).__name__}. "
            "Wrap the values with torch.as_tensor(...)."
        )
    if value.is_nested or value.layout is not torch.strided:
        came = "a nested tensor" if value.is_nested else f"layout {value.layout}"
        raise TypeError(
            f"`{name}` expects a dense tensor (..., n), got {came}. "
            "Convert it with .to_dense(); pad lists of several lengths and pass `mask`."
        )
    if not value.is_floating_point():
        raise TypeError(
            f"`{name}` expects a floating-point tensor, got {value.dtype}. "
            "Convert it with .float() or .double()."
        )
    if value.dtype.itemsize < 2:
        raise TypeError(
            f"`{name}` expects float16, bfloat16, float32 or float64, got {value.dtype}, which has "
            "no arithmetic of its own. Convert it with .float()."
        )
    if value.dim() == 0:
        raise ValueError(
            f"`{name}` expects at least one dimension (..., n), got a 0-d tensor. "
            "A list of one item has shape (1,)."
        )
    return value


def tau(value: Tau, scores: Tensor) -> Tau:
    """Non-negative number, a tensor with one temperature per list, or a blur.

    The value of a tensor is read where it can be, on the CPU and outside of compiled code;
    elsewhere a negative one gives NaN.
    """
    if isinstance(value, Blur):
        return value
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
        if value.dim() and value.device != scores.device:
            raise ValueError(
                f"`tau` must be on the device of the scores, {scores.device}, got {value.device}. "
                "Move it with tau.to(scores.device)."
            )
        if readable(value) and bool((value < 0).any()):
            raise ValueError(
                f"`tau` must not be negative, got a tensor with {float(value.min())}. Learn its "
                "logarithm, or use nn.Temperature(learnable=True), which stays positive."
            )
        return value
    return _options.temperature(value)


def softness(tau_: Tau | None, strength: float | None, scores: Tensor) -> float | Tensor:
    """One of two names for how soft a projection is; 1 if neither is given."""
    if tau_ is not None and strength is not None:
        raise ValueError(
            "`tau` and `strength` are two names of one thing, got both. Pass `tau` alone."
        )
    if strength is not None:
        return _options.strength(strength)
    if isinstance(tau_, Blur):
        raise TypeError(
            f"A projection has no blur in ranks, got tau={tau_}: on equal gaps it keeps all places "
            "apart or blends them all. Pass a number, in units of the gap."
        )
    value = 1.0 if tau_ is None else tau(tau_, scores)
    assert not isinstance(value, Blur)
    return value


def mask(value: Tensor | None, scores: Tensor) -> Tensor | None:
    """Boolean tensor that broadcasts to the scores, True where the item exists."""
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.dtype is not torch.bool:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`mask` expects a boolean tensor, True where the item exists, got {came}. "
            "Convert it with torch.as_tensor(mask).bool()."
        )
    if value.device != scores.device:
        raise ValueError(
            f"`mask` must be on the device of the scores, {scores.device}, got {value.device}. "
            "Move it with mask.to(scores.device)."
        )
    try:
        return value.expand(scores.shape)
    except RuntimeError:
        raise ValueError(
            f"`mask` must have the shape of the scores, {tuple(scores.shape)}, or broadcast to it, "
            f"got {tuple(value.shape)}. Give one flag per item."
        ) from None


def readable(value: Tensor) -> bool:
    """Whether a rule may look at the values of a tensor."""
    return seen(value, torch.any) is not None


def in_range(name: str, value: Tensor, n: int) -> None:
    """Indices from 0 to n - 1. Reads values, where they may be read."""
    if not readable(value):
        return
    outside = (value < 0) | (value >= n)
    if bool(outside.any()):
        raise ValueError(
            f"`{name}` expects indices from 0 to {n - 1}, got {int(value[outside][0])}. "
            "Count from 0, and mark items that do not exist with `mask`."
        )


def same_batch(what: str, lists: torch.Size, operator: torch.Size) -> None:
    """Lists for an operator `(..., k, n)`: as many as it has, or what broadcasts to them."""
    batch = operator[:-2]
    pairs = zip(reversed(lists), reversed(batch), strict=False)
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        raise ValueError(
            f"`{what}` expects a batch that broadcasts against {tuple(batch)}, that of P of shape "
            f"{tuple(operator)}, got {tuple(lists)}. Give every list its own, or one for all of "
            "them."
        )


def k_per_list(
    value: int | Tensor, lists: torch.Size, device: torch.device | None = None
) -> Tensor:
    """How many items to take, `(...)` for lists `(..., n)`: one number, or one per list."""
    *batch, n = lists
    if not isinstance(value, Tensor):
        return torch.full((), _options.k(value, n), device=device).expand(batch)
    if value.is_floating_point() or value.dtype is torch.bool or value.is_complex():
        raise TypeError(
            f"`k` expects whole numbers, got a tensor of {value.dtype}. Convert it with .long()."
        )
    try:
        value = value.expand(batch)
    except RuntimeError:
        raise ValueError(
            f"`k` must be one number or one per list: a shape that broadcasts to {tuple(batch)}, "
            f"got {tuple(value.shape)}. Leave the dimension of the lists out."
        ) from None
    if readable(value) and bool(((value < 0) | (value > n)).any()):
        _options.k(int(value[(value < 0) | (value > n)][0]), n)
    return value.clamp(0, n).long()


def one_side_only(x: tuple[int, ...], operator: tuple[int, int]) -> NoReturn:
    """Products in compiled graphs that fit on both sides: torch does not say which was meant."""
    raise TypeError(
        f"`P @ x` in a compiled graph expects an x that fits on one side of P only, got shape {x} "
        f"beside {operator}: torch.compile does not tell it from `x @ P`. Write "
        "torch.matmul(P, x) or torch.matmul(x, P); for one value per item, P.sort(x)."
    )


def quantile(value: float | Tensor, like: Tensor) -> Tensor:
    """Number in [0, 1], or a 0-d or 1-d tensor of them."""
    dtype = longest(like.device)
    try:
        if isinstance(value, int | float):  # written where it is needed: nothing is copied
            q = torch.full((), value, dtype=dtype, device=like.device)
        else:
            q = torch.as_tensor(value, dtype=dtype, device=like.device)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"`q` expects a number in [0, 1] or a 1-d tensor of them, got {value!r}. "
            "The median is q=0.5."
        ) from None
    if q.dim() > 1:
        raise ValueError(
            f"`q` must be a number or a 1-d tensor, got shape {tuple(q.shape)}. Flatten it first."
        )
    if readable(q) and not bool(((q >= 0) & (q <= 1)).all()):
        raise ValueError(f"`q` must lie in [0, 1], got {value}. The median is q=0.5.")
    return q


def _floating(what: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"`{what}` expects a floating-point tensor, got {type(value).__name__}. "
            "Wrap the values with torch.as_tensor(...)."
        )
    if not value.is_floating_point():
        raise TypeError(
            f"`{what}` expects a floating-point tensor, got {value.dtype}. "
            "Convert it with .float()."
        )


def payload(value: Tensor, n: int, what: str) -> Tensor:
    """Floating-point operand of a product with P."""
    if not isinstance(value, Tensor) and hasattr(value, "to_dense"):
        raise TypeError(
            f"`{what}` expects a tensor, got {value!r}. Of two operators only relaxed permutations "
            "multiply, as P @ Q; for others write one of the matrices with to_dense()."
        )
    _floating(what, value)
    where = -1 if value.dim() == 1 else -2
    if value.dim() == 0 or value.shape[where] != n:
        raise ValueError(
            f"`{what}` expects {n} items in dimension {where}, got shape {tuple(value.shape)}. "
            "The payload needs one row per item, as in torch.matmul."
        )
    return value


def matrix_needed(what: str) -> str:
    """What is said of operations that take a tensor."""
    return (
        f"`{what}` expects a tensor, got a relaxed permutation, an operator whose matrix may never "
        "be written. Write it with P.to_dense()."
    )


def needs_the_matrix(what: str) -> NoReturn:
    """Refuses an operation on the entries of an operator."""
    raise TypeError(matrix_needed(what))


def operator_dtype(value: torch.dtype) -> torch.dtype:
    """A dtype that a relaxed permutation can have."""
    if not value.is_floating_point or value.itemsize < 2:
        raise TypeError(
            f"`P.to` expects float16, bfloat16, float32 or float64, got {value}. "
            "For another dtype convert the matrix: P.to_dense().to(...)."
        )
    return value


def operand_rows(left: torch.Size, right: torch.Size) -> None:
    """Two operators that may be multiplied."""
    if left[-1] != right[-2]:
        raise ValueError(
            f"`P @ Q` expects as many rows in Q as P has columns, {left[-1]}, got {right[-2]}. "
            "Operators shortened by top(k) multiply only from the left."
        )
    same_batch("P @ Q", right[:-2], left)


def index_count(came: int, ndim: int) -> None:
    """No more indices than dimensions."""
    if came > ndim:
        raise IndexError(
            f"`P[...]` expects at most {ndim} indices, one per dimension, got {came}. "
            "Choose lists first, then rows, then columns."
        )


def index(value: Any, size: int, device: torch.device) -> Any:
    """A number, a slice, or a tensor of integers, for a dimension of this size."""
    if isinstance(value, slice):
        return value
    if isinstance(value, list) or (not isinstance(value, Tensor) and getattr(value, "ndim", 0)):
        value = torch.as_tensor(value, device=device)  # a list, or an array of NumPy
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex() or value.dtype is torch.bool:
            return _no_index(value.dtype)
        if readable(value) and bool(((value < -size) | (value >= size)).any()):
            raise IndexError(_beyond(size, f"{value.tolist()}"))
        return value
    if isinstance(value, bool):
        return _no_index(value)
    try:
        number = operator.index(value)
    except TypeError:
        return _no_index(value)
    if not -size <= number < size:
        raise IndexError(_beyond(size, f"{number}"))
    return number


def _beyond(size: int, came: str) -> str:
    return (
        f"`P[...]` expects indices from {-size} to {size - 1} in this dimension, got {came}. "
        "Count from 0, or from -1 backwards."
    )


def _no_index(came: Any) -> NoReturn:
    raise TypeError(
        f"`P[...]` expects numbers, slices and integer tensors, got {came}. "
        "For other indices write the matrix: P.to_dense()[...]."
    )


def left_operand(value: Tensor, shape: torch.Size, what: str) -> Tensor:
    """Floating-point operand from the left of an operator of this shape."""
    if isinstance(value, Tensor) and value.dim() > 0 and value.shape[-1] != shape[-2]:
        raise ValueError(
            f"`{what}` expects {shape[-2]} columns, one per row of the operator, got shape "
            f"{tuple(value.shape)}. For its transpose write P.mT."
        )
    if isinstance(value, Tensor) and value.dim() > 1:
        payload(value.mT, shape[-2], what)
        return value
    return payload(value, shape[-2], what)


def list_values(value: Tensor, shape: torch.Size, what: str) -> Tensor:
    """One floating-point value per item, in lists of the right length."""
    _floating(what, value)
    if value.dim() == 0 or value.shape[-1] != shape[-1]:
        raise ValueError(
            f"`{what}` expects lists of {shape[-1]} values, shape (..., {shape[-1]}), got "
            f"{tuple(value.shape)}. Give one value per item."
        )
    same_batch(what, value.shape[:-1], shape)
    return value


def positions(name: str, value: Tensor, shape: torch.Size, everywhere: bool = True) -> Tensor:
    """One item index per row of P.

    With `everywhere=False` some rows do not count, and the caller looks at the others himself.
    """
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype is torch.bool:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`{name}` expects integer item indices, got {came}. "
            "Pass a permutation such as torch.argsort(x, descending=True)."
        )
    if value.dim() == 0 or value.shape[-1] != shape[-2]:
        raise ValueError(
            f"`{name}` expects one item per row, shape (..., {shape[-2]}), got "
            f"{tuple(value.shape)}. For the first k places give P.top(k)."
        )
    if everywhere:
        same_batch(name, value.shape[:-1], shape)
        in_range(name, value, shape[-1])
    return value.long()


def matrix(value: Tensor) -> Tensor:
    """Square floating-point matrices."""
    _floating("from_dense", value)
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


def logits(name: str, value: Tensor) -> Tensor:
    """Square floating-point matrices of affinities."""
    value = scores(name, value)
    if value.dim() < 2 or value.shape[-1] != value.shape[-2]:
        raise ValueError(
            f"`{name}` expects square matrices (..., n, n), got shape {tuple(value.shape)}. Rows "
            "are positions and columns are items; for one score per item use sinkhorn_sort."
        )
    return value


def per_item(name: str, value: Tensor, shape: torch.Size) -> Tensor:
    """One real number or flag per item, of any dtype that has an order."""
    if not isinstance(value, Tensor) or value.is_complex():
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`{name}` expects a tensor of real numbers, got {came}. "
            "Wrap the values with torch.as_tensor(...)."
        )
    try:
        return value.expand(shape)
    except RuntimeError:
        raise ValueError(
            f"`{name}` must have the shape of the lists, {tuple(shape)}, or broadcast to it, got "
            f"{tuple(value.shape)}. Give one value per item."
        ) from None


def flags(name: str, value: Tensor, shape: torch.Size) -> Tensor:
    """One flag per item, or one weight in floating point: labels are neither."""
    value = per_item(name, value, shape)
    if not (value.is_floating_point() or value.dtype is torch.bool):
        raise TypeError(
            f"`{name}` expects booleans, or weights in floating point, got {value.dtype}. Compare "
            "the labels: labels == label_of_the_query."
        )
    return value


def permutations(name: str, value: Tensor, shape: torch.Size | None = None) -> Tensor:
    """One item index per position, of the shape of the other permutations."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype is torch.bool:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`{name}` expects integer item indices, got {came}. "
            "Pass P.permutation() or torch.argsort(x, descending=True)."
        )
    if value.dim() == 0 or (shape is not None and value.shape != shape):
        expected = "(..., n)" if shape is None else str(tuple(shape))
        raise ValueError(
            f"`{name}` expects one item index per position, shape {expected}, got "
            f"{tuple(value.shape)}. Give every list its own permutation."
        )
    return value


def labels(value: Tensor, logits: Tensor) -> Tensor:
    """One class index per list of logits."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype is torch.bool:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`labels` expects integer class indices, got {came}. Convert them with .long()."
        )
    if value.shape != logits.shape[:-1]:
        raise ValueError(
            f"`labels` expects one class per list, shape {tuple(logits.shape[:-1])} for logits "
            f"{tuple(logits.shape)}, got {tuple(value.shape)}. Give indices, not one-hot rows."
        )
    in_range("labels", value, logits.shape[-1])
    return value.long()


def points(queries: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Two sets of points of one space."""
    for name, value in (("queries", queries), ("candidates", candidates)):
        scores(name, value)
        if value.dim() < 2:
            raise ValueError(
                f"`{name}` expects points (..., m, d), got shape {tuple(value.shape)}. "
                "One point has shape (1, d)."
            )
    if queries.shape[-1] != candidates.shape[-1]:
        raise ValueError(
            f"`queries` and `candidates` must be points of one space, got {queries.shape[-1]} and "
            f"{candidates.shape[-1]} features. Embed both with the same network."
        )
    return queries, candidates


def positive_tau(value: Tau, scores: Tensor) -> Tau:
    """A temperature that divides."""
    value = tau(value, scores)
    if isinstance(value, Tensor):
        zero = readable(value) and bool((value == 0).any())
    else:
        zero = not isinstance(value, Blur) and value == 0
    if zero:
        raise ValueError(
            "`tau` must be positive for a loss over pairs of items, got 0. "
            "For the hard value use the metric, for a gradient a small temperature."
        )
    return value


def ranking(value: Tensor, n: int) -> Tensor:
    """Item indices from the first place down, at most one per item."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype is torch.bool:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`ranking` expects integer item indices, got {came}. "
            "Pass items from the first place down, such as torch.argsort(x, descending=True)."
        )
    if value.dim() == 0 or value.shape[-1] > n:
        raise ValueError(
            f"`ranking` expects shape (..., k) with at most k = {n} places, one per item, got "
            f"{tuple(value.shape)}. Its last dimension lists items from the first place down."
        )
    return value.long()


def distinct_items(valid: Tensor, ranking: Tensor, n: int) -> None:
    """Rankings in which no item repeats and none is absent. Reads values."""
    if not bool(valid.all()):
        raise ValueError(
            f"`ranking` must list distinct items, from 0 to {n - 1} and present under the mask, "
            f"got {ranking}. Items stand in the order of their places."
        )


def full_ranking(value: Tensor, n: int) -> Tensor:
    """A ranking of all items."""
    value = ranking(value, n)
    if value.shape[-1] != n:
        raise ValueError(
            f"`ranking` must list all {n} items here, got {value.shape[-1]} places. "
            "Only `log_prob` takes the first places alone."
        )
    return value


def batch_of_rankings(value: Tensor, batch: torch.Size) -> torch.Size:
    """The batch shape of rankings together with that of the distribution."""
    try:
        return torch.broadcast_shapes(value.shape[:-1], batch)
    except RuntimeError:
        raise ValueError(
            f"`ranking` must have a batch shape that broadcasts against {tuple(batch)}, that of "
            f"the logits, got {tuple(value.shape[:-1])}. Give one ranking per list."
        ) from None


def costs(value: Tensor, shape: torch.Size) -> Tensor:
    """One cost per sample and list."""
    came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if not isinstance(value, Tensor) or value.shape != shape:
        raise ValueError(
            f"`cost` must give one number per sample and list, shape {tuple(shape)}, got {came}. "
            "It takes P of shape (samples, ..., n, n) and returns (samples, ...)."
        )
    return value


def sampled_costs(cost: Tensor, log_prob: Tensor) -> None:
    """Costs and log-probabilities of the same samples."""
    if not cost.is_floating_point():
        raise TypeError(
            f"`cost` expects a floating-point tensor, got {cost.dtype}. "
            "Convert it with cost.float()."
        )
    if cost.shape != log_prob.shape or cost.dim() == 0:
        raise ValueError(
            f"`score_function_loss(log_prob, cost)` expects two tensors of one shape (S, ...), got "
            f"{tuple(log_prob.shape)} and {tuple(cost.shape)}. Samples come first."
        )


def enough_to_choose(logits: Tensor, k: int) -> None:
    """Lists with k items that can be chosen, and no more that must be. Reads values."""
    can, must = (logits > -torch.inf).sum(-1), (logits == torch.inf).sum(-1)
    if bool(((can < k) | (must > k)).any()):
        raise ValueError(
            f"`KSubset(logits, k)` needs at least k = {k} logits above minus infinity in every "
            f"list, and at most so many at plus infinity, got {int(can.amin())} and "
            f"{int(must.amax())}. Choose fewer items, or split the lists by length."
        )


def subset(value: Tensor, shape: torch.Size) -> Tensor:
    """A boolean mask of chosen items per list."""
    if not isinstance(value, Tensor) or value.dtype is not torch.bool:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`value` expects a boolean tensor, True for the items of the subset, got {came}. "
            "Convert it with value.bool()."
        )
    try:
        fits = value.dim() and torch.broadcast_shapes(value.shape, shape)[-1] == value.shape[-1]
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"`value` expects one flag per item, a shape that broadcasts against {tuple(shape)}, "
            f"got {tuple(value.shape)}. Give one subset per list."
        )
    return value


def size_of_subset(value: Tensor, k: int) -> None:
    """Subsets of k items. Reads values."""
    sizes = value.sum(-1)
    if bool((sizes != k).any()):
        raise ValueError(
            f"`value` must have k = {k} items in every list, got {int(sizes[sizes != k][0])}. "
            "Other sizes have probability 0."
        )


def list_of_numbers(name: str, value: Tensor) -> Tensor:
    """Lists of real numbers of any dtype."""
    value = per_item(name, value, value.shape if isinstance(value, Tensor) else torch.Size())
    if value.dim() == 0:
        raise ValueError(
            f"`{name}` expects at least one dimension (..., n), got a 0-d tensor. "
            "A list of one item has shape (1,)."
        )
    return value


def per_sample(value: Tensor, shape: torch.Size) -> Tensor:
    """Something for every sample and list."""
    came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if not isinstance(value, Tensor) or value.shape[: len(shape)] != shape:
        raise ValueError(
            f"`function` must give something for every sample and list, a shape that begins with "
            f"{tuple(shape)}, got {came}. It takes scores (samples, ..., n)."
        )
    return value


def same_shape(name: str, value: Tensor, shape: torch.Size) -> Tensor:
    """An answer for every item of every sample and list."""
    came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if not isinstance(value, Tensor) or value.shape != shape:
        raise ValueError(
            f"`{name}` must answer with one number per item, shape {tuple(shape)}, got {came}. "
            "A mask of the largest, or ranks that rise with the scores, are such answers."
        )
    return value


def groups(name: str, values: Tensor, value: Tensor) -> Tensor:
    """One group number per row."""
    whole = isinstance(value, Tensor) and not (
        value.is_floating_point() or value.is_complex() or value.dtype is torch.bool
    )
    if not whole:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`{name}(groups)` expects one integer per row, got {came}. "
            "Number the groups, for example with torch.unique(..., return_inverse=True)."
        )
    if value.dim() != 1 or values.dim() == 0 or len(values) != len(value):
        raise ValueError(
            f"`{name}` expects values (N, ...) and groups (N,), got {tuple(values.shape)} and "
            f"{tuple(value.shape)}. Give one group per row."
        )
    return value


def grouped_lists(padded: Tensor, mask: Tensor, count: Tensor) -> None:
    """Padded lists of these lengths. Reads values, where they may be read."""
    longest = int(count.max()) if len(count) else 0
    lists = torch.Size((len(count), longest))
    if mask.dtype is not torch.bool:
        raise TypeError(
            f"`mask` expects a boolean tensor, True where the item exists, got {mask.dtype}. "
            "Convert it with mask.bool()."
        )
    fits = mask.shape == lists == padded.shape[:2]
    if not fits or (readable(mask) and bool((mask.sum(-1) != count).any())):
        raise ValueError(
            f"`unpad_groups` expects the lists that these groups make, (G, n) = {tuple(lists)}, "
            f"got padded {tuple(padded.shape)} and mask {tuple(mask.shape)}. Give it the mask and "
            "the groups of `pad_groups`."
        )


def paired_logps(policy: Tensor, reference: Tensor) -> None:
    """Log-probabilities of the same responses under two models."""
    if not isinstance(reference, Tensor) or reference.shape != policy.shape:
        came = tuple(reference.shape) if isinstance(reference, Tensor) else type(reference).__name__
        raise ValueError(
            f"`reference_logps` must have the shape of `policy_logps`, {tuple(policy.shape)}, got "
            f"{came}. Score the same responses with both models."
        )


def ties(value: Tensor | None, ranking: Tensor) -> Tensor | None:
    """One flag per place: whether it is tied with the one before."""
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.dtype is not torch.bool:
        came = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"`ties` expects booleans, True where a place is tied with the one before, got {came}. "
            "Compare the grades of neighbours."
        )
    try:
        return value.expand(ranking.shape)
    except RuntimeError:
        raise ValueError(
            f"`ties` must have the shape of the ranking, {tuple(ranking.shape)}, or broadcast to "
            f"it, got {tuple(value.shape)}. Give one flag per place."
        ) from None
