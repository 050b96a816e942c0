"""Every message: the right exception, what was expected, what came, what to do."""

import numpy as np
import pytest
import torch

import neuralsort.torch as ns

S = torch.randn(2, 5)
BOTH = [ns.neuralsort, ns.softsort]


def P(*shape: int) -> ns.RelaxedPermutation:
    return ns.neuralsort(torch.randn(*(shape or (2, 5))))


CASES = {
    # scores
    "integer scores": (
        lambda: ns.neuralsort(torch.arange(5)),
        TypeError,
        r"floating.point.*got torch\.int64.*\.float\(\)",
    ),
    "boolean scores": (
        lambda: ns.softsort(torch.ones(5, dtype=torch.bool)),
        TypeError,
        r"floating.point.*got torch\.bool",
    ),
    "complex scores": (
        lambda: ns.neuralsort(torch.ones(5, dtype=torch.complex64)),
        TypeError,
        r"floating.point.*got torch\.complex64",
    ),
    "a list of scores": (
        lambda: ns.neuralsort([3.0, 1.0]),
        TypeError,
        r"torch\.Tensor.*got list.*torch\.as_tensor",
    ),
    "an array of scores": (
        lambda: ns.softsort(np.ones(3)),
        TypeError,
        r"torch\.Tensor.*got ndarray.*torch\.as_tensor",
    ),
    "scores without a dimension": (
        lambda: ns.neuralsort(torch.tensor(1.0)),
        ValueError,
        r"at least one dimension.*0-d.*\(1,\)",
    ),
    # tau
    "negative tau": (
        lambda: ns.neuralsort(S, tau=-1.0),
        ValueError,
        r"tau.*not negative.*-1\.0.*tau=0",
    ),
    "negative tau, softsort": (lambda: ns.softsort(S, tau=-0.5), ValueError, r"tau.*-0\.5"),
    "NaN tau": (lambda: ns.neuralsort(S, tau=float("nan")), ValueError, r"tau.*got nan"),
    "infinite tau": (lambda: ns.neuralsort(S, tau=float("inf")), ValueError, r"tau.*got inf"),
    "tau of a strange type": (lambda: ns.neuralsort(S, tau="1"), TypeError, r"tau.*number.*str"),
    "boolean tau": (lambda: ns.neuralsort(S, tau=True), TypeError, r"tau.*number.*bool"),
    "integer tensor tau": (
        lambda: ns.neuralsort(S, tau=torch.tensor(1)),
        TypeError,
        r"tau.*floating.point.*int64",
    ),
    "tau without the last dimension": (
        lambda: ns.neuralsort(S, tau=torch.ones(2)),
        ValueError,
        r"tau.*\(2, 1\).*\(2, 5\).*got \(2,\).*unsqueeze\(-1\)",
    ),
    "tau per item": (
        lambda: ns.neuralsort(S, tau=torch.ones(2, 5)),
        ValueError,
        r"tau.*per list.*got \(2, 5\)",
    ),
    "tau with too many dimensions": (
        lambda: ns.softsort(S, tau=torch.ones(3, 2, 1)),
        ValueError,
        r"tau.*got \(3, 2, 1\)",
    ),
    "tau of an operator": (lambda: ns.soft_sort(S, tau=-2.0), ValueError, r"tau.*-2\.0"),
    # mask
    "mask of another shape": (
        lambda: ns.neuralsort(S, mask=torch.ones(2, 4, dtype=torch.bool)),
        ValueError,
        r"mask.*\(2, 5\).*got \(2, 4\)",
    ),
    "mask of more lists": (
        lambda: ns.softsort(S, mask=torch.ones(3, 2, 5, dtype=torch.bool)),
        ValueError,
        r"mask.*\(2, 5\).*got \(3, 2, 5\)",
    ),
    "float mask": (
        lambda: ns.neuralsort(S, mask=torch.ones(2, 5)),
        TypeError,
        r"mask.*boolean.*float32.*\.bool\(\)",
    ),
    "mask that is a list": (
        lambda: ns.neuralsort(S, mask=[True] * 5),
        TypeError,
        r"mask.*boolean.*list",
    ),
    # power
    "power 3": (lambda: ns.softsort(S, power=3.0), ValueError, r"power.*1 or 2.*3\.0"),
    # k
    "k above n, top": (lambda: P().top(6), ValueError, r"k.*5.*got 6"),
    "k above n, soft_topk": (lambda: ns.soft_topk(S, 6), ValueError, r"k.*5.*got 6"),
    "negative k": (lambda: P().top(-1), ValueError, r"k.*got -1"),
    "negative k, soft_topk": (lambda: ns.soft_topk(S, -1), ValueError, r"k.*got -1"),
    "float k": (lambda: P().top(2.0), TypeError, r"k.*int.*float"),
    "k of the other dimension": (lambda: ns.soft_topk(S, 3, dim=0), ValueError, r"k.*2.*got 3"),
    # dim
    "dim above": (lambda: ns.soft_sort(S, dim=2), (ValueError, IndexError), r"dim.*-2.*1.*got 2"),
    "dim below": (lambda: ns.soft_rank(S, dim=-3), (ValueError, IndexError), r"dim.*got -3"),
    "dim, soft_topk": (lambda: ns.soft_topk(S, 1, dim=5), (ValueError, IndexError), r"dim.*got 5"),
    "dim, soft_quantile": (
        lambda: ns.soft_quantile(S, 0.5, dim=5),
        (ValueError, IndexError),
        r"dim.*got 5",
    ),
    "dim, soft_median": (
        lambda: ns.soft_median(S, dim=5),
        (ValueError, IndexError),
        r"dim.*got 5",
    ),
    "dim, soft_sort_by": (
        lambda: ns.soft_sort_by(torch.randn(2, 5, 3), S, dim=2),  # a dimension of values, not key
        (ValueError, IndexError),
        r"dim.*got 2",
    ),
    # q
    "q above 1": (lambda: ns.soft_quantile(S, 1.5), ValueError, r"q.*\[0, 1\].*got 1\.5"),
    "q below 0": (lambda: ns.soft_quantile(S, -0.1), ValueError, r"q.*\[0, 1\].*got -0\.1"),
    "q NaN": (lambda: ns.soft_quantile(S, float("nan")), ValueError, r"q.*\[0, 1\].*got nan"),
    "q of two dimensions": (
        lambda: ns.soft_quantile(S, torch.rand(2, 2)),
        ValueError,
        r"q.*1-d.*\(2, 2\)",
    ),
    # payloads
    "payload of another length": (
        lambda: P() @ torch.randn(4, 3),
        ValueError,
        r"P @ x.*5 items.*got shape \(4, 3\)",
    ),
    "payload of another length, 1-d": (lambda: P(5) @ torch.randn(4), ValueError, r"5.*\(4,\)"),
    "payload of another length, transpose": (
        lambda: P().mT @ torch.randn(4, 3),
        ValueError,
        r"P\.mT @ y.*5.*\(4, 3\)",
    ),
    "payload of another length, top": (
        lambda: P().top(2) @ torch.randn(2, 3),
        ValueError,
        r"5.*\(2, 3\)",
    ),
    "payload of another length, transposed top": (
        lambda: P().top(2).mT @ torch.randn(5, 3),
        ValueError,
        r"2.*\(5, 3\)",
    ),
    "integer payload": (lambda: P() @ torch.ones(5, 3).long(), TypeError, r"floating.point.*int64"),
    "payload that is a list": (lambda: P(3) @ [1.0, 2.0, 3.0], TypeError, r"tensor.*list"),
    "values of another length, sort": (
        lambda: P().sort(torch.randn(2, 4)),
        ValueError,
        r"sort.*5.*\(2, 4\)",
    ),
    "integer values, sort": (lambda: P().sort(torch.arange(5)), TypeError, r"sort.*int64"),
    "values that do not begin with the key's shape": (
        lambda: ns.soft_sort_by(torch.randn(2, 4), S),
        ValueError,
        r"soft_sort_by.*key\.shape.*\(2, 5\).*got \(2, 4\)",
    ),
    "values with too few dimensions": (
        lambda: ns.soft_sort_by(torch.randn(5), S),
        ValueError,
        r"soft_sort_by.*\(2, 5\).*got \(5,\)",
    ),
    "integer values, soft_sort_by": (
        lambda: ns.soft_sort_by(torch.ones(2, 5).long(), S),
        TypeError,
        r"soft_sort_by.*floating.point.*int64",
    ),
    "integer key": (lambda: ns.soft_sort_by(S, torch.ones(2, 5).long()), TypeError, r"int64"),
    # log_prob
    "float perm": (lambda: P().log_prob(torch.rand(2, 5)), TypeError, r"log_prob.*integer.*float"),
    "perm of another length": (
        lambda: P().log_prob(torch.zeros(2, 4, dtype=torch.long)),
        ValueError,
        r"log_prob.*5.*\(2, 4\).*top\(k\)",
    ),
    "rank of a part": (lambda: P().top(2).rank(), ValueError, r"rank.*5 rows.*2.*top\(k\)"),
    # from_dense
    "matrix that is not square": (
        lambda: ns.RelaxedPermutation.from_dense(torch.rand(3, 4)),
        ValueError,
        r"square.*\(3, 4\)",
    ),
    "matrix with one dimension": (
        lambda: ns.RelaxedPermutation.from_dense(torch.rand(3)),
        ValueError,
        r"square.*\(3,\)",
    ),
    "integer matrix": (
        lambda: ns.RelaxedPermutation.from_dense(torch.eye(3).long()),
        TypeError,
        r"from_dense.*floating.point.*int64",
    ),
    "matrix that is an array": (
        lambda: ns.RelaxedPermutation.from_dense(np.eye(3)),
        TypeError,
        r"from_dense.*tensor.*ndarray",
    ),
    # the rest
    "name instead of a function": (
        lambda: ns.soft_sort(S, relax="neuralsort"),
        TypeError,
        r"relax.*function.*'neuralsort'.*functools\.partial",
    ),
    "no ranks to blend": (lambda: ns.tau_for_blur(S, ranks=0.0), ValueError, r"ranks.*got 0\.0"),
    "ranks of a strange type": (lambda: ns.tau_for_blur(S, ranks="1"), TypeError, r"ranks.*str"),
    "straight_through of two shapes": (
        lambda: ns.straight_through(torch.ones(3), torch.ones(2)),
        ValueError,
        r"shape.*\(3,\).*\(2,\)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_message(case):
    call, exception, pattern = CASES[case]
    with pytest.raises(exception, match=pattern) as caught:
        call()
    # Expected and came, then what to do: more than one sentence, none of them torch's own.
    message = str(caught.value)
    assert message.count(". ") >= 1
    assert message.endswith(".")


@pytest.mark.parametrize("relax", BOTH)
@pytest.mark.parametrize(
    ("argument", "value"),
    [("tau", -1.0), ("mask", torch.ones(1, dtype=torch.bool).expand(3)), ("mask", torch.ones(5))],
)
def test_both_relaxations_check_alike(relax, argument, value):
    with pytest.raises((TypeError, ValueError), match=argument):
        relax(S, **{argument: value})


@pytest.mark.parametrize(
    "operator",
    [ns.soft_sort, ns.soft_rank, ns.soft_median, lambda x, **k: ns.soft_topk(x, 1, **k)],
    ids=["soft_sort", "soft_rank", "soft_median", "soft_topk"],
)
def test_operators_name_what_came_as_scores(operator):
    with pytest.raises(TypeError, match=r"floating.point.*int64"):
        operator(torch.arange(5))
    with pytest.raises(TypeError, match=r"Tensor.*list"):
        operator([1.0, 2.0])
    with pytest.raises((ValueError, IndexError), match=r"0-d|dim"):
        operator(torch.tensor(1.0))


def test_options_are_keyword_only():
    with pytest.raises(TypeError, match="positional"):
        ns.neuralsort(S, 1.0)
    with pytest.raises(TypeError, match="positional"):
        ns.softsort(S, 1.0)
    with pytest.raises(TypeError, match="positional"):
        ns.soft_sort(S, 1.0)
