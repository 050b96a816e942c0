"""A batch of blocks of rows: their weights, products with them, and gradients to their logits."""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

# Terms that are summed in float32: the sums of longer rows are added in float64.
LONGEST_SUM = 512
# Windows that are cut into pieces are made a multiple of this.
SMALLEST_PIECE = 128
# Weights are powers of 2: torch's `exp` takes ten times as long where its result is too small for
# a float32, as it is at the ends of many windows, and `exp2` does not.
INVERSE_LOG_2 = 1 / math.log(2)
# How many times the mass of a row that of another of its block may be, for float32 to do.
LOPSIDED = 16.0


class Workspace:
    """Memory for what is made and used up again and again in a sweep.

    It is asked for once: to ask for as much anew takes longer than to fill it.
    """

    def __init__(self) -> None:
        self._held: dict[torch.dtype, Tensor] = {}

    def empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of this shape, and of the kind of another, in place of the one before."""
        count = math.prod(shape)
        held = self._held.get(like.dtype)
        if held is None or held.numel() < count:
            held = self._held[like.dtype] = like.new_empty(count)
        return held[:count].view(shape)


def combined(a: Tensor, b: Tensor, c: Tensor, space: Workspace | None) -> Tensor:
    """`a + b * c`, in that space if there is one."""
    if space is None:
        return torch.addcmul(a, b, c)
    shape = torch.broadcast_shapes(a.shape, b.shape, c.shape)
    return torch.addcmul(a, b, c, out=space.empty(shape, a))


@dataclass
class Block:
    """A batch of B blocks of S rows, each with a window of W columns, expanded about a centre."""

    weights: Tensor  # (B, pieces, K, W / pieces) unnormalised, at K nodes
    interpolate: Tensor | None  # (S, K) or (B, S, K); None where nodes are rows
    left: int  # columns before the block's own
    peak: Tensor | None = None  # (B, 1, S) log-weight of each row's own item; None where it is 0
    lever: Tensor | None = None  # like weights: how far the column's score lies below the row's

    def __post_init__(self) -> None:
        _, self.pieces, nodes, self.piece = self.weights.shape
        width = self.pieces * self.piece
        size = nodes if self.interpolate is None else self.interpolate.shape[-2]
        self.own = slice(self.left, self.left + size)  # the columns that are the block's rows
        self.centre = self.left + size // 2
        index = torch.arange(width, dtype=self.weights.dtype, device=self.weights.device)
        self.position = index + (0.5 - self.centre)  # (W,) ranks from the middle of the block
        self.row = self.position[self.own]  # (S,) the same for the rows

    @functools.cached_property
    def norm(self) -> Tensor:
        """The mass of each row, (B, 1, S)."""
        return self._to_rows(_added(self.weights.sum(-1).unsqueeze(2)))

    @property
    def entries(self) -> int:
        """How many float32 numbers take as much memory as its weights."""
        kept = [x for x in (self.weights, self.lever) if x is not None]
        return sum(x.numel() * x.element_size() for x in kept) // 4

    def lopsided(self) -> bool:
        """Whether rounding at heavy nodes would show in light rows that are interpolated."""
        if self.interpolate is None or self.weights.dtype is torch.float64:
            return False
        heavy, light = self.norm.amax(-1), self.norm.amin(-1)
        return not bool((heavy < LOPSIDED * light).all())

    def _to_rows(self, nodes: Tensor) -> Tensor:
        return nodes if self.interpolate is None else nodes @ self.interpolate.mT

    def product(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """P x: (B, d, W) -> (B, d, S)."""
        weights = self.weights if weights is None else weights
        x = x.unflatten(-1, (self.pieces, self.piece)).transpose(1, 2)  # (B, pieces, d, piece)
        return self._to_rows(_added(x @ weights.mT)) / self.norm

    def mean(self, weights: Tensor) -> Tensor:
        """The product of these weights, normalised like P, with ones: (B, 1, S)."""
        return self._to_rows(_added(weights.sum(-1).unsqueeze(2))) / self.norm

    def transposed(self, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The block's share of P^T y: (B, d, S) -> (B, d, W)."""
        y = y / self.norm
        y = y if self.interpolate is None else _matmul(y, self.interpolate)
        shares = y.unsqueeze(1) @ (self.weights if weights is None else weights)
        return shares.transpose(1, 2).flatten(2)

    def centred(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values about a typical one of the block's own, so that no digits go to an offset; and it.

        Rows of a block that is interpolated mix all of its values. Rows of the smallest blocks need
        not: there it is one that a few values, however large, do not move.
        """
        own = x[..., self.own]
        if self.interpolate is None:
            offset = own.median(-1, keepdim=True).values
        else:
            offset = own.mean(-1, keepdim=True)
        return x - offset, offset


def in_pieces(columns: Tensor) -> Tensor:
    """Windows (B, W) as `Block` keeps their weights: (B, pieces, 1, W / pieces)."""
    width = columns.shape[1]
    piece = width if width <= LONGEST_SUM else math.gcd(width, LONGEST_SUM)
    return columns.reshape(len(columns), -1, 1, piece)


def _added(pieces: Tensor) -> Tensor:
    """Sums over pieces, added in float64: (B, pieces, d, K) -> (B, d, K)."""
    if pieces.shape[1] == 1:
        return pieces.squeeze(1)
    return pieces.sum(1, dtype=torch.float64).to(pieces.dtype)


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, long sums in pieces that are added in float64."""
    if a.shape[-1] <= LONGEST_SUM:
        return a @ b
    pieces = zip(a.split(LONGEST_SUM, -1), b.split(LONGEST_SUM, -2), strict=True)
    first, *others = ((a_k @ b_k).double() for a_k, b_k in pieces)
    return sum(others, first).to(a.dtype)


class BilinearGradient:
    """Gradient of `sum(a * (P b)) + sum(w * log P_own)` to a block's logits, kept in factors.

    `dL[i, j] = P[i, j] (a_i . b_j - s_i) + w_i [j is row i's own item]`, whose rows sum to 0.
    """

    def __init__(self, block: Block, a: Tensor, b: Tensor, w: Tensor | None = None) -> None:
        self.block, self.w = block, w
        self.b, _ = block.centred(b)
        s = (a * block.product(self.b)).sum(1, keepdim=True)
        self.y = torch.cat([a, s if w is None else s + w], 1)  # (B, d + 1, S)

    def columns(self, z: list[Tensor]) -> list[Tensor]:
        """Sums over rows of `z_i dL[i, j]` for each z: (S,) -> (B, 1, W)."""
        shares = self.block.transposed(torch.cat([self.y * z_i for z_i in z], 1))
        parts = shares.split(self.y.shape[1], 1)
        self.payload = parts[0][:, :-1]  # P^T a, for z = 1
        sums = [(self.b * u[:, :-1]).sum(1, keepdim=True) - u[:, -1:] for u in parts]
        if self.w is not None:
            for total, z_i in zip(sums, z, strict=True):
                total[..., self.block.own] += z_i * self.w
        return sums

    def tempered(self) -> Tensor:
        """Sums over columns of `dL[i, j]` times the log-weight, (B, 1, S)."""
        spread = torch.special.entr(self.block.weights)
        moved = self.block.product(self.b, spread)
        total = self.y[:, -1:] * self.block.mean(spread)
        total = total - (self.y[:, :-1] * moved).sum(1, keepdim=True)
        if self.w is not None and self.block.peak is not None:
            total = total + self.w * self.block.peak
        return total

    def levered(self) -> tuple[Tensor, Tensor]:
        """Sums of `lever[i, j] dL[i, j]` over rows, (B, 1, W), and over columns, (B, 1, S)."""
        assert self.block.lever is not None
        weights = self.block.weights * self.block.lever
        shares = self.block.transposed(self.y, weights)
        to_columns = (self.b * shares[:, :-1]).sum(1, keepdim=True) - shares[:, -1:]
        moved = self.block.product(pad(self.b, (0, 0, 0, 1), value=1.0), weights)
        to_rows = (self.y * moved)[:, :-1].sum(1, keepdim=True) - (self.y * moved)[:, -1:]
        self.payload = self.block.transposed(self.y[:, :-1])
        return to_columns, to_rows


class EntropyGradient:
    """Gradient of `sum(w * entropy)` to a block's logits: `w_i P[i, j] (h_ij - mean of h_i)`.

    Here `h_ij` is minus the log of the unnormalised weight.
    """

    def __init__(self, block: Block, w: Tensor) -> None:
        self.block, self.w = block, w
        self.payload = w.new_empty(len(w), 0, len(block.position))  # none
        self.spread = torch.special.entr(block.weights)
        self.mean = block.mean(self.spread)

    def columns(self, z: list[Tensor]) -> list[Tensor]:
        """Sums over rows of `z_i dL[i, j]` for each z: (S,) -> (B, 1, W)."""
        y = torch.cat([self.w * z_i for z_i in z], 1)
        sums = self.block.transposed(y, self.spread) - self.block.transposed(y * self.mean)
        return list(sums.split(1, 1))

    def tempered(self) -> Tensor:
        """Sums over columns of `dL[i, j]` times the log-weight, (B, 1, S)."""
        tiny = torch.finfo(self.spread.dtype).tiny
        square = self.spread * self.block.weights.clamp(min=tiny).log()
        return self.w * (self.block.mean(square) + self.mean**2)

    def levered(self) -> tuple[Tensor, Tensor]:
        """Sums of `lever[i, j] dL[i, j]` over rows, (B, 1, W), and over columns, (B, 1, S)."""
        assert self.block.lever is not None
        spread, weights = (x * self.block.lever for x in (self.spread, self.block.weights))
        to_columns = self.block.transposed(self.w, spread)
        to_columns = to_columns - self.block.transposed(self.w * self.mean, weights)
        return to_columns, self.w * (self.block.mean(spread) - self.mean * self.block.mean(weights))


LogitGradient = BilinearGradient | EntropyGradient
