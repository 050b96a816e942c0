"""Every message: the right exception, what was expected, what came, what to do."""

import numpy as np
import pytest
import torch

import neuralsort.torch as ns
from neuralsort.torch import _checks
from neuralsort.torch.registry import METHODS

S = torch.randn(2, 5)
M = torch.randn(2, 5, 5)
RELAXATIONS = list(
    dict.fromkeys(
        getattr(method.function, "func", method.function)  # without its options
        for method in METHODS.values()
        if (method.takes, method.gives) == ("scores", "P")
    )
)


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
    "an array as payload": (
        lambda: P() @ np.ones((5, 2)),
        TypeError,
        r"P @ x.*floating.point tensor, got ndarray.*torch\.as_tensor",
    ),
    "a list of values": (
        lambda: P().sort([1.0, 2.0]),
        TypeError,
        r"P\.sort\(x\).*floating.point tensor, got list.*torch\.as_tensor",
    ),
    "an array as matrix": (
        lambda: ns.RelaxedPermutation.from_dense(np.eye(3)),
        TypeError,
        r"from_dense.*floating.point tensor, got ndarray.*torch\.as_tensor",
    ),
    "a list as mask": (
        lambda: ns.neuralsort(S, mask=[True] * 5),
        TypeError,
        r"mask.*boolean tensor.*got list.*torch\.as_tensor\(mask\)\.bool",
    ),
    "a mask of another device": (
        lambda: ns.neuralsort(S, mask=torch.ones(2, 5, dtype=torch.bool, device="meta")),
        ValueError,
        r"mask.*device of the scores, cpu, got meta.*mask\.to\(scores\.device\)",
    ),
    "temperatures of another device": (
        lambda: ns.neuralsort(S, tau=torch.ones(2, 1, device="meta")),
        ValueError,
        r"tau.*device of the scores, cpu, got meta.*tau\.to\(scores\.device\)",
    ),
    "a function of torch as relaxation": (
        lambda: ns.soft_sort(S, relax=torch.sort),
        TypeError,
        r"relax.*takes `tau=`, got sort.*RelaxedPermutation, such as neuralsort",
    ),
    "sparse scores": (
        lambda: ns.neuralsort(S.to_sparse()),
        TypeError,
        r"dense tensor.*got layout torch\.sparse_coo.*to_dense.*mask",
    ),
    "nested scores": (
        lambda: ns.softsort(torch.nested.nested_tensor([S[0], S[1, :3]], layout=torch.jagged)),
        TypeError,
        r"dense tensor.*got a nested tensor.*pad.*mask",
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
    # sinkhorn
    "scores instead of logits": (
        lambda: ns.sinkhorn(S),
        ValueError,
        r"sinkhorn\(logits\).*square.*\(2, 5\).*sinkhorn_sort",
    ),
    "scores instead of logits, gumbel_sinkhorn": (
        lambda: ns.gumbel_sinkhorn(torch.randn(5)),
        ValueError,
        r"gumbel_sinkhorn.*square.*\(5,\)",
    ),
    "integer logits, sinkhorn": (
        lambda: ns.sinkhorn(torch.eye(3).long()),
        TypeError,
        r"sinkhorn.*floating.point.*int64",
    ),
    "negative tau, sinkhorn": (lambda: ns.sinkhorn(M, tau=-1.0), ValueError, r"tau.*-1\.0"),
    "tau per row, sinkhorn": (
        lambda: ns.sinkhorn(M, tau=torch.ones(2, 5)),
        ValueError,
        r"tau.*\(2, 1\).*got \(2, 5\)",
    ),
    "mask of another shape, sinkhorn": (
        lambda: ns.sinkhorn(M, mask=torch.ones(2, 4, dtype=torch.bool)),
        ValueError,
        r"mask.*\(2, 5\).*got \(2, 4\)",
    ),
    "negative iterations, sinkhorn": (
        lambda: ns.sinkhorn(M, iterations=-1),
        ValueError,
        r"iterations.*-1.*0",
    ),
    "float iterations, sinkhorn_sort": (
        lambda: ns.sinkhorn_sort(S, iterations=2.0),
        TypeError,
        r"iterations.*int.*float",
    ),
    "tolerance of zero": (
        lambda: ns.sinkhorn(M, tolerance=0.0),
        ValueError,
        r"tolerance.*positive.*0\.0.*None",
    ),
    "tolerance of a strange type": (
        lambda: ns.sinkhorn_sort(S, tolerance="1e-3"),
        TypeError,
        r"tolerance.*number.*str",
    ),
    # networks
    "unknown network": (
        lambda: ns.sorting_network(S, kind="quick"),
        ValueError,
        r"kind.*'odd_even' or 'bitonic'.*'quick'",
    ),
    "unknown swap": (
        lambda: ns.sorting_network(S, swap="sigmoid"),
        ValueError,
        r"swap.*'logistic' or 'cauchy' or 'reciprocal'.*'sigmoid'",
    ),
    # permutahedron
    "unknown regularization": (
        lambda: ns.fast_soft_sort(S, regularization="entropy"),
        ValueError,
        r"regularization.*'l2' or 'kl'.*'entropy'.*entropic",
    ),
    "negative strength": (
        lambda: ns.fast_soft_rank(S, strength=-1.0),
        ValueError,
        r"strength.*not negative.*-1\.0.*strength=0",
    ),
    "infinite strength": (
        lambda: ns.fast_soft_rank(S, strength=float("inf")),
        ValueError,
        r"strength.*finite.*inf",
    ),
    "tensor strength": (
        lambda: ns.fast_soft_sort(S, strength=torch.tensor(1.0)),
        TypeError,
        r"strength.*number.*Tensor",
    ),
    "dim, fast_soft_sort": (
        lambda: ns.fast_soft_sort(S, dim=2),
        (ValueError, IndexError),
        r"dim.*got 2",
    ),
    "integers, fast_soft_rank": (
        lambda: ns.fast_soft_rank(torch.arange(5)),
        TypeError,
        r"fast_soft_rank.*floating.point.*int64",
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
    # distributions and estimators
    "integer logits": (
        lambda: ns.PlackettLuce(torch.arange(3)),
        TypeError,
        r"PlackettLuce\(logits\).*floating.point.*int64",
    ),
    "relaxed: negative tau": (lambda: ns.RelaxedPlackettLuce(-1.0, S), ValueError, r"tau.*-1\.0"),
    "relaxed: the name of a relaxation": (
        lambda: ns.RelaxedPlackettLuce(1.0, S, relax="neuralsort"),
        TypeError,
        r"relax.*function.*'neuralsort'.*partial",
    ),
    "a ranking of floats": (
        lambda: ns.PlackettLuce(S).log_prob(S),
        TypeError,
        r"ranking.*integer.*float32.*argsort",
    ),
    "a ranking as a list": (
        lambda: ns.plackett_luce_nll(S, [0, 1]),
        TypeError,
        r"ranking.*integer.*list",
    ),
    "a ranking with too many places": (
        lambda: ns.PlackettLuce(S).log_prob(torch.zeros(6, dtype=torch.long)),
        ValueError,
        r"ranking.*at most k = 5.*\(6,\)",
    ),
    "rankings for another batch": (
        lambda: ns.PlackettLuce(S).log_prob(torch.zeros(3, 5, dtype=torch.long)),
        ValueError,
        r"ranking.*broadcasts against \(2,\).*got \(3,\)",
    ),
    "noise given a prefix": (
        lambda: ns.PlackettLuce(S).rsample_given(torch.zeros(2, 3, dtype=torch.long)),
        ValueError,
        r"ranking.*all 5 items.*got 3.*log_prob",
    ),
    "a float mask of a ranking": (
        lambda: ns.plackett_luce_nll(S, S.argsort(-1), mask=torch.ones(5)),
        TypeError,
        r"mask.*boolean.*float32",
    ),
    "enumeration of many rankings": (
        lambda: ns.PlackettLuce(torch.zeros(9)).enumerate_support(),
        ValueError,
        r"at most 8 items.*got 9.*9!.*sample",
    ),
    "divergence between lists of other lengths": (
        lambda: ns.PlackettLuce(S).kl_divergence(ns.PlackettLuce(S[:, :3])),
        ValueError,
        r"kl_divergence.*as many items.*5 and 3",
    ),
    "no samples": (
        lambda: ns.stochastic_neuralsort(S, samples=0),
        ValueError,
        r"samples.*at least 1.*got 0",
    ),
    "samples that are no number": (
        lambda: ns.stochastic_neuralsort(S, samples=2.0),
        TypeError,
        r"samples.*int.*float",
    ),
    "one sample for a baseline": (
        lambda: ns.score_function_loss(torch.zeros(1), torch.zeros(1)),
        ValueError,
        r"samples.*at least 2.*got 1.*leave-one-out",
    ),
    "a baseline that is not known": (
        lambda: ns.score_function_loss(torch.zeros(2), torch.zeros(2), baseline="mean"),
        ValueError,
        r"baseline.*leave_one_out.*'mean'",
    ),
    "costs of other samples": (
        lambda: ns.score_function_loss(torch.zeros(2), torch.zeros(3)),
        ValueError,
        r"score_function_loss.*one shape.*\(2,\) and \(3,\)",
    ),
    "costs that are whole numbers": (
        lambda: ns.score_function_loss(torch.zeros(2), torch.tensor([1, 2])),
        TypeError,
        r"cost.*floating-point.*int64.*float\(\)",
    ),
    "a cost per batch": (
        lambda: ns.estimators.exact_expectation(lambda P: P.to_dense().sum(), S),
        ValueError,
        r"cost.*per sample and list.*\(120, 2\).*got \(\)",
    ),
    "a reduction that is not known": (
        lambda: ns.plackett_luce_nll(S, S.argsort(-1), reduction="avg"),
        ValueError,
        r"reduction.*mean.*'avg'",
    ),
    # losses and metrics
    "relevance of another shape": (
        lambda: ns.neural_ndcg(S, torch.ones(2, 4), tau=1.0),
        ValueError,
        r"neural_ndcg\(relevance\).*\(2, 5\).*got \(2, 4\).*per item",
    ),
    "relevance that is a list": (
        lambda: ns.ranknet_loss(S, [1, 0]),
        TypeError,
        r"ranknet_loss\(relevance\).*real numbers.*list.*as_tensor",
    ),
    "complex target": (
        lambda: ns.spearman_loss(S, S.to(torch.complex64), tau=1.0),
        TypeError,
        r"spearman_loss\(target\).*real.*complex64",
    ),
    "integer values of a loss": (
        lambda: ns.kendall_loss(S.long(), S, tau=1.0),
        TypeError,
        r"kendall_loss\(x\).*floating.point.*int64",
    ),
    "a loss over pairs at tau 0": (
        lambda: ns.approx_ndcg(S, S, tau=0.0),
        ValueError,
        r"tau.*positive.*got 0.*metric",
    ),
    "float target order": (
        lambda: ns.permutation_cross_entropy(P(), S),
        TypeError,
        r"integer item indices.*float32",
    ),
    "target order of another length": (
        lambda: ns.permutation_cross_entropy(P(), torch.zeros(2, 4, dtype=torch.long)),
        ValueError,
        r"one item per row.*5.*\(2, 4\)",
    ),
    "target order of more lists": (
        lambda: ns.permutation_cross_entropy(P(), torch.zeros(3, 5, dtype=torch.long)),
        ValueError,
        r"permutation_cross_entropy\(target\).*\(2, 5\).*got \(3, 5\)",
    ),
    "a matrix where an operator belongs": (
        lambda: ns.permutation_cross_entropy(torch.eye(5), torch.arange(5)),
        TypeError,
        r"permutation_cross_entropy\(P\).*RelaxedPermutation.*Tensor.*from_dense",
    ),
    "scores where an operator belongs": (
        lambda: ns.knn_loss(S, torch.ones(2, 5), k=1),
        TypeError,
        r"knn_loss\(P\).*RelaxedPermutation.*Tensor.*neuralsort",
    ),
    "target of floats": (
        lambda: ns.permutation_cross_entropy(P(), torch.zeros(2, 5)),
        TypeError,
        r"permutation_cross_entropy\(target\).*integer.*float32",
    ),
    "target of another length, spearman": (
        lambda: ns.metrics.spearman(S, torch.ones(2, 4)),
        ValueError,
        r"spearman\(target\).*\(2, 4\)",
    ),
    "mask of another shape, soft_sort": (
        lambda: ns.soft_sort(S, mask=torch.ones(2, 4, dtype=torch.bool)),
        ValueError,
        r"mask.*\(2, 5\).*got \(2, 4\)",
    ),
    "flags of another length": (
        lambda: ns.knn_loss(P(), torch.ones(2, 4), k=1),
        ValueError,
        r"same_label.*\(2, 5\).*\(2, 4\)",
    ),
    "no neighbours": (
        lambda: ns.knn_loss(P(), torch.ones(2, 5), k=0),
        ValueError,
        r"k.*at least 1.*got 0",
    ),
    "more neighbours than candidates": (
        lambda: ns.knn_loss(P(), torch.ones(2, 5), k=6),
        ValueError,
        r"k.*5.*got 6",
    ),
    "float labels": (
        lambda: ns.topk_cross_entropy(S, torch.ones(2), k=1, tau=1.0),
        TypeError,
        r"labels.*integer.*float32.*\.long\(\)",
    ),
    "one-hot labels": (
        lambda: ns.topk_cross_entropy(S, torch.ones(2, 5).long(), k=1, tau=1.0),
        ValueError,
        r"labels.*shape \(2,\).*\(2, 5\).*one-hot",
    ),
    "an empty top set": (
        lambda: ns.topk_cross_entropy(S, torch.zeros(2).long(), k=0, tau=1.0),
        ValueError,
        r"k.*at least 1.*got 0",
    ),
    "shares that do not sum to 1": (
        lambda: ns.topk_cross_entropy(S, torch.zeros(2).long(), k={1: 0.5, 2: 0.6}, tau=1.0),
        ValueError,
        r"k.*sum to 1.*0\.6.*\{1: 0\.5, 5: 0\.5\}",
    ),
    "negative iterations": (
        lambda: ns.neural_ndcg(S, S, tau=1.0, iterations=-1),
        ValueError,
        r"iterations.*negative.*got -1.*0",
    ),
    "float iterations": (
        lambda: ns.neural_ndcg(S, S, tau=1.0, iterations=2.0),
        TypeError,
        r"iterations.*int.*float",
    ),
    "cutoff 0": (
        lambda: ns.metrics.ndcg(S, S, k=0),
        ValueError,
        r"k.*at least 1.*got 0.*None",
    ),
    "float cutoff": (
        lambda: ns.neural_ndcg(S, S, tau=1.0, k=2.0),
        TypeError,
        r"k.*int or None.*float",
    ),
    "float permutations": (
        lambda: ns.metrics.exact_match(S, S),
        TypeError,
        r"perm.*integer item indices.*float32.*permutation\(\)",
    ),
    "permutations of two shapes": (
        lambda: ns.metrics.element_wise(torch.zeros(2, 5).long(), torch.zeros(5).long()),
        ValueError,
        r"target.*\(2, 5\).*got \(5,\)",
    ),
    "a reduction of a metric that is not known": (
        lambda: ns.metrics.spearman(S, S, reduction="max"),
        ValueError,
        r"reduction.*mean.*'max'",
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


@pytest.mark.parametrize("relax", RELAXATIONS)
@pytest.mark.parametrize(
    ("argument", "value"),
    [("tau", -1.0), ("mask", torch.ones(1, dtype=torch.bool).expand(3)), ("mask", torch.ones(5))],
)
def test_relaxations_check_alike(relax, argument, value):
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


def test_products_with_other_lists_say_so():
    """The rule that `P @ x`, `P.mT @ y`, `P.sort(x)` and `P.log_prob(perm)` share."""
    for lists in ((), (1,), (2,), (7, 2), (2, 1, 1)):
        _checks.same_batch("P @ x", torch.Size(lists), P().shape)
    message = r"`P @ x` expects a batch that broadcasts against \(2,\).*got \(3,\)\. Give every"
    with pytest.raises(ValueError, match=message):
        _checks.same_batch("P @ x", torch.Size((3,)), P().shape)
    n, others = P().shape[-1], torch.arange(P().shape[-1]).expand(3, -1)
    for lists in (
        P(),
        P().top(2),
        P().straight_through(),
        ns.RelaxedPermutation.from_dense(P().to_dense()),
    ):
        rows = lists.shape[-2]
        for what, ask in {
            "P @ x": lambda lists=lists: lists @ torch.ones(3, n, 1),
            "P.mT @ y": lambda lists=lists, rows=rows: lists.mT @ torch.ones(3, rows, 1),
            "P.sort": lambda lists=lists: lists.sort(torch.ones(3, n)),
            "log_prob": lambda lists=lists, rows=rows: lists.log_prob(others[:, :rows]),
        }.items():
            with pytest.raises(
                ValueError, match=r"batch that broadcasts.*\(2,\).*got \(3,\)"
            ) as told:
                ask()
            assert what in str(told.value)


def test_rules_do_not_look_where_there_is_nothing_to_see():
    """Under vmap, in compiled code and on devices without values they let everything pass."""
    perms = torch.stack([torch.randperm(5) for _ in range(3)])
    scores = torch.randn(3, 5)
    mapped = torch.vmap(lambda s, z: ns.neuralsort(s).log_prob(z))(scores, perms)
    torch.testing.assert_close(mapped, ns.neuralsort(scores).log_prob(perms))
    losses = torch.vmap(ns.plackett_luce_nll)(scores, perms)
    expected = ns.plackett_luce_nll(scores, perms, reduction="none")
    torch.testing.assert_close(losses, expected)
    quantiles = torch.vmap(ns.soft_quantile)(scores, torch.tensor([0.2, 0.5, 1.5]))
    torch.testing.assert_close(
        quantiles[:2],
        torch.stack([ns.soft_quantile(scores[0], 0.2), ns.soft_quantile(scores[1], 0.5)]),
    )
    assert quantiles[2].isnan()  # nobody can be told
    for function in (
        lambda s, z: ns.neuralsort(s).log_prob(z),
        ns.plackett_luce_nll,
        lambda s, z: ns.soft_quantile(s, torch.tensor([0.5])) + z.sum(),
        lambda s, z: ns.topk_cross_entropy(s, z[:, 0], k=2, tau=1.0),
    ):
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(scores, perms), function(scores, perms))
    assert not _checks.readable(torch.empty(3, device="meta"))


def test_the_support_has_a_whole_name():
    assert repr(ns.PlackettLuce(torch.zeros(3)).support) == "Permutation(3)"


def test_modules_refuse_an_unknown_reduction_when_they_are_made():
    for make in (
        ns.nn.PermutationCrossEntropy,
        lambda **o: ns.nn.KNNLoss(2, **o),
        ns.nn.PlackettLuceNLL,
        lambda **o: ns.nn.TopKCrossEntropy(2, tau=1.0, **o),
        lambda **o: ns.nn.NeuralNDCG(tau=1.0, **o),
        lambda **o: ns.nn.ApproxNDCG(tau=1.0, **o),
        lambda **o: ns.nn.SpearmanLoss(tau=1.0, **o),
        lambda **o: ns.nn.KendallLoss(tau=1.0, **o),
        ns.nn.RankNetLoss,
    ):
        with pytest.raises(ValueError, match=r"`reduction` must be.*got 'avg'.*\"none\""):
            make(reduction="avg")


def test_losses_are_where_their_arguments_are():
    """Not on torch's default device, here one where a meeting with values is an error."""
    scores, P_ = torch.randn(2, 5), P()
    flags, perm = torch.rand(2, 5) > 0.5, torch.stack([torch.randperm(5) for _ in range(2)])
    logits = torch.randn(2, 5, 5)
    for call in (
        lambda: ns.knn_loss(P_, flags, k=2),
        lambda: ns.knn_loss(P_, flags, k=2, mask=flags),
        lambda: ns.permutation_cross_entropy(P_, perm),
        lambda: ns.topk_cross_entropy(scores, perm[:, 0], k=2, tau=1.0),
        lambda: ns.plackett_luce_nll(scores, perm),
        lambda: ns.neural_ndcg(scores, perm, tau=1.0),
        lambda: ns.approx_ndcg(scores, perm, tau=1.0),
        lambda: ns.spearman_loss(scores, perm, tau=1.0),
        lambda: ns.kendall_loss(scores, perm, tau=1.0),
        lambda: ns.ranknet_loss(scores, perm),
        lambda: ns.sinkhorn(logits).to_dense(),
        lambda: ns.soft_median(scores),
        lambda: ns.tau_for_blur(scores),
        lambda: ns.fast_soft_sort(scores),
        lambda: ns.fast_soft_rank(scores, regularization="kl"),
        lambda: ns.sorting_network(scores, kind="bitonic").rank(),
    ):
        expected = call()
        with torch.device("meta"):
            found = call()
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_shapes_without_values_give_shapes():
    scores = torch.empty(2, 5, device="meta")
    assert ns.fast_soft_sort(scores).shape == (2, 5)
    assert ns.fast_soft_rank(scores, regularization="kl").shape == (2, 5)
    P_ = ns.sinkhorn(torch.empty(3, 5, 5, device="meta"))
    assert P_.to_dense().shape == (3, 5, 5)
    assert P_.permutation().shape == (3, 5)
