"""Relaxed permutations of scores: written down for short lists, matrix-free for long ones."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import _checks
from ..arrays import known_finite, working
from ..permutation import DensePermutation, HardPermutation, RelaxedPermutation
from ..pytrees import pytree
from .on_host import lacks_float64, on_host
from .ordering import Ordered

# Lists up to this length are multiplied as a matrix.
LONGEST_DENSE = 512


class Operator(Protocol):
    """What a matrix answers that is not written: `(d, lists, n)` in sorted coordinates."""

    def product(self, x: Tensor) -> Tensor:
        """P x."""
        ...

    def transposed(self, y: Tensor) -> Tensor:
        """P^T y."""
        ...

    def position_sums(self) -> Tensor:
        """`(2, lists, n)`: column sums, and column sums of (row - own position)."""
        ...

    def log_norm(self) -> Tensor:
        """`(1, lists, n)`: minus the log-weight of each row's own item."""
        ...

    def entropy(self) -> Tensor:
        """`(1, lists, n)`: entropies of the rows."""
        ...


class Kernel(ABC):
    """What a relaxation of scores must answer, for lists in sorted order."""

    name: ClassVar[str]
    unimodal: ClassVar[bool] = False  # whether the paper's definition holds whatever the scores

    needs_float64: ClassVar[bool] = False  # for short lists too; for long ones all do
    dense_share: ClassVar[float] = 1.0  # of `LONGEST_DENSE`, up to which a matrix is worth it

    def options(self) -> tuple[Any, ...]:
        """What it was made with, plain values."""
        return ()

    @classmethod
    def of(cls, options: tuple[Any, ...], ordered: Ordered) -> "Kernel":
        """Such a kernel for these lists."""
        return cls(*options)

    @abstractmethod
    def matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        """The first rows of the matrix, columns in the order of the items."""

    def sorted(self, ordered: Ordered, x: Tensor, rows: int) -> Tensor | None:
        """The product with values x, `(..., rows)`, where there is a shorter way to it."""
        return None

    def memberships(self, ordered: Ordered, k: Tensor) -> Tensor | None:
        """Sums of the first k rows, where there is a shorter way than by the matrix."""
        return None


class LazyKernel(Kernel):
    """A relaxation that multiplies without its matrix."""

    @abstractmethod
    def fall(self, ordered: Ordered, place: Tensor) -> Tensor:
        """How far the item at sorted position `place[i]` lies below row i's own, in logits."""

    @abstractmethod
    def operator(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Operator:
        """The operator that never writes the matrix."""


def relaxed(
    kernel: LazyKernel, scores: Tensor, tau: float | Tensor, mask: Tensor | None, power: float = 1.0
) -> RelaxedPermutation:
    """The relaxed permutation of checked scores, in the form that suits their length."""
    eager = scores.device.type == "cpu" and not torch.compiler.is_compiling()
    longest = int(LONGEST_DENSE * kernel.dense_share) if eager else LONGEST_DENSE
    long = scores.shape[-1] > longest and not scores.is_meta  # whose matrix takes no memory
    if (long or kernel.needs_float64) and lacks_float64(scores.device):
        return on_host(relaxed, scores.device, kernel, scores, tau, mask, power)
    kind = LazyPermutation if long else ShortPermutation
    hard = unrelaxed(scores, tau, mask)
    return hard or kind(kernel, Ordered(scores, tau, mask, power), scores.dtype)


def unrelaxed(scores: Tensor, tau: float | Tensor, mask: Tensor | None) -> HardPermutation | None:
    """The hard permutation where nothing is to be relaxed: at a temperature of 0, or no items."""
    n = scores.shape[-1]
    if n and (isinstance(tau, Tensor) or tau != 0):
        return None
    return HardPermutation(Ordered(scores, 1.0, mask).perm, n, scores.dtype)


class ScorePermutation(RelaxedPermutation):
    """The relaxed permutation that sorts scores, largest first; its kinds are below."""

    _form = "dense"

    def __init__(
        self, kernel: Kernel, ordered: Ordered, dtype: torch.dtype, rows: int | None = None
    ) -> None:
        self._kernel, self._ordered = kernel, ordered
        self._dtype = dtype
        self._rows = ordered.n if rows is None else rows
        self._matrices: dict[tuple[bool, bool], Tensor] = {}  # apart by mode

    @property
    def shape(self) -> torch.Size:
        """`(..., n, n)`, or `(..., k, n)` after `top(k)`."""
        return torch.Size((*self._ordered.batch, self._rows, self._ordered.n))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scores, and of what comes out."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """Where it lives."""
        return self._ordered.scores.device

    def _taken_apart(self) -> tuple[list[Tensor], Any]:
        self._ordered.check_unchanged()
        scores, tau, mask = self._ordered.given
        parts = [x for x in (scores, tau, mask) if isinstance(x, Tensor)]
        number = None if isinstance(tau, Tensor) else tau
        kernel = type(self._kernel), self._kernel.options()
        return parts, (*kernel, number, mask is not None, self._ordered.power, self._rows)

    @classmethod
    def _put_together(cls, parts: list[Tensor], rest: Any) -> Any:
        device = parts[0].device
        if (cls._form != "dense" or rest[0].needs_float64) and lacks_float64(device):
            return on_host(lambda *there: cls._put_together(list(there), rest), device, *parts)
        kernel, options, tau, masked, power, rows = rest
        mask = parts[-1] if masked else None
        ordered = Ordered(parts[0], parts[1] if tau is None else tau, mask, power)
        return cls(kernel.of(options, ordered), ordered, parts[0].dtype, rows)

    def _children(self) -> list[Tensor]:
        batch, parts = self._ordered.batch, self._taken_apart()[0]
        lists = len(batch)  # a temperature may be one for all of them
        return [
            x if x.shape[:-1] == batch and x.dim() > lists else x.expand(*batch, 1) for x in parts
        ]

    def _cast(self, dtype: torch.dtype) -> "ScorePermutation":
        parts, rest = self._taken_apart()
        return type(self)._put_together([parts[0].to(dtype), *parts[1:]], rest)

    def _kind(self) -> str:
        return f"{self._kernel.name}, {self._form}"

    def _matrix(self) -> Tensor:
        self._ordered.check_unchanged()
        mode = self._ordered.mode
        if mode not in self._matrices:
            matrix = self._kernel.matrix(self._ordered, working(self._dtype), self._rows)
            self._matrices[mode] = matrix
        return self._matrices[mode]

    def _memberships(self, k: Tensor) -> Tensor:
        self._ordered.check_unchanged()
        weights = self._kernel.memberships(self._ordered, k)
        return super()._memberships(k) if weights is None else weights

    def permutation(self) -> Tensor:
        """The stable descending sort of the scores, `(..., n)`."""
        return self._ordered.perm[..., : self._rows]

    def is_unimodal(self) -> Tensor:
        """True by a theorem where there is one, for every list without a NaN; else as it is."""
        if not self._kernel.unimodal:
            return DensePermutation(self.to_dense().detach()).is_unimodal()
        return ~self._ordered.open_gaps.isnan().any(-1)

    def _top(self, k: int) -> RelaxedPermutation:
        return type(self)(self._kernel, self._ordered, self._dtype, k)

    def sort(self, x: Tensor) -> Tensor:
        """Values in the order of P; its hard counterpart is `x.gather(-1, permutation)`.

        Args:
            x: `(..., n)`. One value per item; `P.sort(scores)` is the soft sort.

        Returns:
            `(..., n)`, the value at each position. Items that are absent or infinitely high or
            low take no part in any other place, so whatever `x` holds for them stays there.
        """
        x = _checks.list_values(x, self.shape, "P.sort(x)")
        out = torch.promote_types(self._dtype, x.dtype)
        x = x.to(working(out))
        scores = self._ordered.scores
        if self._ordered.mode not in self._matrices:
            self._ordered.check_unchanged()
            known = self._kernel.sorted(self._ordered, x, self._rows)
            if known is not None:
                return known.to(out)
        if known_finite(x) and (scores is x or known_finite(scores)):
            low, high = x.detach().aminmax(dim=-1, keepdim=True)
            common = torch.clamp(torch.zeros_like(low), low, high)
            return (self._product((x - common).unsqueeze(-1)).squeeze(-1) + common).to(out)
        apart = self._ordered.scores.isinf()
        alone = apart & ~x.isfinite()
        common = _common_offset(x.detach(), apart)
        soft = self._product(torch.where(alone, 0.0, x - common).unsqueeze(-1)).squeeze(-1) + common
        perm = self.permutation().expand(*alone.shape[:-1], self._rows)
        own = x.expand(alone.shape).gather(-1, perm)
        return torch.where(alone.gather(-1, perm), own, soft).to(out)


def _common_offset(x: Tensor, apart: Tensor) -> Tensor:
    """What all values that mix have in common, `(..., 1)`; 0 if they lie on both sides of 0.

    Rows sum to 1, so an offset may be taken out and put back. In the gradient to the scores it
    would cancel, and cost digits. It is the value nearest to 0: no result loses any.
    """
    low = torch.where(apart, torch.inf, x).amin(-1, keepdim=True)
    high = torch.where(apart, -torch.inf, x).amax(-1, keepdim=True)
    common = low.clamp(min=0) + high.clamp(max=0)
    return torch.where(common.isfinite(), common, 0.0)


@pytree
@final
class ShortPermutation(ScorePermutation):
    """Written down, but for logarithms of weights too small for the matrix."""

    _kernel: LazyKernel  # pyright: ignore

    def _log_prob(self, perm: Tensor) -> Tensor:
        own = self.permutation().unsqueeze(-1)
        log_norm = -self._matrix().gather(-1, own).squeeze(-1).log()
        return log_weights(self._kernel, self._ordered, perm, log_norm)


def log_weights(kernel: LazyKernel, ordered: Ordered, perm: Tensor, log_norm: Tensor) -> Tensor:
    """Log-weights of one item per row, `(..., rows)`, however small they are."""
    batch = torch.broadcast_shapes(perm.shape[:-1], ordered.batch)
    o = ordered.expand(batch)
    place = o.rank().gather(-1, perm.expand(*batch, perm.shape[-1]))
    fall = kernel.fall(o, place).to(log_norm.dtype)
    return -fall - (log_norm + ordered.poison().to(log_norm.dtype))


@pytree
@final
class LazyPermutation(ScorePermutation):
    """Never written down: every answer comes from an operator in sorted coordinates."""

    _kernel: LazyKernel  # pyright: ignore
    _form = "matrix-free"
    _written = False

    def __init__(
        self, kernel: Kernel, ordered: Ordered, dtype: torch.dtype, rows: int | None = None
    ) -> None:
        super().__init__(kernel, ordered, dtype, rows)
        self._operators: dict[tuple, Operator] = {}  # apart by dtype and mode

    def _operator(self, ordered: Ordered, dtype: torch.dtype) -> Operator:
        self._ordered.check_unchanged()
        if ordered is not self._ordered:
            return self._kernel.operator(ordered, dtype, self._rows)
        key = dtype, ordered.mode
        if key not in self._operators:
            self._operators[key] = self._kernel.operator(ordered, dtype, self._rows)
        return self._operators[key]

    def _product(self, x: Tensor) -> Tensor:
        o, x, unfold = self._lists_for(x)
        sorted_x = x.gather(-2, o.perm.unsqueeze(-1).expand(*o.perm.shape, x.shape[-1]))
        y = self._operator(o, x.dtype).product(_to_lists(sorted_x))
        return unfold(_from_lists(y, o)[..., : self._rows, :])

    def _transposed(self, y: Tensor) -> Tensor:
        o, y, unfold = self._lists_for(pad(y, (0, 0, 0, self._ordered.n - self._rows)))
        x = _from_lists(self._operator(o, y.dtype).transposed(_to_lists(y)), o)
        return unfold(x.gather(-2, o.rank().unsqueeze(-1).expand(*o.perm.shape, x.shape[-1])))

    def _lists_for(self, x: Tensor):
        """The lists and a payload `(..., n, d)` of one batch, and how to undo what that took."""
        o = self._ordered
        if o.batch.numel() != 1 or x.shape[:-2].numel() == 1:
            batch = torch.broadcast_shapes(o.batch, x.shape[:-2])
            return o.expand(batch), x.expand(*batch, *x.shape[-2:]), lambda y: y
        # One P, many payloads: one sweep.
        extra, d = x.shape[:-2], x.shape[-1]
        folded = x.movedim(-2, 0).flatten(1)  # (n, ... d)

        def unfold(y: Tensor) -> Tensor:
            y = y.reshape(y.shape[-2], *extra, d).movedim(0, -2)
            return y.expand(*torch.broadcast_shapes(extra, o.batch), *y.shape[-2:])

        return o, folded.expand(*o.batch, *folded.shape), unfold

    def _rank(self) -> Tensor:
        o = self._ordered
        total, moment = self._operator(o, working(self._dtype)).position_sums()
        place = torch.arange(1, o.n + 1, device=self.device, dtype=total.dtype)
        ranks = (place + moment / total).reshape(o.perm.shape)
        return ranks.gather(-1, o.rank()) + o.poison().to(ranks.dtype)

    def _log_prob(self, perm: Tensor) -> Tensor:
        log_norm = self._of_rows(self._operator(self._ordered, working(self._dtype)).log_norm())
        return log_weights(self._kernel, self._ordered, perm, log_norm)

    def _entropy(self) -> Tensor:
        entropy = self._of_rows(self._operator(self._ordered, working(self._dtype)).entropy())
        return entropy + self._ordered.poison().to(entropy.dtype)

    def _of_rows(self, x: Tensor) -> Tensor:
        return x.reshape(self._ordered.perm.shape)[..., : self._rows]


def _to_lists(x: Tensor) -> Tensor:
    """`(..., n, d)` as `(d, lists, n)`."""
    *batch, n, d = x.shape
    return x.reshape(torch.Size(batch).numel(), n, d).permute(2, 0, 1).contiguous()


def _from_lists(y: Tensor, o: Ordered) -> Tensor:
    """The inverse, NaN for lists that hold a NaN."""
    y = y.permute(1, 2, 0).reshape(*o.batch, o.n, len(y))
    return y + o.poison().unsqueeze(-1).to(y.dtype)
