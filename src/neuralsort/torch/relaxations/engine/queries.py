"""What a relaxed permutation may be asked: its value, its gradient, and how that is composed.

Tensors are in sorted coordinates: payloads and results `(d, lists, n)`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from .bands import Bands, Gradients
from .blocks import BilinearGradient, Block, EntropyGradient, LogitGradient

Ask = Callable[["Query", Tensor], Tensor]


class Query(ABC):
    """One question. It holds nothing: its payload, if it has one, comes with every call."""

    @abstractmethod
    def value(self, bands: Bands, *payload: Tensor) -> Tensor:
        """The answer."""

    @abstractmethod
    def gradient(self, bands: Bands, grad: Tensor, *payload: Tensor) -> Gradients:
        """Gradients of `sum(grad * value)` to the scores, to their unit and to the payload."""

    @abstractmethod
    def factors(self, index: Tensor, rows: int, grad: Tensor, *payload: Tensor) -> list[Tensor]:
        """The gradient to the logits in factors a, b, w that may be differentiated once more.

        `dL[i, j] = P[i, j] (a_i . b_j - s_i) + w_i [i = j]`, whose rows sum to 0.
        """

    def to_payload(self, ask: Ask, grad: Tensor) -> Tensor:
        """The gradient to the payload, by another question."""
        return grad[:0]


class Product(Query):
    """P x, for x of shape `(d, lists, n)`."""

    def value(self, bands: Bands, x: Tensor) -> Tensor:  # pyright: ignore
        def visit(block: Block, _: Tensor, cols: Tensor) -> tuple[Tensor, None]:
            values, offset = block.centred(cols)
            return block.product(values) + offset, None

        return bands.sweep(visit, cols=x, rows_out=len(x))[0]

    def gradient(self, bands: Bands, grad: Tensor, x: Tensor) -> Gradients:  # pyright: ignore
        return bands.gradient(BilinearGradient, grad, x, len(x))

    def factors(self, index: Tensor, rows: int, grad: Tensor, x: Tensor) -> list[Tensor]:  # pyright: ignore
        return [grad, x, torch.zeros_like(index)]

    def to_payload(self, ask: Ask, grad: Tensor) -> Tensor:
        return ask(TRANSPOSED, grad)


class Transposed(Query):
    """P^T y, for y of shape `(d, lists, n)`."""

    def value(self, bands: Bands, y: Tensor) -> Tensor:  # pyright: ignore
        def visit(block: Block, rows: Tensor, _: Tensor) -> tuple[None, Tensor]:
            return None, block.transposed(rows)

        return bands.sweep(visit, rows=y, cols_out=len(y))[1]

    def gradient(self, bands: Bands, grad: Tensor, y: Tensor) -> Gradients:  # pyright: ignore
        to_scores, to_unit, _ = bands.gradient(BilinearGradient, y, grad)
        return to_scores, to_unit, PRODUCT.value(bands, grad)

    def factors(self, index: Tensor, rows: int, grad: Tensor, y: Tensor) -> list[Tensor]:  # pyright: ignore
        return [y, grad, torch.zeros_like(index)]

    def to_payload(self, ask: Ask, grad: Tensor) -> Tensor:
        return ask(PRODUCT, grad)


class PositionSums(Query):
    """`(2, lists, n)`: for each column its sum, and its sum of (row - own position)."""

    def value(self, bands: Bands) -> Tensor:  # pyright: ignore
        def visit(block: Block, rows: Tensor, _: Tensor) -> tuple[None, Tensor]:
            sums = block.transposed(torch.cat([rows, rows * block.row], 1))
            total, first = sums.split(1, 1)
            return None, torch.cat([total, first - total * block.position], 1)

        return bands.sweep(visit, rows=self._wanted(bands), cols_out=2)[1]

    def gradient(self, bands: Bands, grad: Tensor) -> Gradients:  # pyright: ignore
        def local(block: Block, rows: Tensor, cols: Tensor) -> LogitGradient:
            a = torch.cat([rows, rows * block.row], 1)
            alpha, beta = cols.split(1, 1)
            return BilinearGradient(block, a, torch.cat([alpha - beta * block.position, beta], 1))

        return bands.gradient(local, self._wanted(bands), grad)

    def factors(self, index: Tensor, rows: int, grad: Tensor) -> list[Tensor]:  # pyright: ignore
        own = (index < rows).to(index.dtype)
        a = torch.stack([own, own * index])
        return [a, torch.stack([grad[0] - grad[1] * index, grad[1]]), torch.zeros_like(index)]

    @staticmethod
    def _wanted(bands: Bands) -> Tensor:
        """`(1, lists, n)`: 1 for the rows that are wanted."""
        row = torch.arange(bands.n, device=bands.gaps.device) < bands.rows
        return row.to(bands.dtype).expand(1, bands.lists, bands.n)


class LogNorm(Query):
    """`(1, lists, n)`: minus the log of each row's weight on its own item."""

    def value(self, bands: Bands) -> Tensor:  # pyright: ignore
        def visit(block: Block, _rows: Tensor, _cols: Tensor) -> tuple[Tensor, None]:
            log = block.norm.log()
            return log if block.peak is None else log - block.peak, None

        return bands.sweep(visit, rows_out=1)[0]

    def gradient(self, bands: Bands, grad: Tensor) -> Gradients:  # pyright: ignore
        def local(block: Block, rows: Tensor, cols: Tensor) -> LogitGradient:
            return BilinearGradient(block, rows[:, :0], cols, rows)

        return bands.gradient(local, -grad, grad[:0])

    def factors(self, index: Tensor, rows: int, grad: Tensor) -> list[Tensor]:  # pyright: ignore
        return [grad[:0], grad[:0], -grad[0]]


class Entropy(Query):
    """`(1, lists, n)`: the entropy of each row in nats."""

    def value(self, bands: Bands) -> Tensor:  # pyright: ignore
        def visit(block: Block, _rows: Tensor, _cols: Tensor) -> tuple[Tensor, None]:
            return block.norm.log() + block.mean(torch.special.entr(block.weights)), None

        return bands.sweep(visit, rows_out=1)[0]

    def gradient(self, bands: Bands, grad: Tensor) -> Gradients:  # pyright: ignore
        def local(block: Block, rows: Tensor, _: Tensor) -> LogitGradient:
            return EntropyGradient(block, rows)

        return bands.gradient(local, grad, grad[:0])

    def factors(self, index: Tensor, rows: int, grad: Tensor) -> list[Tensor]:  # pyright: ignore
        raise RuntimeError(
            "second derivatives of `entropy()` are not available for long lists. "
            "Use P.to_dense() and compute the entropy from it."
        )


PRODUCT, TRANSPOSED = Product(), Transposed()
POSITION_SUMS, LOG_NORM, ENTROPY = PositionSums(), LogNorm(), Entropy()
