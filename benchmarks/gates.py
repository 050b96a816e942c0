"""Gates beside what people write by hand: `python -m benchmarks.gates`.

The hand-written one is a sigmoid whose threshold is found by bisection, with the gradient that the
equation implies. Calls take turns, and the fastest of each counts, in processor time of one thread.
"""

import functools
import time
from collections.abc import Callable

import torch
from torch import Tensor

import neuralsort.torch as ns
from benchmarks.table import markdown

BATCH, N, K, TAU = 32, 512, 64, 0.1


def bisected_sigmoid(x: Tensor, *, rounds: int) -> Tensor:
    """Weights of sum K: a sigmoid around a threshold that is halved into place."""
    with torch.no_grad():
        low = x.amin(-1, keepdim=True) - 20 * TAU
        high = x.amax(-1, keepdim=True) + 20 * TAU
        for _ in range(rounds):
            middle = (low + high) / 2
            heavy = torch.sigmoid((x - middle) / TAU).sum(-1, keepdim=True) > K
            low, high = torch.where(heavy, middle, low), torch.where(heavy, high, middle)
        threshold = (low + high) / 2
        slope = torch.sigmoid((x - threshold) / TAU)
        slope = slope * (1 - slope)
    moved = (slope * (x - x.detach())).sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
    return torch.sigmoid((x - threshold - moved) / TAU)


GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid, 50 bisections": functools.partial(bisected_sigmoid, rounds=50),
    "sigmoid, 30 bisections": functools.partial(bisected_sigmoid, rounds=30),
    **{
        f"`soft_topk_mask(relax={relax.__name__})`": functools.partial(
            ns.soft_topk_mask, k=K, tau=TAU, relax=relax
        )
        for relax in (ns.lapsum, ns.sparse_threshold, ns.midpoint_threshold)
    },
}


def main(turns: int = 100) -> None:
    """Prints milliseconds forward and backward, and how far sums are from k."""
    torch.set_num_threads(1)
    x = torch.randn(BATCH, N, generator=torch.Generator().manual_seed(0), requires_grad=True)
    upstream = torch.randn(BATCH, N)
    best = dict.fromkeys(GATES, float("inf"))
    for _ in range(turns):
        for name, gate in GATES.items():
            start = time.process_time()
            torch.autograd.grad((gate(x) * upstream).sum(), x)
            best[name] = min(best[name], time.process_time() - start)
    first = next(iter(best.values()))
    rows = []
    for name, gate in GATES.items():
        off = (gate(x).detach().double().sum(-1) - K).abs().max().item() / K
        rows.append([name, f"{1e3 * best[name]:.2f}", f"{best[name] / first:.2f}", f"{off:.0e}"])
    print(f"{BATCH} lists of {N} items, k = {K}, float32, forward and backward\n")
    print(markdown(["gate", "ms", "over the first", "sum, relative error"], rows))


if __name__ == "__main__":
    main()
