"""One meaning, two forms: what P computes without the matrix is what the matrix gives.

`WRITTEN` has, for everything a lazy operator can be asked, the same thing asked of the written
matrix. Values and gradients (to scores, payload and temperature) must agree in both forms.
"""

import math
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import neuralsort.torch as ns
from neuralsort.torch.relaxations.engine import bands
from tests.conftest import (
    DTYPES,
    GRADIENT_RTOL,
    SKIPPED_MASS,
    VALUE_RTOL,
    WEIGHT_ATOL,
    assert_near,
)
from tests.methods import SOFTMAX, Method, in_form, methods
from tests.portions import some_of
from tests.requests import REQUESTS, each_request, far, half, near

NEURALSORT = SOFTMAX[0]
TAUS = (1e-3, 0.1, 1.0, 16.0, 1e3)
FEW_TAUS = TAUS[::2]
BARS_TAUS = (1e-3, 0.1, 1.0, 16.0)
few_taus = pytest.mark.parametrize(
    "taus", some_of([(FEW_TAUS,), (TAUS,)], (FEW_TAUS,)), ids=["few", "all"]
)
two_bars = pytest.mark.parametrize("tau", some_of(BARS_TAUS, 1e-3, 1.0))
WIDTH = 3  # of payloads

each_method = pytest.mark.parametrize("method", methods())
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


# -- what can be asked -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """P written down: weights and, apart from them because weights underflow, their logs."""

    weights: Tensor
    log_weights: Tensor
    order: Tensor


Written = Callable[[Matrix, Tensor], Tensor]


def at(log_weights: Tensor, items: Tensor) -> Tensor:
    return log_weights.gather(-1, items.unsqueeze(-1)).squeeze(-1)


def rank(M: Tensor) -> Tensor:
    position = torch.arange(1, M.shape[-1] + 1, dtype=M.dtype)
    return (position.unsqueeze(-1) * M).sum(-2) / M.sum(-2)


def entropy(M: Tensor) -> Tensor:
    return -(M * M.clamp_min(1e-300).log()).sum(-1)


def hardened(M: Matrix) -> Tensor:
    """The matrix with the value of its permutation and its own gradient."""
    hard = torch.nn.functional.one_hot(M.order, M.order.shape[-1])
    return hard + (M.weights - M.weights.detach())


WRITTEN: dict[str, Written] = {
    "matmul": lambda M, x: M.weights @ x,
    "transpose": lambda M, x: M.weights.mT @ x,
    "sort": lambda M, x: (M.weights @ x)[..., 0],
    "rank": lambda M, x: rank(M.weights),
    "entropy": lambda M, x: entropy(M.weights),
    "log_prob far": lambda M, x: at(M.log_weights, far(M.order)),
    "log_prob near": lambda M, x: at(M.log_weights, near(M.order)),
    "to_dense": lambda M, x: M.weights,
    "straight_through": lambda M, x: hardened(M) @ x,
    "straight_through transpose": lambda M, x: hardened(M).mT @ x,
    "top": lambda M, x: M.weights[..., : half(x), :] @ x,
    "top transpose": lambda M, x: M.weights[..., : half(x), :].mT @ x[..., : half(x), :],
    "top to_dense": lambda M, x: M.weights[..., : half(x), :],
    "top log_prob": lambda M, x: at(M.log_weights, near(M.order))[..., : half(x)],
    "top entropy": lambda M, x: entropy(M.weights)[..., : half(x)],
}
"""What the requests of the same name are when the matrix is there."""

each_request = each_request(*WRITTEN)
SECOND = ("sort", "straight_through", "top to_dense", "top log_prob", "top entropy")
"""Which go the way of others."""
OF_NASTY = ("matmul", "transpose", "rank", "entropy", "log_prob far", "log_prob near")
"""Which do not: the others have these inside."""


def value_and_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The result, and its gradients for some fixed upstream gradient."""
    inputs = tuple(x.detach().clone().requires_grad_() for x in inputs)
    value = function(*inputs)
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(value.shape, dtype=torch.float64, generator=generator).to(value.dtype)
    gradients = torch.autograd.grad(value, inputs, upstream, materialize_grads=True)
    return [value.detach(), *gradients]


def asked(form: str, method: Method, request_: str) -> Callable[..., Tensor]:
    def function(scores: Tensor, x: Tensor, tau: Tensor) -> Tensor:
        return REQUESTS[request_](method.relax(scores, tau=tau), x)

    def in_its_form(*inputs: Tensor) -> list[Tensor]:
        with in_form(form):
            return value_and_gradients(function, *inputs)

    return in_its_form


def written(method: Method, request_: str) -> Callable[..., list[Tensor]]:
    """The same from the matrix: our dense one, for the formula rounds at small temperatures."""

    def function(scores: Tensor, x: Tensor, tau: Tensor) -> Tensor:
        matrix = Matrix(
            weights=method.relax(scores, tau=tau).to_dense(),
            log_weights=method.formula_log_weights(scores, tau),
            order=scores.argsort(dim=-1, descending=True, stable=True),
        )
        return WRITTEN[request_](matrix, x)

    def dense(*inputs: Tensor) -> list[Tensor]:
        with in_form("dense"):
            return value_and_gradients(function, *inputs)

    return dense


def assert_all_near(
    actual: list[Tensor], expected: list[Tensor], method: Method, scores: Tensor, tau: float
) -> None:
    """Values and payload gradients are of the order 1, the others of the order 1 / tau.

    NeuralSort's logits, as the matrix sums them, are as large as n times the spread of the scores;
    in float64 this rounds by more than the banded form does.
    """
    rtol = GRADIENT_RTOL[torch.float64]
    spread = (scores.max() - scores.min()).item()
    if method is NEURALSORT:
        rtol += torch.finfo(torch.float64).eps * scores.shape[-1] * spread / tau
    floors = {
        "value": 1.0,
        "to scores": 1 / tau,
        "to payload": 1.0,
        "to tau": max(1, spread) / tau,
    }
    for one, other, (what, floor) in zip(actual, expected, floors.items(), strict=True):
        assert_near(one, other, rtol, floor, f"{what} at tau={tau}")


# -- values and gradients --------------------------------------------------------------------------


@each_method
@each_request
@pytest.mark.parametrize(
    ("form", "n"),
    some_of(
        [(form, n) for form in ("dense", "banded") for n in (1, 2, 3, 17, 40, 200)],
        *(("dense", 1), ("dense", 17), ("banded", 1), ("banded", 200)),
    ),
)
@few_taus
def test_request_equals_that_of_the_matrix(method, request_, form, n, taus):
    scores = torch.randn(2, n, dtype=torch.float64)
    x = torch.randn(2, n, WIDTH, dtype=torch.float64)
    for tau in taus:
        inputs = scores, x, torch.full((2, 1), tau, dtype=torch.float64)
        actual = asked(form, method, request_)(*inputs)
        assert_all_near(actual, written(method, request_)(*inputs), method, scores, tau)


@each_method
@pytest.mark.parametrize("request_", some_of(WRITTEN, *(r for r in WRITTEN if r not in SECOND)))
@few_taus
def test_request_equals_that_of_the_matrix_in_longer_lists(method, request_, taus):
    scores = torch.randn(700, dtype=torch.float64)
    x = torch.randn(700, WIDTH, dtype=torch.float64)
    for tau in taus:
        inputs = scores, x, torch.tensor(tau, dtype=torch.float64)
        actual = asked("banded", method, request_)(*inputs)
        assert_all_near(actual, written(method, request_)(*inputs), method, scores, tau)


def nasty_scores() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    clusters = torch.zeros(90, dtype=torch.float64)
    clusters[torch.randperm(90, generator=generator)[:40]] = 1e-3
    outlier = 0.1 * normal(90)
    outlier[31] = 1e4
    return {
        "many ties": (2 * normal(90)).round(),
        "two clusters of ties": clusters,
        "one outlier": outlier,
        "Cauchy": normal(90) / normal(90),
        "all equal": torch.full((90,), 0.3, dtype=torch.float64),
        "geometric gaps": 0.7 ** torch.arange(90, dtype=torch.float64),
        "geometric gaps, rising": -(0.7 ** torch.arange(90, dtype=torch.float64)),
        "pairs far apart": (
            100 * torch.arange(45.0).double().unsqueeze(-1) + torch.tensor([0.0, 0.3])
        ).flatten(),  # fmt: skip
        "loners above a crowd": torch.cat([2 + 100 * torch.arange(64.0), torch.zeros(26)]).double(),
        "dense crowd and loners": torch.cat([1e-6 * normal(60), 10 * normal(30)]),
    }


NASTY = nasty_scores()


def nasty_cases() -> list:
    """In every run: one request of each kind in bands, some dense."""
    every_run = [
        (name, form, request_)
        for name in NASTY
        for form, request_ in [
            *(("banded", r) for r in OF_NASTY),
            *(("dense", r) for r in ("matmul", "log_prob far")),
        ]
    ]
    cases = [(name, form, r) for name in NASTY for form in ("dense", "banded") for r in WRITTEN]
    return some_of(cases, *every_run)


@each_method
@pytest.mark.parametrize(("name", "form", "request_"), nasty_cases())
@few_taus
def test_request_equals_that_of_the_matrix_for_nasty_scores(method, request_, form, name, taus):
    scores = NASTY[name]
    x = torch.randn(len(scores), WIDTH, dtype=torch.float64)
    for tau in taus:
        inputs = scores, x, torch.tensor(tau, dtype=torch.float64)
        actual = asked(form, method, request_)(*inputs)
        assert_all_near(actual, written(method, request_)(*inputs), method, scores, tau)


@each_method
@pytest.mark.parametrize("name", NASTY)
@few_taus
def test_dense_weights_of_nasty_scores_are_those_of_the_equation(method, name, taus):
    scores = NASTY[name][::3]
    for tau in taus:
        expected = torch.from_numpy(method.weights(scores.tolist(), tau))
        actual = method.relax(scores, tau=tau).to_dense()
        assert_near(actual, expected, WEIGHT_ATOL[torch.float64], 1)


@each_method
@pytest.mark.parametrize("request_", ["matmul", "transpose", "rank", "log_prob near"])
def test_lists_of_a_batch_do_not_touch(method, request_, form):
    """A batch of lists of very different scale, with their own temperatures."""
    scores = torch.randn(4, 37, dtype=torch.float64) * torch.tensor([[1e-6], [1.0], [30.0], [1e6]])
    tau = torch.tensor([[1e-6], [0.1], [1000.0], [1e3]], dtype=torch.float64)
    x = torch.randn(4, 37, WIDTH, dtype=torch.float64)
    together = asked(form, method, request_)(scores, x, tau)
    for b in range(4):
        value = REQUESTS[request_](method.relax(scores[b], tau=tau[b].item()), x[b])
        assert_near(value, together[0][b], 1e-11, 1.0)


@each_method
@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (2, 1, 1), (2, 3, 1)])
def test_temperature_may_be_shared_or_one_per_list(method, form, shape):
    """Its gradient has its shape: summed over the lists that share it."""
    scores = torch.randn(2, 3, 9, dtype=torch.float64)
    tau = (torch.rand(shape, dtype=torch.float64) + 0.5).requires_grad_()
    (gradient,) = torch.autograd.grad((method.relax(scores, tau=tau).sort(scores) ** 2).sum(), tau)
    matrix = method.formula_weights(scores, tau)
    (expected,) = torch.autograd.grad(((matrix @ scores.unsqueeze(-1)) ** 2).sum(), tau)
    assert gradient.shape == shape
    assert_near(gradient, expected, 1e-9)


# -- shapes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lists", "payload"),
    [
        ((5,), (5,)),
        ((5,), (5, 4)),
        ((5,), (5, 1)),
        ((5,), (5, 0)),
        ((5,), (3, 5, 4)),
        ((2, 5), (5,)),
        ((2, 5), (5, 4)),
        ((2, 5), (2, 5, 4)),
        ((2, 5), (1, 5, 4)),
        ((2, 3, 5), (3, 5, 4)),
        ((2, 3, 5), (2, 1, 5, 4)),
        ((2, 1, 5), (1, 3, 5, 4)),
        ((3, 5), (2, 3, 5, 4)),
        ((3, 5), (7, 1, 5, 4)),
    ],
)
def test_products_follow_the_rules_of_matmul(form, lists, payload):
    scores = torch.randn(lists, dtype=torch.float64)
    x = torch.randn(payload, dtype=torch.float64)
    k = 2

    def few(x: Tensor) -> Tensor:
        return x[:k] if x.dim() == 1 else x[..., :k, :]

    pairs = (
        (lambda P, x: P @ x, lambda M, x: M @ x),
        (lambda P, x: P.mT @ x, lambda M, x: M.mT @ x),
        (lambda P, x: P.top(k) @ x, lambda M, x: M[..., :k, :] @ x),
        (lambda P, x: P.top(k).mT @ few(x), lambda M, x: M[..., :k, :].mT @ few(x)),
    )
    for lazy, matrix in pairs:
        actual = value_and_gradients(
            lambda s, x, ask=lazy: ask(ns.neuralsort(s, tau=0.7), x), scores, x
        )
        expected = value_and_gradients(
            lambda s, x, ask=matrix: ask(NEURALSORT.formula_weights(s, 0.7), x), scores, x
        )
        for one, other in zip(actual, expected, strict=True):
            assert_near(one, other, 1e-10)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_is_an_operator_of_k_rows(form, k):
    scores = torch.randn(2, 3, 5)
    P = ns.neuralsort(scores, tau=0.5)
    top = P.top(k)
    assert top.shape == (2, 3, k, 5)
    assert top.dtype == torch.float32
    assert top.mT.shape == (2, 3, 5, k)
    torch.testing.assert_close(top.to_dense(), P.to_dense()[..., :k, :])
    torch.testing.assert_close(top.mT.to_dense(), P.to_dense()[..., :k, :].mT)


def test_shape_dtype_device_and_transpose(form):
    P = ns.neuralsort(torch.randn(2, 3, 5, dtype=torch.float64))
    assert P.shape == P.mT.shape == (2, 3, 5, 5)
    assert P.dtype == torch.float64
    assert P.device == torch.device("cpu")
    assert P.permutation().shape == (2, 3, 5)
    assert P.permutation().dtype == torch.int64
    assert P.is_unimodal().shape == (2, 3)
    assert torch.equal(P.mT.mT.to_dense(), P.to_dense())
    torch.testing.assert_close(P.mT.to_dense(), P.to_dense().mT)


def test_straight_through_is_the_hard_permutation_to_the_bit(form):
    scores = torch.randn(3, 30)
    x = torch.randn(3, 30, 4)
    P = ns.neuralsort(scores, tau=2.0)
    order = P.permutation().unsqueeze(-1).expand(3, 30, 4)
    assert torch.equal(P.straight_through() @ x, x.gather(1, order))
    assert torch.equal(P.straight_through().mT @ x.gather(1, order), x)


# -- the numbers promised --------------------------------------------------------------------------


def steps_at_every_fiftieth_place(scores: Tensor) -> Tensor:
    """Indicators of all items above a place, and of all below it."""
    n = len(scores)
    places = torch.arange(25, n, 50)
    rank = scores.argsort(descending=True).argsort()
    above = (rank.unsqueeze(-1) < places).double()
    return torch.cat([above, 1 - above], 1)


@each_method
@two_bars
def test_what_float32_skips_is_at_most_certified(method, tau, monkeypatch):
    """The blocks of float32, computed in float64: all that is left of the error is what they skip.

    What a row skips on one side is missing from the indicator of the items on that side.
    """
    monkeypatch.setitem(bands.TOLERANCE, torch.float64, bands.TOLERANCE[torch.float32])
    scores = torch.randn(3000, dtype=torch.float64)
    steps = steps_at_every_fiftieth_place(scores)
    with in_form("dense"):
        expected = method.relax(scores, tau=tau).to_dense() @ steps
    with in_form("banded"):
        error = (method.relax(scores, tau=tau) @ steps - expected).abs().max()
    assert error <= SKIPPED_MASS[torch.float32]


@each_method
@pytest.mark.parametrize("tau", [1e-3, 0.1])
def test_what_float64_skips_is_at_most_certified(method, tau):
    """Seen in the tails, whose own rounding is far smaller."""
    scores = torch.randn(3000, dtype=torch.float64)
    steps = steps_at_every_fiftieth_place(scores)
    with in_form("dense"):
        expected = method.relax(scores, tau=tau).to_dense() @ steps
    with in_form("banded"):
        error = (method.relax(scores, tau=tau) @ steps - expected).abs()
    tails = expected < 1e-6
    assert tails.sum() > 1000
    assert error[tails].max() <= SKIPPED_MASS[torch.float64]


@each_method
@pytest.mark.parametrize("dtype", SKIPPED_MASS, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("depths", some_of([21, 41], 21))
def test_what_is_skipped_is_certified_for_the_worst_scores(method, dtype, depths, monkeypatch):
    """Loners, and far below the last of them a crowd: each negligible, but there are many.

    The loners fill blocks of rows of their own, so that no row of the crowd widens their window.
    """
    monkeypatch.setitem(bands.TOLERANCE, torch.float64, bands.TOLERANCE[dtype])
    n, loners = 4096, 64
    for depth in torch.linspace(5, 45, depths).tolist():
        scores = torch.zeros(n, dtype=torch.float64)
        scores[:loners] = 100 * torch.arange(loners - 1, -1, -1, dtype=torch.float64)
        scores[:loners] += depth ** (1 / method.homogeneity)
        crowd = (scores == 0).double()
        mass = (n - loners) * math.exp(-depth)
        with in_form("banded"):
            skipped = mass / (1 + mass) - (method.relax(scores, tau=1.0) @ crowd)[loners - 1].item()
        assert abs(skipped) <= SKIPPED_MASS[dtype] + 1e-12 * mass  # the latter for rounding


@each_method
@two_bars
def test_banded_form_is_near_for_random_signs_and_blocks(method, tau):
    n = 3000
    scores = torch.randn(n, dtype=torch.float64)
    signs = torch.randn(n, 20, dtype=torch.float64).sign()
    blocks = torch.eye(30, dtype=torch.float64).repeat_interleave(100, 0)
    x = torch.cat([signs, blocks], 1)
    with in_form("dense"):
        expected = method.relax(scores, tau=tau).to_dense() @ x
    with in_form("banded"):
        rounding = torch.finfo(torch.float64).eps * n * 8 / tau  # of the dense form
        near = VALUE_RTOL[torch.float64] + rounding
        assert_near(method.relax(scores, tau=tau) @ x, expected, near, 1)
        actual = method.relax(scores.float(), tau=tau) @ x.float()
    with in_form("dense"):
        expected = method.relax(scores.float().double(), tau=tau).to_dense() @ x
    assert_near(actual, expected, VALUE_RTOL[torch.float32], 1)


@each_dtype
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("n", [10, 1000, 100_000])
def test_permutation_is_the_stable_descending_sort(dtype, offset, n):
    scores = (torch.randn(n, dtype=torch.float64) + offset).to(dtype)
    expected = torch.sort(scores, descending=True, stable=True).indices
    for tau in (1e-4, 1e-2, 1.0, 100.0):
        for method in SOFTMAX:
            assert torch.equal(method.relax(scores, tau=tau).permutation(), expected)


@each_method
@pytest.mark.parametrize("n", [100, 2000])
@pytest.mark.parametrize("tau", BARS_TAUS)
def test_dense_float32_is_near_the_formula_in_float64(method, n, tau):
    scores = torch.randn(n)
    expected = method.formula_weights(scores.double(), tau)
    assert_near(method.relax(scores, tau=tau).to_dense(), expected, 2e-6, 1)


@pytest.mark.parametrize(
    ("method", "tau"),
    some_of(
        [(m, tau) for m in SOFTMAX for tau in BARS_TAUS if m is NEURALSORT or tau in (1e-3, 1.0)],
        *((NEURALSORT, tau) for tau in (1e-3, 1.0)),
        *((m, 1e-3) for m in SOFTMAX if m.name == "softsort"),
    ),
)
def test_banded_float32_is_near_the_formula_in_float64(method, tau):
    """Values and gradients of P @ X, n = 3000: 1e-5 relative for NeuralSort."""
    scores, x = torch.randn(3000), torch.randn(3000, 4)
    temperature = torch.tensor(tau)

    def lazy(s: Tensor, x: Tensor, tau: Tensor) -> Tensor:
        return method.relax(s, tau=tau) @ x

    def formula(s: Tensor, x: Tensor, tau: Tensor) -> Tensor:
        return method.formula_weights(s, tau) @ x

    with in_form("banded"):
        actual = value_and_gradients(lazy, scores, x, temperature)
    expected = value_and_gradients(formula, scores.double(), x.double(), temperature.double())
    names = ("value", "to scores", "to payload", "to tau")
    for one, other, what in zip(actual, expected, names, strict=True):
        # One temperature collects from all entries, of either sign: there is less left of it.
        # So does every score in SoftSort, whose rows are the wider ones at these temperatures.
        bar = 1e-5 if method is NEURALSORT else 3e-5
        assert_near(one, other, 1e-4 if what == "to tau" else bar, what=what)


@each_method
@pytest.mark.parametrize("offset", [0.0, 4096.0])
@pytest.mark.parametrize("tau", [0.02, 1.0])
def test_float32_gradients_do_not_know_the_offset(method, form, offset, tau):
    """Scores on a grid that float32 holds with and without the offset."""
    scores = torch.randperm(400) / 128
    x, temperature = torch.randn(400, 3), torch.tensor(tau)
    actual = value_and_gradients(
        lambda s, x, tau: method.relax(s + offset, tau=tau) @ x, scores, x, temperature
    )
    expected = value_and_gradients(
        lambda s, x, tau: method.formula_weights(s, tau) @ x,
        scores.double(), x.double(), temperature.double(),
    )  # fmt: skip
    names = ("value", "to scores", "to payload", "to tau")
    for one, other, what in zip(actual, expected, names, strict=True):
        assert_near(one, other, 1e-4 if what == "to tau" else 1e-5, what=what)


def test_long_lists_are_never_written_down_by_default():
    """n = 30,000 in float64 would be a matrix of 7 GB; it is not made by any of the requests."""
    scores = torch.randn(30_000, requires_grad=True)
    P = ns.neuralsort(scores, tau=0.1)
    total = P.sort(scores).square().sum() + P.rank().sum() + P.log_prob(P.permutation()).sum()
    (gradient,) = torch.autograd.grad(total, scores)
    assert gradient.isfinite().all()
    assert torch.equal(P.permutation(), scores.argsort(descending=True, stable=True))


PEAK = """
    import torch
    import neuralsort.torch as ns

    def peak():
        for line in open("/proc/self/status"):
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024

    torch.set_num_threads(1)
    torch.manual_seed(0)
    warm = torch.randn(100, requires_grad=True)
    ns.neuralsort(warm, tau=0.1).sort(warm).sum().backward()
    scores = torch.randn({n}, requires_grad=True)
    x = torch.randn({n}, 2)
    before = peak()
    {work}
    assert scores.grad is not None and scores.grad.isfinite().all()
    print(peak() - before)
"""


def peak_memory(n: int, work: str) -> int:
    """Bytes that a fresh process needs at its peak, beyond those it held before the work."""
    script = textwrap.dedent(PEAK.replace("{work}", work.strip()).replace("{n}", str(n)))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.long  # every run has lists of 50,000 below
@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_memory_of_sorting_a_million_items(tau):
    work = f"ns.neuralsort(scores, tau={tau}).sort(scores).square().sum().backward()"
    assert peak_memory(10**6, work) < 1.5 * 2**30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "most"), some_of([(50_000, 2**27), (100_000, 2**28)], (50_000, 2**27))
)
def test_memory_is_linear_for_every_request(n, most):
    """The matrix would take 10 GB, or 40."""
    requests = """
    for ask in (
        lambda P: P @ x,
        lambda P: P.mT @ x,
        lambda P: P.rank(),
        lambda P: P.top(1000) @ x,
        lambda P: P.log_prob(P.permutation().roll(1)),
        lambda P: P.entropy(),
        lambda P: P.straight_through() @ x,
    ):
        ask(ns.neuralsort(scores, tau=0.1)).square().sum().backward()
"""
    assert peak_memory(n, requests) < most
