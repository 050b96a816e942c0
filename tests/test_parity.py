"""PyTorch, JAX and TensorFlow: the same names, the same numbers, the same errors."""

import functools
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import neuralsort.torch as nt
from tests import oracle
from tests.methods import neuralsort_formula, softsort_formula

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
jax = pytest.importorskip("jax")
tf = pytest.importorskip("tensorflow")

import jax.numpy as jnp  # noqa: E402

import neuralsort.jax as nj  # noqa: E402
import neuralsort.tf as ntf  # noqa: E402

TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
"""Of weights and values in [0, 1], and of gradients over their largest entry."""

# -- names -----------------------------------------------------------------------------------------

MISSING = {
    "lapsum": "its closed form needs float64, which JAX has only when asked",
}
"""Names of neuralsort.torch that neuralsort.jax does without, and why."""

RENAMED = {"generator": "key"}
"""What explicit randomness is called."""

ONLY_TORCH = {"validate_args"}  # values of traced arrays cannot be read
ONLY_JAX = {"bandwidth"}  # shapes are static: windows must be known in advance


def test_jax_has_the_names_of_torch():
    assert set(nt.__all__) - set(nj.__all__) == set(MISSING)
    assert set(nj.__all__) <= set(nt.__all__)
    for name in nj.__all__:
        assert callable(getattr(nj, name))


@pytest.mark.parametrize("room", ["estimators", "metrics"])
def test_jax_has_the_functions_of_torch_rooms(room):
    def public(package: Any) -> set[str]:
        module = getattr(package, room)
        functions = inspect.getmembers(module, inspect.isfunction)
        return {n for n, f in functions if f.__module__ == module.__name__ and n[0] != "_"}

    assert public(nt) == public(nj)


@pytest.mark.parametrize("name", sorted(set(nt.__all__) - set(MISSING)))
def test_arguments_have_the_same_names_and_defaults(name):
    def of(package: Any) -> dict[str, Any]:
        parameters = inspect.signature(getattr(package, name)).parameters
        renamed = {RENAMED.get(k, k): p.default for k, p in parameters.items()}
        return {k: d for k, d in renamed.items() if k not in ONLY_TORCH | ONLY_JAX}

    ours, theirs = of(nj), of(nt)
    assert set(ours) == set(theirs)
    for key in ours:
        if key == "key" or callable(ours[key]):
            continue  # keys are always asked for; functions have the same name
        assert ours[key] == theirs[key]


def test_methods_of_the_operator_have_the_same_names():
    def public(cls: type) -> set[str]:
        return {name for name in dir(cls) if name[0] != "_"}

    torch_only = {"device"}
    assert public(nt.RelaxedPermutation) - torch_only == public(nj.RelaxedPermutation)


def test_tensorflow_has_the_plug_in_subset():
    assert set(ntf.__all__) == {
        "NeuralSort",
        "PlackettLuce",
        "neuralsort",
        "permutation",
        "sample_gumbel",
        "stochastic_neuralsort",
        "straight_through",
    }


# -- isolation -------------------------------------------------------------------------------------

FRAMEWORKS = {"torch": "torch", "jax": "jax", "tf": "tensorflow"}


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("room", FRAMEWORKS)
def test_a_room_imports_its_own_framework_only(room):
    # TensorFlow itself imports JAX where it finds it: what counts is what we add.
    others = set(FRAMEWORKS.values()) - {FRAMEWORKS[room]}
    before = "import tensorflow, keras; " if room == "tf" else ""
    script = (
        f"import sys; {before}before = set(sys.modules); import neuralsort.{room}; "
        f"print({others!r} & (set(sys.modules) - before))"
    )
    assert run(script) == "set()"


@pytest.mark.parametrize("room", ["jax", "tf"])
def test_a_missing_framework_gives_one_sentence_with_the_install_command(room):
    block = f"import sys; sys.modules['{FRAMEWORKS[room]}'] = None\n"
    out = run(f"{block}try:\n    import neuralsort.{room}\nexcept ImportError as e:\n    print(e)")
    assert out.count("\n") == 0
    assert out.startswith(f"neuralsort.{room} needs")
    assert f'pip install "neuralsort[{room}]"' in out


# -- numbers ---------------------------------------------------------------------------------------


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", request.param == "float64")
    yield request.param
    jax.config.update("jax_enable_x64", before)


@dataclass(frozen=True)
class Case:
    """Lists of scores with a temperature for each, and which items are there."""

    scores: list[list[float]]
    tau: float | list[float] = 1.0
    mask: list[list[bool]] | None = None

    def scores_as(self, dtype: str) -> np.ndarray:
        return np.asarray(self.scores, dtype)

    def taus(self) -> list[float]:
        return self.tau if isinstance(self.tau, list) else [self.tau] * len(self.scores)


A, B = [0.3, -1.2, 2.0, 0.9, 1.1], [1.5, -0.5, 1.0, 3.0, 0.0]

CASES = {  # of one shape where they can be, so that JAX compiles once
    "distinct": Case([A, B]),
    "cold": Case([A, B], tau=0.01),
    "hot": Case([A, B], tau=50.0),
    "ties": Case([[1.0, 3.0, 1.0, 3.0, 3.0], [2.0] * 5], tau=0.7),
    "offset": Case([[10000.5, 10001.0, 10000.25, 9999.0, 10000.0], A], tau=0.5),
    "tau per list": Case([A, B], tau=[0.25, 4.0]),
    "mask": Case([A, B], mask=[[True, False, True, True, True], [True, False, False, True, False]]),
    "one item": Case([[4.0]]),
}
"""The shared table."""


def numpy_of(x: Any) -> np.ndarray:
    return np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, np.float64)


def tau_of(case: Case, dtype: str) -> float | np.ndarray:
    return np.asarray(case.tau, dtype)[:, None] if isinstance(case.tau, list) else case.tau


def with_torch(method: str, case: Case, dtype: str, upstream: np.ndarray):
    scores = torch.tensor(case.scores_as(dtype), requires_grad=True)
    tau = tau_of(case, dtype)
    tau = torch.from_numpy(tau) if isinstance(tau, np.ndarray) else tau
    mask = None if case.mask is None else torch.tensor(case.mask)
    P = METHODS[method].relax("torch")(scores, tau=tau, mask=mask).to_dense()
    (P * torch.tensor(upstream, dtype=P.dtype)).sum().backward()
    assert scores.grad is not None
    return P, scores.grad


@functools.cache
def compiled(method: str):
    """One program for all cases of a shape: compiling takes nearly all the time."""

    def step(scores, tau, mask, upstream):
        def relax(scores):
            return METHODS[method].relax("jax")(scores, tau=tau, mask=mask).to_dense()

        P, back = jax.vjp(relax, scores)
        return P, back(upstream)[0]

    return jax.jit(step)


def with_jax(method: str, case: Case, dtype: str, upstream: np.ndarray):
    mask = None if case.mask is None else jnp.array(case.mask)
    tau = jnp.asarray(case.taus(), dtype)[:, None]
    P, grad = compiled(method)(case.scores_as(dtype), tau, mask, upstream.astype(dtype))
    assert P.dtype == grad.dtype == dtype
    return P, grad


def with_tf(method: str, case: Case, dtype: str, upstream: np.ndarray):
    scores = tf.constant(case.scores_as(dtype))
    tau = tau_of(case, dtype)
    tau = tf.constant(tau) if isinstance(tau, np.ndarray) else tau
    mask = None if case.mask is None else tf.constant(case.mask)
    with tf.GradientTape() as tape:
        tape.watch(scores)
        P = METHODS[method].relax("tf")(scores, tau=tau, mask=mask)
        loss = tf.reduce_sum(P * tf.constant(upstream, P.dtype))
    assert P.dtype.name == dtype
    return P, tape.gradient(loss, scores)


@dataclass(frozen=True)
class Method:
    """A relaxation by its name in each package, its oracle, and its formula for autograd."""

    name: str
    options: dict[str, Any]
    weights: Callable[..., np.ndarray]
    formula: Callable[[torch.Tensor], torch.Tensor]
    rooms: tuple[str, ...] = ("torch", "jax")

    def relax(self, room: str) -> Callable[..., Any]:
        package = {"torch": nt, "jax": nj, "tf": ntf}[room]
        return functools.partial(getattr(package, self.name), **self.options)


METHODS = {
    "neuralsort": Method(
        "neuralsort", {}, oracle.neuralsort, neuralsort_formula, ("torch", "jax", "tf")
    ),
    "softsort": Method(
        "softsort",
        {"power": 1.0},
        functools.partial(oracle.softsort, power=1),
        functools.partial(softsort_formula, power=1),
    ),
    "softsort_squared": Method(
        "softsort",
        {"power": 2.0},
        functools.partial(oracle.softsort, power=2),
        functools.partial(softsort_formula, power=2),
    ),
}
RUNNERS = {"torch": with_torch, "jax": with_jax, "tf": with_tf}
METHOD_ROOMS = [(m, room) for m, method in METHODS.items() for room in method.rooms]


def expected(method: str, case: Case, dtype: str, upstream: np.ndarray):
    """Weights by the oracle and gradients by the printed formula, list by list, unpadded."""
    scores = case.scores_as(dtype).astype(np.float64)
    n = scores.shape[-1]
    weights, gradients = np.zeros((*scores.shape, n)), np.zeros(scores.shape)
    for b, (row, tau) in enumerate(zip(scores, case.taus(), strict=True)):
        there = np.array([True] * n if case.mask is None else case.mask[b])
        items, absent = np.flatnonzero(there), np.flatnonzero(~there)
        m = len(items)
        weights[b, :m, items] = METHODS[method].weights(row[items], tau).T
        weights[b, range(m, n), absent] = 1.0
        s = torch.tensor(row[items], requires_grad=True)
        P = torch.softmax(METHODS[method].formula(s - row[items][0]) / tau, -1)
        (P * torch.tensor(upstream[b][:m][:, items])).sum().backward()
        gradients[b, items] = s.grad
    return weights, gradients


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize(("method", "room"), METHOD_ROOMS)
def test_values_and_gradients_are_the_oracle_s(method, room, case, dtype):
    shape = (len(case.scores), *[len(case.scores[0])] * 2)
    upstream = np.random.default_rng(0).normal(size=shape)
    weights, gradient = expected(method, case, dtype, upstream)
    P, grad = (numpy_of(x) for x in RUNNERS[room](method, case, dtype, upstream))
    assert np.abs(P - weights).max() <= TOLERANCE[dtype]
    assert np.abs(grad - gradient).max() <= TOLERANCE[dtype] * max(1.0, np.abs(gradient).max())


SCORES = np.random.default_rng(1).normal(size=(3, 6))
TARGET = np.argsort(-np.random.default_rng(2).normal(size=(3, 6)), -1)
RELEVANCE = np.random.default_rng(3).integers(0, 4, size=(3, 6))

FUNCTIONS: dict[str, dict[str, Callable[[Any, Any], Any]]] = {
    "operators": {
        "soft_sort": lambda ns, x: ns.soft_sort(x, tau=0.4, dim=0, descending=True),
        "soft_sort_by": lambda ns, x: ns.soft_sort_by(x, x, tau=0.4),
        "soft_rank": lambda ns, x: ns.soft_rank(x, tau=0.4),
        "soft_topk values": lambda ns, x: ns.soft_topk(x, 2, tau=0.4).values,
        "soft_topk weights": lambda ns, x: ns.soft_topk(x, 2, tau=0.4, largest=False).weights,
        "soft_quantile": lambda ns, x: ns.soft_quantile(x, 0.3, tau=0.4),
        "masked sort": lambda ns, x: ns.soft_sort(x, tau=0.4, mask=of(ns, RELEVANCE > 0)),
        "masked median": lambda ns, x: ns.soft_median(x, tau=0.4, mask=of(ns, RELEVANCE > 0)),
        "soft_median": lambda ns, x: ns.soft_median(x, tau=0.4, dim=0),
        "tau_for_blur": lambda ns, x: ns.tau_for_blur(x, ranks=2.0),
    },
    "relaxed permutations": {
        "rank": lambda ns, x: ns.neuralsort(x, tau=0.4).rank(),
        "entropy": lambda ns, x: ns.neuralsort(x, tau=0.4).entropy(),
        "transpose": lambda ns, x: ns.neuralsort(x, tau=0.4).mT @ x[..., None],
        "top": lambda ns, x: ns.neuralsort(x, tau=0.4).top(2).sort(x),
        "unimodal": lambda ns, x: (
            1.0
            * ns.RelaxedPermutation.from_dense(ns.neuralsort(x, tau=0.4).to_dense())
            .top(2)
            .is_unimodal()
        ),
        "straight_through": lambda ns, x: ns.neuralsort(x, tau=0.4).straight_through().sort(x),
        "sinkhorn": lambda ns, x: ns.sinkhorn(x[..., None] * x[..., None, :], tau=0.5).to_dense(),
        "sinkhorn_sort": lambda ns, x: ns.sinkhorn_sort(x, tau=0.5, iterations=7).to_dense(),
    },
    "networks and projections": {
        "odd_even": lambda ns, x: ns.sorting_network(x, tau=0.4, swap="logistic").to_dense(),
        "bitonic": lambda ns, x: ns.sorting_network(
            x, tau=0.4, kind="bitonic", mask=of(ns, RELEVANCE > 0)
        ).to_dense(),
        "fast_soft_sort": lambda ns, x: ns.fast_soft_sort(x, strength=2.0, descending=True),
        "entropic sort": lambda ns, x: ns.fast_soft_sort(x, strength=2.0, regularization="kl"),
        "fast_soft_rank": lambda ns, x: ns.fast_soft_rank(x, strength=0.4, dim=0),
        "entropic rank": lambda ns, x: ns.fast_soft_rank(x, strength=0.4, regularization="kl"),
    },
    "ranking losses": {
        "approx_ndcg": lambda ns, x: ns.approx_ndcg(x, of(ns, RELEVANCE), tau=0.5),
        "neural_ndcg": lambda ns, x: ns.neural_ndcg(x, of(ns, RELEVANCE), tau=0.5, k=3),
        "spearman_loss": lambda ns, x: ns.spearman_loss(x, of(ns, RELEVANCE), tau=0.5),
        "kendall_loss": lambda ns, x: ns.kendall_loss(x, of(ns, RELEVANCE), tau=0.5),
        "ranknet_loss": lambda ns, x: ns.ranknet_loss(x, of(ns, RELEVANCE), reduction="none"),
    },
    "losses": {
        "cross_entropy": lambda ns, x: ns.permutation_cross_entropy(
            ns.neuralsort(x, tau=0.7), of(ns, TARGET), reduction="none"
        ),
        "knn_loss": lambda ns, x: ns.knn_loss(ns.neuralsort(x), of(ns, RELEVANCE > 1), k=3),
        "topk_cross_entropy": lambda ns, x: ns.topk_cross_entropy(
            x, of(ns, TARGET[:, 0]), k={1: 0.5, 3: 0.5}, tau=0.5
        ),
        "plackett_luce_nll": lambda ns, x: ns.plackett_luce_nll(x, of(ns, TARGET)),
        "prefix": lambda ns, x: ns.plackett_luce_nll(x, of(ns, TARGET[:, :2])),
    },
    "distributions": {
        "entropy of rankings": lambda ns, x: ns.PlackettLuce(x).entropy(),
        "marginals": lambda ns, x: ns.PlackettLuce(x).marginals(),
        "prob_before": lambda ns, x: ns.PlackettLuce(x).prob_before(),
        "divergence": lambda ns, x: ns.PlackettLuce(x).kl_divergence(ns.PlackettLuce(2 * x)),
        "exact_expectation": lambda ns, x: ns.estimators.exact_expectation(
            lambda P: P.sort(of(ns, SCORES))[..., 0] ** 2, x
        ),
    },
    "metrics": {
        "ndcg": lambda ns, x: ns.metrics.ndcg(x, of(ns, RELEVANCE), k=4, reduction="none"),
        "mrr": lambda ns, x: ns.metrics.mean_reciprocal_rank(x, of(ns, RELEVANCE > 2)),
        "spearman": lambda ns, x: ns.metrics.spearman(x, of(ns, RELEVANCE), reduction="none"),
        "kendall_tau": lambda ns, x: ns.metrics.kendall_tau(x, of(ns, RELEVANCE), reduction="none"),
        "exact_match": lambda ns, x: ns.metrics.exact_match(
            ns.neuralsort(x).permutation(), of(ns, TARGET)
        ),
        "element_wise": lambda ns, x: ns.metrics.element_wise(
            ns.neuralsort(x).permutation(), of(ns, TARGET)
        ),
    },
}
"""What JAX must compute as PyTorch does: each group is one compiled program."""


def of(ns: Any, x: np.ndarray) -> Any:
    """An array of the framework, of its working precision."""
    if ns is nt:
        return torch.tensor(x)
    return jnp.asarray(x)


def torch_value_and_gradient(function: Callable[[Any, Any], Any], scores: np.ndarray):
    """Computed in float64, with an upstream gradient of random numbers."""
    x = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    value = function(nt, x)
    upstream = np.random.default_rng(4).normal(size=tuple(value.shape))
    gradient = np.zeros_like(scores)
    if value.requires_grad:
        gradient = torch.autograd.grad((value * torch.tensor(upstream)).sum(), x)[0]
    return value, numpy_of(gradient), upstream


@pytest.mark.parametrize("dtype", ["float64"], indirect=True)  # where formulas show, not rounding
@pytest.mark.parametrize("group", FUNCTIONS)
def test_jax_gives_the_values_and_gradients_of_torch(group, dtype):
    scores = SCORES.astype(dtype)
    theirs = {n: torch_value_and_gradient(f, scores) for n, f in FUNCTIONS[group].items()}

    @jax.jit
    def ours(x):
        def one(function, upstream):
            def loss(x):
                value = function(nj, x)
                return (value * jnp.asarray(upstream)).sum(), value

            return jax.grad(loss, has_aux=True)(x)

        return {n: one(f, theirs[n][-1]) for n, f in FUNCTIONS[group].items()}

    for name, (grad, value) in ours(jnp.asarray(scores)).items():
        wanted, gradient, _ = theirs[name]
        # A few operations follow the weights; shares of lists are in torch's default dtype.
        tolerance = 4 * max(TOLERANCE[dtype], 0.0 if wanted.dtype is torch.float64 else 1e-7)
        error = np.abs(numpy_of(value) - numpy_of(wanted)).max()
        assert error <= tolerance * max(1.0, wanted.abs().max().item()), name
        error = np.abs(numpy_of(grad) - gradient).max()
        assert error <= 4 * tolerance * max(1.0, np.abs(gradient).max()), name


# -- errors ----------------------------------------------------------------------------------------

ERRORS: dict[str, tuple[type[Exception], str, Callable[[Any, Any], Any]]] = {
    "integers": (TypeError, "floating-point", lambda ns, a: ns.neuralsort(a([1, 2, 3]))),
    "list": (TypeError, "got list", lambda ns, a: ns.neuralsort([1.0, 2.0])),
    "0-d": (ValueError, "at least one dimension", lambda ns, a: ns.neuralsort(a(1.0))),
    "tau": (ValueError, "not negative", lambda ns, a: ns.neuralsort(a([1.0]), tau=-1.0)),
    "tau text": (TypeError, "`tau` expects", lambda ns, a: ns.neuralsort(a([1.0]), tau="1")),
    "tau shape": (
        ValueError,
        "one temperature per list",
        lambda ns, a: ns.neuralsort(a([[1.0, 2.0]]), tau=a([1.0, 2.0])),
    ),
    "mask": (TypeError, "boolean", lambda ns, a: ns.neuralsort(a([1.0, 2.0]), mask=a([1.0, 1.0]))),
    "mask shape": (
        ValueError,
        "shape of the scores",
        lambda ns, a: ns.neuralsort(a([1.0, 2.0]), mask=a([True, True, False])),
    ),
    "samples": (
        ValueError,
        "at least 1",
        lambda ns, a: ns.stochastic_neuralsort(a([1.0]), samples=0, **randomness(ns)),
    ),
    "ranking": (
        TypeError,
        "integer item indices",
        lambda ns, a: ns.PlackettLuce(a([1.0, 2.0])).log_prob(a([1.0, 0.0])),
    ),
    "long ranking": (
        ValueError,
        "at most k = 2",
        lambda ns, a: ns.PlackettLuce(a([1.0, 2.0])).log_prob(a([1, 0, 1])),
    ),
    "straight": (
        ValueError,
        "two .* of one shape",
        lambda ns, a: ns.straight_through(a([1.0]), a([1.0, 2.0])),
    ),
}

WITHOUT_TENSORFLOW: dict[str, tuple[type[Exception], str, Callable[[Any, Any], Any]]] = {
    "power": (ValueError, "must be 1 or 2", lambda ns, a: ns.softsort(a([1.0]), power=3)),
    "payload": (ValueError, "2 items", lambda ns, a: ns.neuralsort(a([1.0, 2.0])) @ a([1.0] * 3)),
    "payload type": (TypeError, "floating", lambda ns, a: ns.neuralsort(a([1.0, 2.0])) @ a([1, 2])),
    "k": (ValueError, "between 0", lambda ns, a: ns.soft_topk(a([1.0, 2.0]), 3)),
    "dim": (ValueError, "`dim` must be", lambda ns, a: ns.soft_sort(a([1.0, 2.0]), dim=1)),
    "q": (ValueError, "lie in", lambda ns, a: ns.soft_quantile(a([1.0, 2.0]), 1.5)),
    "relax": (TypeError, "function", lambda ns, a: ns.soft_sort(a([1.0]), relax="softsort")),
    "rank of top": (
        ValueError,
        "all 2 rows",
        lambda ns, a: ns.neuralsort(a([1.0, 2.0])).top(1).rank(),
    ),
    "square": (
        ValueError,
        "square",
        lambda ns, a: ns.RelaxedPermutation.from_dense(a([[1.0, 0.0]])),
    ),
    "logits": (ValueError, "square", lambda ns, a: ns.sinkhorn(a([1.0, 2.0]))),
    "iterations": (
        ValueError,
        "not be negative",
        lambda ns, a: ns.sinkhorn_sort(a([1.0, 2.0]), iterations=-1),
    ),
    "kind": (ValueError, "`kind` must be", lambda ns, a: ns.sorting_network(a([1.0]), kind="1")),
    "swap": (ValueError, "`swap` must be", lambda ns, a: ns.sorting_network(a([1.0]), swap="1")),
    "strength": (ValueError, "negative", lambda ns, a: ns.fast_soft_sort(a([1.0]), strength=-1)),
    "strength text": (
        TypeError,
        "`strength` expects",
        lambda ns, a: ns.fast_soft_rank(a([1.0]), strength="1"),
    ),
    "regularization": (
        ValueError,
        "`regularization` must be",
        lambda ns, a: ns.fast_soft_rank(a([1.0]), regularization="l1"),
    ),
    "reduction": (
        ValueError,
        "reduction",
        lambda ns, a: ns.ranknet_loss(a([1.0]), a([1.0]), reduction="max"),
    ),
    "key values": (
        ValueError,
        "key.shape",
        lambda ns, a: ns.soft_sort_by(a([1.0, 2.0]), a([1.0, 2.0, 3.0])),
    ),
    "enumeration": (
        ValueError,
        "at most 8",
        lambda ns, a: ns.PlackettLuce(a([1.0] * 9)).enumerate_support(),
    ),
    "baseline": (
        ValueError,
        "leave_one_out",
        lambda ns, a: ns.score_function_loss(a([1.0]), a([1.0]), baseline="mean"),
    ),
    "positive tau": (
        ValueError,
        "must be positive",
        lambda ns, a: ns.kendall_loss(a([1.0]), a([1.0]), tau=0),
    ),
    "log_prob": (
        ValueError,
        "one item per row",
        lambda ns, a: ns.neuralsort(a([1.0, 2.0])).log_prob(a([0])),
    ),
}

MAKERS = {
    "torch": (nt, torch.tensor),
    "jax": (nj, lambda x: jnp.asarray(x)),
    "tf": (ntf, tf.constant),
}


def randomness(ns: Any) -> dict[str, Any]:
    return {"key": jax.random.key(0)} if ns is nj else {}


@pytest.mark.parametrize("room", MAKERS)
@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_the_same(name, room):
    kind, match, call = ERRORS[name]
    with pytest.raises(kind, match=match):
        call(*MAKERS[room])


@pytest.mark.parametrize("room", ["torch", "jax"])
@pytest.mark.parametrize("name", WITHOUT_TENSORFLOW)
def test_errors_of_torch_and_jax_are_the_same(name, room):
    kind, match, call = WITHOUT_TENSORFLOW[name]
    with pytest.raises(kind, match=match):
        call(*MAKERS[room])
