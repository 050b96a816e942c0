"""Problems together with their answer: scores built from the permutation that sorts them.

Scores are whole multiples of a power of two, so that every dtype holds them, and sums of a few of
them, exactly. Hypothesis draws the permutation, the gaps (zero for ties), an offset and the scale.
"""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

LARGEST_OFFSET = {
    torch.float64: 2**40,
    torch.float32: 2**20,
    torch.bfloat16: 100,
    torch.float16: 1000,
}
"""In steps: what the significand holds beside the gaps."""

EXPONENTS = {
    torch.float64: (-150, 150),
    torch.float32: (-30, 30),
    torch.bfloat16: (-30, 30),
    torch.float16: (-14, 4),
}
"""Scales 2^e whose squares, too, have room in the type that computes."""


@dataclass(frozen=True)
class Sortable:
    """Scores whose order is known."""

    scores: Tensor  # (n,)
    order: list[int]  # the stable descending permutation
    step: float  # distinct scores differ by at least this

    def __len__(self) -> int:
        return len(self.order)


@st.composite
def sortables(
    draw: st.DrawFn,
    dtype: torch.dtype = torch.float64,
    *,
    smallest: int = 1,
    longest: int = 9,
    ties: bool = True,
    scaled: bool = True,
) -> Sortable:
    n = draw(st.integers(smallest, longest), label="n")
    gaps = draw(st.lists(st.integers(0 if ties else 1, 8), min_size=n - 1, max_size=n - 1))
    limit = LARGEST_OFFSET[dtype]
    steps = [draw(st.sampled_from((0, limit, -limit)) | st.integers(-limit, limit), label="offset")]
    for gap in gaps:
        steps.append(steps[-1] - gap)

    places = draw(st.permutations(range(n)), label="places")
    order: list[int] = []
    for value in dict.fromkeys(steps):  # tied items come in the order of their indices
        order += sorted(places[i] for i in range(n) if steps[i] == value)

    lowest, highest = EXPONENTS[dtype]
    exponents = st.sampled_from((0, lowest, highest)) | st.integers(lowest, highest)
    step = 2.0 ** (draw(exponents, label="exponent") if scaled else 0)
    scores = torch.zeros(n, dtype=torch.float64)
    scores[torch.tensor(order)] = torch.tensor(steps, dtype=torch.float64) * step
    assert torch.equal(scores.to(dtype).double(), scores)
    return Sortable(scores.to(dtype), order, step)


@st.composite
def masked_sortables(
    draw: st.DrawFn, dtype: torch.dtype = torch.float64, **options
) -> tuple[Sortable, Tensor]:
    """Scores with a mask; the order is that of the present items, then the absent ones."""
    whole = draw(sortables(dtype, **options))
    n = len(whole)
    mask = draw(st.lists(st.booleans(), min_size=n, max_size=n), label="mask")
    present = [j for j in whole.order if mask[j]]
    absent = [j for j in range(n) if not mask[j]]
    return Sortable(whole.scores, present + absent, whole.step), torch.tensor(mask)


def strange_scores(dtype: torch.dtype, longest: int = 8) -> st.SearchStrategy[Tensor]:
    """Any finite numbers: enormous, tiny, denormal, equal, signed zeros."""
    info = torch.finfo(dtype)
    peculiar = (0.0, -0.0, 1.0, info.max, info.min, info.tiny, -info.tiny, info.smallest_normal / 4)
    large = [x for x in (1e30, -1e30, 1e-30) if abs(x) < info.max]
    numbers = st.sampled_from((*peculiar, *large)) | st.floats(info.min, info.max, width=64)
    lists = st.lists(numbers, min_size=1, max_size=longest)
    return lists.map(lambda values: torch.tensor(values, dtype=torch.float64).to(dtype))
