"""Modules: what their functions give, options shown, temperatures that train."""

import functools

import pytest
import torch

import neuralsort.torch as ns
from neuralsort.torch import nn

SCORES = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
GRADES = torch.tensor([[0, 1, 2, 0, 1, 3]] * 3)
ORDER = torch.stack(
    [torch.randperm(6, generator=torch.Generator().manual_seed(i)) for i in (1, 2, 3)]
)
LABELS = torch.tensor([0, 3, 5])
P = ns.neuralsort(SCORES, tau=0.5)

MODULES = {
    "PermutationCrossEntropy": (
        nn.PermutationCrossEntropy(reduction="sum"),
        functools.partial(ns.permutation_cross_entropy, reduction="sum"),
        (P, ORDER),
    ),
    "KNNLoss": (nn.KNNLoss(2), functools.partial(ns.knn_loss, k=2), (P, GRADES > 0)),
    "PlackettLuceNLL": (nn.PlackettLuceNLL(), ns.plackett_luce_nll, (SCORES, ORDER)),
    "TopKCrossEntropy": (
        nn.TopKCrossEntropy({1: 0.5, 3: 0.5}, tau=0.3, relax=ns.softsort),
        functools.partial(ns.topk_cross_entropy, k={1: 0.5, 3: 0.5}, tau=0.3, relax=ns.softsort),
        (SCORES, LABELS),
    ),
    "NeuralNDCG": (
        nn.NeuralNDCG(tau=0.3, k=3, iterations=4, relax=ns.softsort, reduction="none"),
        functools.partial(
            ns.neural_ndcg, tau=0.3, k=3, iterations=4, relax=ns.softsort, reduction="none"
        ),
        (SCORES, GRADES),
    ),
    "ApproxNDCG": (
        nn.ApproxNDCG(tau=0.3),
        functools.partial(ns.approx_ndcg, tau=0.3),
        (SCORES, GRADES),
    ),
    "SpearmanLoss": (
        nn.SpearmanLoss(tau=0.3),
        functools.partial(ns.spearman_loss, tau=0.3),
        (SCORES, GRADES),
    ),
    "KendallLoss": (
        nn.KendallLoss(tau=0.3),
        functools.partial(ns.kendall_loss, tau=0.3),
        (SCORES, GRADES),
    ),
    "RankNetLoss": (nn.RankNetLoss(), ns.ranknet_loss, (SCORES, GRADES)),
    "ListNetLoss": (nn.ListNetLoss(), ns.listnet_loss, (SCORES, GRADES)),
    "LambdaLoss": (
        nn.LambdaLoss(k=3),
        functools.partial(ns.lambda_loss, k=3),
        (SCORES, GRADES),
    ),
    "SmoothAPLoss": (
        nn.SmoothAPLoss(tau=0.3),
        functools.partial(ns.smooth_ap_loss, tau=0.3),
        (SCORES, GRADES),
    ),
    "RecallAtKLoss": (
        nn.RecallAtKLoss((1, 3), tau=0.3, rank_tau=0.5),
        functools.partial(ns.recall_at_k_loss, k=(1, 3), tau=0.3, rank_tau=0.5),
        (SCORES, GRADES),
    ),
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("masked", [False, True])
def test_loss_modules_give_what_their_functions_give(name, masked):
    module, function, inputs = MODULES[name]
    mask = torch.ones(3, 6, dtype=torch.bool) if masked else None
    torch.testing.assert_close(module(*inputs, mask=mask), function(*inputs, mask=mask))


def test_every_module_is_tested():
    assert set(nn.__all__) - {"DifferentiableKNN", "NeuralSort", "SoftTopK"} == set(MODULES)


def test_neuralsort_module_relaxes():
    mask = SCORES > -0.5
    actual = nn.NeuralSort(tau=0.3)(SCORES, mask=mask)
    expected = ns.neuralsort(SCORES, tau=0.3, mask=mask)
    torch.testing.assert_close(actual.to_dense(), expected.to_dense())


def test_softtopk_module_selects():
    actual = nn.SoftTopK(2, tau=0.3, dim=0, largest=False, relax=ns.softsort)(SCORES)
    expected = ns.soft_topk(SCORES, 2, tau=0.3, dim=0, largest=False, relax=ns.softsort)
    torch.testing.assert_close(actual.values, expected.values)
    torch.testing.assert_close(actual.weights, expected.weights)


def test_a_temperature_may_be_a_parameter():
    """It is registered, saved, moved, and trained."""
    module = nn.NeuralSort(tau=torch.nn.Parameter(torch.tensor(0.7)))
    assert dict(module.named_parameters()).keys() == {"tau"}
    assert module.state_dict()["tau"] == torch.tensor(0.7)
    module(SCORES).sort(SCORES)[:, 0].sum().backward()
    assert module.tau.grad.abs() > 0
    assert module.double().tau.dtype is torch.float64


def test_modules_show_their_options():
    shown = repr(nn.NeuralNDCG(tau=0.3, k=5, relax=ns.softsort))
    assert shown == "NeuralNDCG(tau=0.3, k=5, iterations=10, relax=softsort, reduction='mean')"
    assert "power=2" in repr(nn.SoftTopK(1, relax=functools.partial(ns.softsort, power=2)))


def test_modules_compose_with_others():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Flatten(-2), nn.NeuralSort())
    permutation = model(torch.randn(2, 5, 4))
    nn.PermutationCrossEntropy()(permutation, torch.stack([torch.randperm(5)] * 2)).backward()
    assert model[0].weight.grad.abs().sum() > 0
