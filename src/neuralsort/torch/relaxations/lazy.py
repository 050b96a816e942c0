"""Relaxed permutations of scores: dense for short lists, matrix-free for long ones."""

from typing import Protocol

import torch
from torch import Tensor

from .. import _checks
from ..permutation import RelaxedPermutation, working
from .ordering import Ordered

# Lists up to this length are multiplied as a matrix.
LONGEST_DENSE = 512


class Kernel(Protocol):
    """What a relaxation of scores must answer, for lists in sorted order.

    Matrix-free methods take and give `(d, lists, n)` in sorted coordinates.
    """

    def matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        """The first rows of the matrix, columns in the order of the items."""
        ...

    def fall(self, ordered: Ordered, place: Tensor) -> Tensor:
        """How far the item at sorted position `place[i]` lies below row i's peak, in logits."""
        ...

    def matrix_free(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> "MatrixFree":
        """The operator that never writes the matrix."""
        ...


class MatrixFree(Protocol):
    """Products and sums of a relaxed permutation, `(d, lists, n)` in sorted coordinates."""

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
        """`(lists, n)`: minus the log-weight of each row's own item."""
        ...

    def entropy(self) -> Tensor:
        """`(lists, n)`: entropies of the rows."""
        ...


class ScorePermutation(RelaxedPermutation):
    """The relaxed permutation that sorts scores, largest first."""

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        ordered: Ordered,
        dtype: torch.dtype,
        rows: int | None = None,
    ) -> None:
        self._name, self._kernel, self._ordered = name, kernel, ordered
        self._dtype = dtype
        self._rows = ordered.n if rows is None else rows
        # What was computed, apart by whether gradients were on.
        self._matrices: dict[bool, Tensor] = {}
        self._engines: dict[tuple[torch.dtype, bool], MatrixFree] = {}

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

    def _kind(self) -> str:
        return f"{self._name}, {'matrix-free' if self._long() else 'dense'}"

    def _long(self) -> bool:
        return self._ordered.n > LONGEST_DENSE

    def _matrix(self) -> Tensor:
        dtype, differentiable = working(self._dtype), self._ordered.differentiable
        if self._ordered.n == 0:
            return self._ordered.scores.to(dtype).unsqueeze(-2)[..., :0, :]
        if differentiable not in self._matrices:
            matrix = self._kernel.matrix(self._ordered, dtype, self._rows)
            self._matrices[differentiable] = matrix
        return self._matrices[differentiable]

    def permutation(self) -> Tensor:
        """The stable descending sort of the scores, `(..., n)`."""
        return self._ordered.perm[..., : self._rows]

    def is_unimodal(self) -> Tensor:
        """True by the paper's theorem, for every list without a NaN."""
        return ~self._ordered.open_gaps.isnan().any(-1)

    def _top(self, k: int) -> RelaxedPermutation:
        return ScorePermutation(self._name, self._kernel, self._ordered, self._dtype, k)

    def sort(self, x: Tensor) -> Tensor:
        """Values in the order of P; its hard counterpart is `x.gather(-1, permutation)`.

        Args:
            x: `(..., n)`. One value per item; `P.sort(scores)` is the soft sort.

        Returns:
            `(..., n)`, the value at each position. Items that are absent or infinitely high or
            low take no part in any other place, so whatever `x` holds for them stays there.
        """
        x = _checks.list_values(x, self.shape, "P.sort(x)")
        if not self._ordered.n:
            return super().sort(x)
        apart = self._ordered.scores.isinf()
        alone = apart & ~x.isfinite()
        batch = alone.shape[:-1]
        common = _common_offset(x.detach(), apart)
        soft = super().sort(torch.where(alone, 0.0, x - common)) + common.to(self._dtype)
        perm = self.permutation().expand(*batch, self._rows)
        own = x.expand(alone.shape).gather(-1, perm).to(soft.dtype)
        return torch.where(alone.gather(-1, perm), own, soft)

    # -- long lists ------------------------------------------------------------------------------

    def _engine(self) -> MatrixFree:
        return self._engine_for(self._ordered, working(self._dtype))

    def _product(self, x: Tensor) -> Tensor:
        return self._multiply("product", x) if self._long() else super()._product(x)

    def _transposed(self, y: Tensor) -> Tensor:
        return self._multiply("transposed", y) if self._long() else super()._transposed(y)

    def _multiply(self, name: str, x: Tensor) -> Tensor:
        o = self._ordered
        if o.batch.numel() == 1 and x.shape[:-2].numel() != 1:  # one P, many payloads: one sweep
            extra = x.shape[:-2]
            folded = x.movedim(-2, 0).flatten(1)  # (n, ... d)
            one = self._multiply_lists(name, o, folded.expand(*o.batch, *folded.shape))
            one = one.reshape(one.shape[-2], *extra, x.shape[-1]).movedim(0, -2)
            return one.expand(*torch.broadcast_shapes(extra, o.batch), *one.shape[-2:])
        batch = torch.broadcast_shapes(o.batch, x.shape[:-2])
        return self._multiply_lists(name, o.expand(batch), x.expand(*batch, *x.shape[-2:]))

    def _multiply_lists(self, name: str, o: Ordered, x: Tensor) -> Tensor:
        """One product for `(..., n, d)` in the order of items, or `(..., rows, d)` of rows."""
        engine = self._engine_for(o, x.dtype)
        d = x.shape[-1]
        if name == "product":
            x = x.gather(-2, o.perm.unsqueeze(-1).expand(*o.perm.shape, d))
        else:
            x = torch.nn.functional.pad(x, (0, 0, 0, o.n - self._rows))
        lists = x.reshape(o.batch.numel(), o.n, d).permute(2, 0, 1).contiguous()
        y = getattr(engine, name)(lists).permute(1, 2, 0).reshape(*o.batch, o.n, d)
        if name == "product":
            y = y[..., : self._rows, :]
        else:
            y = y.gather(-2, o.rank().unsqueeze(-1).expand(*o.perm.shape, d))
        return y + o.poison().unsqueeze(-1).to(y.dtype)

    def _engine_for(self, o: Ordered, dtype: torch.dtype) -> MatrixFree:
        if o is not self._ordered:
            return self._kernel.matrix_free(o, dtype, self._rows)
        key = dtype, o.differentiable
        if key not in self._engines:
            self._engines[key] = self._kernel.matrix_free(o, dtype, self._rows)
        return self._engines[key]

    def _rank(self) -> Tensor:
        if not self._long():
            return super()._rank()
        o = self._ordered
        total, moment = self._engine().position_sums()
        place = torch.arange(1, o.n + 1, device=self.device, dtype=total.dtype)
        ranks = (place + moment / total).reshape(o.perm.shape)
        return ranks.gather(-1, o.rank()) + o.poison().to(ranks.dtype)

    def _log_prob(self, perm: Tensor) -> Tensor:
        batch = torch.broadcast_shapes(perm.shape[:-1], self._ordered.batch)
        o = self._ordered.expand(batch)
        place = o.rank().gather(-1, perm.expand(*batch, perm.shape[-1]))
        fall = self._kernel.fall(o, place)
        if self._long():
            log_norm = self._engine().log_norm().reshape(self._ordered.perm.shape)
            log_norm = log_norm[..., : self._rows]
        else:
            own = self.permutation().unsqueeze(-1)
            log_norm = -self._matrix().gather(-1, own).squeeze(-1).log()
        poison = self._ordered.poison().to(log_norm.dtype)
        return -fall.to(log_norm.dtype) - (log_norm + poison)

    def _entropy(self) -> Tensor:
        if not self._long():
            return super()._entropy()
        entropy = self._engine().entropy().reshape(self._ordered.perm.shape)
        return entropy[..., : self._rows] + self._ordered.poison().to(entropy.dtype)


def _common_offset(x: Tensor, apart: Tensor) -> Tensor:
    """What all values that mix have in common, `(..., 1)`; 0 if they lie on both sides of 0.

    Rows sum to 1, so an offset may be taken out and put back. In the gradient to the scores it
    would cancel, and cost digits. It is the value nearest to 0: no result loses any.
    """
    low = torch.where(apart, torch.inf, x).amin(-1, keepdim=True)
    high = torch.where(apart, -torch.inf, x).amax(-1, keepdim=True)
    common = low.clamp(min=0) + high.clamp(max=0)
    return torch.where(common.isfinite(), common, 0.0)
