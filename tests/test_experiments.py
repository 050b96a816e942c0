"""The studies: data, networks, methods, metrics, intervals, and the lines they end in."""

import ast
import gzip
import json
import math
import os
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("lightning_fabric", reason="needs the extra `experiments`")

from scipy.stats import binomtest
from sklearn.metrics import r2_score

import neuralsort.torch as ns
from neuralsort.experiments import (
    data,
    intervals,
    median,
    orderings,
    paper,
    record,
    report,
    sorting,
    sources,
    tables,
    train,
)
from neuralsort.experiments.checkpoint import CheckpointError
from neuralsort.experiments.data import Digits, Sequences
from neuralsort.experiments.median import MedianConfig, MedianStudy
from neuralsort.experiments.models import CellReader, PaperNetwork, PlaceSum, jitter, split_cells
from neuralsort.experiments.plan import ConfigError
from neuralsort.experiments.randomness import generator_for, seed_for
from neuralsort.experiments.reproduction import runs
from neuralsort.experiments.sorting import SortConfig, SortModel, SortStudy, outcomes
from neuralsort.experiments.sources import DataError
from neuralsort.experiments.study import MODEL, RESULT, evaluate, run

NEEDS_DATA = pytest.mark.skipif(
    "NEURALSORT_DATA" not in os.environ, reason="NEURALSORT_DATA names no folder with MNIST"
)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


@pytest.fixture
def numbers() -> Digits:
    """Twenty 'images' of one pixel: the classes twice, the pixel telling class and copy."""
    labels = torch.arange(10).repeat(2)
    return Digits.of(
        (labels * 10 + torch.arange(2).repeat_interleave(10)).byte().view(-1, 1, 1), labels
    )


def test_experiments_use_the_public_api_only():
    folder = Path(data.__file__).parent
    imported = set()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name for name in imported if name.split(".")[0] == "neuralsort"}
    assert "neuralsort.torch" in ours  # the check sees imports at all
    assert all(not part.startswith("_") for name in ours for part in name.split("."))
    assert all(name.count(".") <= 2 for name in ours), "a module of the library, not its surface"


# -- data ------------------------------------------------------------------------------------------


def test_embedded_digits_are_all_there_and_in_one_split_each(digits):
    sizes = {name: len(one.images) for name, one in digits.items()}
    assert sum(sizes.values()) == 1797
    assert sizes["train"] > 2 * (sizes["validation"] + sizes["test"])
    for one in digits.values():
        assert one.counts.min() >= 15  # every class, in every split
    from sklearn.datasets import load_digits

    expected = np.sort(load_digits().images.reshape(1797, -1).sum(1) * 255 / 16)
    together = torch.cat([one.images.flatten(1).double().sum(1) for one in digits.values()])
    assert np.allclose(np.sort(together.numpy()), expected, atol=32.5)  # 64 roundings of a half


def test_splits_do_not_change(digits):
    """A different split would make old results incomparable."""
    sums = {name: int(one.images.long().sum()) for name, one in digits.items()}
    assert sums == SPLIT_SUMS


SPLIT_SUMS = {"train": 6242487, "validation": 899423, "test": 1811891}


def test_images_show_the_number_digit_by_digit(numbers):
    drawn = Sequences.draw(numbers, 50, 4, 3, torch.Generator().manual_seed(0))
    pixels = (drawn.images() * 255).round().long().squeeze(-2)  # (50, 4, 3)
    shown = (pixels // 10 * torch.tensor([100, 10, 1])).sum(-1)
    assert torch.equal(shown, drawn.values)
    assert set((pixels % 10).flatten().tolist()) == {0, 1}  # both copies are used


def test_numbers_are_uniform_over_the_whole_range(digits):
    drawn = Sequences.draw(digits["train"], 4000, 5, 4, torch.Generator().manual_seed(0))
    assert drawn.values.min() >= 0
    assert drawn.values.max() <= 9999
    counts = torch.bincount(drawn.values.flatten() // 1000, minlength=10)
    assert (counts - 2000).abs().max() < 5 * math.sqrt(2000)


def test_order_is_stable_and_descending(numbers):
    values = torch.tensor([[3, 7, 3, 9]])
    sequences = Sequences(numbers, torch.zeros(1, 4, 1, dtype=torch.long), values)
    assert sequences.order().tolist() == [[3, 1, 0, 2]]


def test_fixed_sets_are_the_same_for_everybody(digits):
    first = Sequences.fixed(digits["test"], "test", 20, 5, 4)
    again = Sequences.fixed(digits["test"], "test", 20, 5, 4)
    other = Sequences.fixed(digits["test"], "validation", 20, 5, 4)
    assert torch.equal(first.index, again.index)
    assert not torch.equal(first.values, other.values)
    assert first.values[0].tolist() == FIXED_FIRST


FIXED_FIRST = [6769, 9433, 3237, 3832, 7277]


def test_chunks_are_the_whole(digits):
    sequences = Sequences.fixed(digits["test"], "test", 23, 3, 2)
    parts = list(sequences.chunks(5))
    assert [len(part) for part in parts] == [5, 5, 5, 5, 3]
    assert torch.equal(torch.cat([part.images() for part in parts]), sequences.images())


def test_streams_differ_by_every_name():
    seeds = {seed_for(a, b, c) for a in range(5) for b in ("x", "y") for c in range(100)}
    assert len(seeds) == 1000
    a = torch.rand(3, generator=generator_for(0, "batch", 1))
    assert torch.equal(a, torch.rand(3, generator=generator_for(0, "batch", 1)))


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def test_idx_files_are_read(tmp_path):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    write_idx(tmp_path / "file.gz", array)
    assert np.array_equal(data.read_idx(tmp_path / "file.gz").numpy(), array)
    (tmp_path / "file.gz").write_bytes(gzip.compress(b"\1\2\3\4\5"))
    with pytest.raises(DataError, match="not an IDX file"):
        data.read_idx(tmp_path / "file.gz")


def test_missing_files_say_where_they_were_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    monkeypatch.setattr(sources, "_cache", lambda source: tmp_path / "cache")
    with pytest.raises(DataError, match=r"train-images.*is missing.*--data-dir or NEURALSORT_DATA"):
        sources.find("mnist", tmp_path, download=False)


def test_corrupt_file_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"half a file")
    with pytest.raises(DataError, match=r"is corrupt.*neuralsort data fetch"):
        sources.find("mnist", tmp_path)


def test_failed_download_names_the_mirrors(tmp_path, monkeypatch):
    import pooch

    def fail(url, *arguments, **options):
        raise OSError("no network")

    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(DataError, match=r"download failed \(https://.*no network.*https://"):
        sources.find("mnist")


def test_download_falls_back_to_the_next_mirror(tmp_path, monkeypatch):
    import pooch

    tried = []

    def second_only(url, known_hash, fname, path):
        tried.append(url)
        if len(tried) % 2:
            raise OSError("down")
        file = tmp_path / fname
        file.write_bytes(b"content")
        return str(file)

    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    monkeypatch.setattr(pooch, "retrieve", second_only)
    monkeypatch.setattr(sources, "_checked", lambda path, digest: path)
    assert len(sources.find("mnist")) == 4
    assert len(tried) == 8


def test_unknown_source_lists_the_valid_ones():
    with pytest.raises(DataError, match="Choose one of: digits, mnist"):
        data.load("svhn")


@NEEDS_DATA
def test_mnist_has_the_papers_splits():
    splits = data.load("mnist")
    assert [len(splits[name].images) for name in data.SPLITS] == [50_000, 10_000, 10_000]
    assert splits["train"].images.shape[1:] == (28, 28)
    first = splits["test"]
    assert first.counts.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


# -- networks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "places"), [(28, 4), (28, 5), (8, 4), (8, 1)])
def test_networks_read_every_size(height, places):
    images = torch.rand(2, 3, height, places * height)
    assert PaperNetwork(height, places * height, 7)(images).shape == (2, 3, 7)
    reader = CellReader(height, places * height, places)
    kinds = reader(images)
    assert kinds.shape == (2, 3, places, reader.kinds)
    assert torch.allclose(kinds.sum(-1), torch.ones(2, 3, places))
    assert PlaceSum(places, reader.kinds, 7)(kinds).shape == (2, 3, 7)


def test_papers_network_has_the_papers_layers():
    """Conv 5x5-32, pool, conv 5x5-64, pool, 64 units on 28 x 7 x 64, then the outputs."""
    expected = (25 * 32 + 32) + (25 * 32 * 64 + 64) + (28 * 7 * 64 * 64 + 64) + (64 + 1)
    assert sum(p.numel() for p in PaperNetwork(28, 112, 1).parameters()) == expected


def test_cells_are_the_digits():
    images = torch.arange(2 * 12.0).view(2, 12)
    assert torch.equal(split_cells(images, 3)[1], images[:, 4:8])


def test_place_sum_adds_places_with_their_gains():
    layer = PlaceSum(2, 3, 1)
    with torch.no_grad():
        layer.gains.copy_(torch.tensor([0.5, -0.25]).view(2, 1, 1))
    kinds = torch.rand(4, 2, 3)
    w, k = layer.weights.detach().double().numpy(), kinds.double().numpy()
    expected = [
        sum(
            math.exp(3 * g) * w[p, j, 0] * k[i, p, j]
            for p, g in enumerate((0.5, -0.25))
            for j in range(3)
        )
        for i in range(4)
    ]
    assert np.allclose(layer(kinds).detach().squeeze(-1).numpy(), expected, rtol=1e-5)


def test_jitter_moves_each_digit_within_its_cell():
    images = torch.zeros(40, 28, 56)
    images[:, 13:15, 13:15] = 1.0  # a dot in the middle of the first digit, nothing in the second
    moved = jitter(images, 2)
    assert moved[:, :, 28:].abs().max() == 0
    mass = moved[:, :, :28].sum((1, 2))
    assert (mass > 2).all()
    assert (mass < 6).all()
    rows = torch.arange(28.0) + 0.5
    centre = (moved[:, :, :28].sum(2) * rows).sum(1) / mass
    assert 0.5 < (centre - 14).abs().max() < 3.5
    assert torch.allclose(jitter(images, 2, pixels=0, radians=0, zoom=0), images, atol=1e-5)


# -- methods ---------------------------------------------------------------------------------------


def scores_network(outputs: int) -> nn.Module:
    return nn.Linear(3, outputs)


ITEMS = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", orderings.METHODS)
def test_method_gives_row_stochastic_matrices_and_gradients(method):
    ordering = orderings.build(method, scores_network, n=4, tau=1.0)
    P = ordering(ITEMS)
    assert P.shape == (2, 4, 4)
    assert torch.allclose(P.to_dense().sum(-1), torch.ones(2, 4), atol=1e-5)
    target = torch.arange(4).expand(2, 4)
    ordering.expected(lambda P: 1 - P.log_prob(target).exp().mean(-1), ITEMS).sum().backward()
    gradients = [p.grad.abs().sum() for p in ordering.parameters() if p.grad is not None]
    assert sum(gradients) > 0


@pytest.mark.parametrize("method", ["stochastic_neuralsort", "gumbel_sinkhorn"])
def test_stochastic_methods_average_five_samples(method):
    ordering = orderings.build(method, scores_network, n=4, tau=1.0)
    seen = []

    def cost(P):
        seen.append(P.shape)
        return P.to_dense()[..., 0, 0]

    assert ordering.expected(cost, ITEMS).shape == (2,)
    assert ordering.averaged(cost, ITEMS).shape == (2,)
    assert seen == [(5, 2, 4, 4)] * 2
    assert ordering(ITEMS).shape == (2, 4, 4)  # evaluation without noise
    assert torch.equal(ordering(ITEMS).to_dense(), ordering(ITEMS).to_dense())


def test_sinkhorn_reads_rows_as_positions():
    """The network gives each item its logits over positions; a position's row has all items."""
    ordering = orderings.build("sinkhorn", lambda outputs: nn.Identity(), n=3, tau=0.05)
    to_positions = torch.eye(3)[[2, 0, 1]].unsqueeze(0)  # item 0 at place 2, 1 at 0, 2 at 1
    assert ordering(to_positions).permutation().tolist() == [[1, 2, 0]]


def test_only_scores_sort_lists_of_any_length():
    for method in orderings.METHODS:
        ordering = orderings.build(method, scores_network, n=4, tau=1.0)
        assert ordering.any_length == (method not in ("vanilla", "sinkhorn", "gumbel_sinkhorn"))


class SaysScores(orderings.Ordering):
    """The images are the scores."""

    def forward(self, items):
        return ns.neuralsort(items[..., 0, 0], tau=1.0)


def test_loss_of_sorting_is_the_cross_entropy_of_the_rows():
    scores, order = torch.randn(2, 4, 1, 1), torch.tensor([[0, 1, 2, 3], [3, 1, 0, 2]])
    loss = SortModel(nn.Identity(), SaysScores())(scores, order)
    rows = ns.neuralsort(scores[..., 0, 0], tau=1.0).to_dense().gather(-1, order.unsqueeze(-1))
    assert loss.item() == pytest.approx(-rows.log().mean().item(), rel=1e-5)


def test_chance_in_the_loss_bounds_what_a_wrong_place_costs():
    scores, order = torch.randn(2, 4, 1, 1), torch.tensor([[0, 1, 2, 3], [3, 1, 0, 2]])
    model = SortModel(nn.Identity(), SaysScores(), chance=0.1)
    rows = ns.neuralsort(scores[..., 0, 0], tau=1.0).to_dense().gather(-1, order.unsqueeze(-1))
    expected = -(0.9 * rows + 0.1 / 4).log().mean()
    assert model(scores, order).item() == pytest.approx(expected.item(), rel=1e-5)
    assert model(1e6 * scores, order) <= math.log(4 / 0.1)


# -- metrics and intervals -------------------------------------------------------------------------


class ReadsPixels(nn.Module):
    """Knows the numbers of the one-pixel digits, except for a few it is told to mistake."""

    def __init__(self, mistakes: dict[int, int]):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.mistakes = mistakes

    def relaxed(self, images):
        pixels = (images * 255).round().squeeze(-2) // 10
        scores = (pixels * torch.tensor([10.0, 1.0])).sum(-1)
        for wrong, read in self.mistakes.items():
            scores = torch.where(scores == wrong, torch.tensor(float(read)), scores)
        return ns.neuralsort(scores, tau=0.01)


def sequences_of(numbers: Digits, values: list[list[int]]) -> Sequences:
    number = torch.tensor(values)
    index = torch.stack([numbers.starts[number // 10], numbers.starts[number % 10]], -1)
    return Sequences(numbers, index, number)


def test_exact_and_element_wise_match_count_lists_and_places(numbers):
    lists = sequences_of(numbers, [[12, 75, 40], [12, 75, 41], [80, 12, 3], [41, 41, 9]])
    found = outcomes(ReadsPixels({41: 90}), lists, lists=3)
    assert found["exact_match"].tolist() == [1, 0, 1, 1]
    assert found["element_wise"].tolist() == pytest.approx([1, 1 / 3, 1, 1])
    assert found["squared_difference"][:3].max() < 1e-6


def test_of_equal_numbers_either_may_come_first(numbers):
    class Backwards(ReadsPixels):
        def relaxed(self, images):
            order = torch.tensor([[2, 1, 0]])
            return ns.RelaxedPermutation.from_dense(torch.eye(3)[order])

    lists = sequences_of(numbers, [[12, 40, 40]])
    assert outcomes(Backwards({}), lists)["exact_match"].tolist() == [1]


def test_squared_difference_is_the_mean_over_entries(numbers):
    lists = sequences_of(numbers, [[12, 40]])

    class Soft(ReadsPixels):
        def relaxed(self, images):
            return ns.RelaxedPermutation.from_dense(torch.tensor([[[0.3, 0.7], [0.6, 0.4]]]))

    expected = (0.3**2 + 0.3**2 + 0.4**2 + 0.4**2) / 4
    assert outcomes(Soft({}), lists)["squared_difference"].item() == pytest.approx(expected)


def test_median_metrics_are_the_usual_ones():
    true, predicted = torch.randn(50, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    both = torch.stack((true, predicted), -1)
    assert median.r2(both).item() == pytest.approx(r2_score(true, predicted))
    assert median.mse(both).item() == pytest.approx(float(np.mean((true - predicted).numpy() ** 2)))


@pytest.mark.parametrize("successes", [0, 1, 37, 99, 100])
def test_wilson_is_scipys(successes):
    expected = binomtest(successes, 100).proportion_ci(method="wilson")
    low, high = intervals.wilson(successes / 100, 100)
    assert low == pytest.approx(expected.low, abs=1e-12)
    assert high == pytest.approx(expected.high, abs=1e-12)


def test_bootstrap_of_a_mean_is_near_the_normal_interval():
    values = torch.randn(400, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    low, high = intervals.bootstrap(values)
    half = 1.96 * values.std().item() / 20
    assert low == pytest.approx(values.mean().item() - half, abs=0.2 * half)
    assert high == pytest.approx(values.mean().item() + half, abs=0.2 * half)


# -- studies, from options to a line ---------------------------------------------------------------

SMALL = {"n": 3, "places": 2, "steps": 2, "batch": 4, "test_lists": 20, "validation_lists": 8}


def small(kind, tmp_path, **options):
    return kind(**SMALL | {"run": tmp_path / "run", "results": tmp_path / "results"} | options)


@pytest.mark.parametrize("method", orderings.METHODS)
@pytest.mark.parametrize("recipe", ["fast", "paper"])
def test_sort_runs_and_leaves_one_line(tmp_path, method, recipe):
    config = small(SortConfig, tmp_path, method=method, recipe=recipe, tau=(2.0,))
    line = run(SortStudy(), config)
    (stored,) = record.read(tmp_path / "results")
    assert stored == json.loads(json.dumps(line))
    assert {"exact_match", "element_wise", "squared_difference"} == stored["metrics"].keys()
    assert stored["intervals"]["exact_match"][0] <= stored["metrics"]["exact_match"]
    assert (stored["study"], stored["method"], stored["n"]) == ("sort", method, 3)
    assert stored["versions"]["torch"] == torch.__version__
    assert stored["machine"]["cores"] == os.cpu_count()
    assert stored["config"]["steps_of_recipe"] > stored["config"]["plan"]["steps"] == 2
    assert stored["seed"] == 0


@pytest.mark.parametrize("method", median.METHODS)
def test_median_runs_and_leaves_one_line(tmp_path, method):
    line = run(MedianStudy(), small(MedianConfig, tmp_path, method=method))
    (stored,) = record.read(tmp_path / "results")
    assert stored["metrics"].keys() == {"mse", "r2"}
    assert len(stored["extras"]["points"]) == 20
    points = np.array(stored["extras"]["points"])
    assert line["metrics"]["mse"] == pytest.approx(
        np.mean((points[:, 0] - points[:, 1]) ** 2), rel=0.1
    )


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_other_precisions_train(tmp_path, precision):
    line = run(SortStudy(), small(SortConfig, tmp_path, precision=precision))
    assert line["precision"] == precision
    assert math.isfinite(line["trials"][0]["history"][0]["loss"])


def test_constant_says_the_middle_of_the_range(tmp_path):
    line = run(MedianStudy(), small(MedianConfig, tmp_path, method="constant", places=4))
    assert {predicted for _, predicted in line["extras"]["points"]} == {5000}  # 4999.5, rounded
    assert line["metrics"]["r2"] <= 0


def test_temperature_is_chosen_on_validation(tmp_path):
    line = run(SortStudy(), small(SortConfig, tmp_path, tau=(0.5, 4.0), validation_lists=100))
    best = {t["tau"]: max(h["exact_match"] for h in t["history"]) for t in line["trials"]}
    assert best.keys() == {0.5, 4.0}
    assert best[line["tau"]] == max(best.values())
    assert (tmp_path / "run" / "tau-4.0").is_dir()


def test_finished_run_is_not_done_again(tmp_path):
    config = small(SortConfig, tmp_path)
    assert json.loads(json.dumps(run(SortStudy(), config))) == run(SortStudy(), config)
    assert len(record.read(tmp_path / "results")) == 1
    with pytest.raises(CheckpointError, match="holds another run: seed is 0 there and 1 here"):
        run(SortStudy(), replace(config, seed=1))
    with pytest.raises(CheckpointError, match=r"plan\.steps is 2 there and 3 here"):
        run(SortStudy(), replace(config, steps=3))


def test_line_that_a_kill_kept_from_the_results_is_added_later(tmp_path):
    config = small(SortConfig, tmp_path)
    line = run(SortStudy(), config)
    (tmp_path / "results" / "sort.jsonl").unlink()
    run(SortStudy(), config)
    assert record.read(tmp_path / "results") == [json.loads(json.dumps(line))]


def test_evaluation_at_another_length_adds_a_line(tmp_path):
    config = small(SortConfig, tmp_path)
    trained = run(SortStudy(), config)
    (again,) = evaluate(SortStudy(), SortConfig(results=config.results), config.run)
    assert again["metrics"] == trained["metrics"]
    (longer,) = evaluate(SortStudy(), SortConfig(results=config.results), config.run, lengths=[6])
    assert (longer["n"], longer["config"]["train_n"]) == (6, 3)
    assert len(record.read(tmp_path / "results")) == 2  # the same line is not added twice


def test_baselines_are_tied_to_their_length(tmp_path):
    config = small(SortConfig, tmp_path, method="vanilla")
    run(SortStudy(), config)
    options = SortConfig(results=tmp_path / "again")
    with pytest.raises(ConfigError, match="trained for lists of 3 and takes no others, got --n 5"):
        list(evaluate(SortStudy(), options, config.run, lengths=[3, 5]))
    assert not options.results.exists()  # all lengths are looked at before any is tested


def test_methods_without_a_temperature_are_trained_once(tmp_path):
    for method in ("vanilla", "reinforce"):
        config = small(SortConfig, tmp_path, method=method, recipe="paper")
        assert len(SortStudy().taus(config)) == 1
    assert len(SortStudy().taus(small(SortConfig, tmp_path, recipe="paper"))) == 5


def test_reinforce_is_tested_as_it_was_trained_with_hard_permutations(tmp_path):
    line = run(SortStudy(), small(SortConfig, tmp_path, method="reinforce", tau=(16.0,)))
    assert line["metrics"]["squared_difference"] == 0


def test_a_temperature_that_diverges_loses_and_does_not_stop_the_others(tmp_path, monkeypatch):
    forward = sorting.SortModel.forward

    def spoilt(self, images, order):
        return forward(self, images, order) * (math.nan if self.ordering.tau == 1.0 else 1.0)

    monkeypatch.setattr(sorting.SortModel, "forward", spoilt)
    line = run(SortStudy(), small(SortConfig, tmp_path, tau=(1.0, 2.0)))
    assert line["tau"] == 2.0
    assert [trial["tau"] for trial in line["trials"] if "diverged" in trial] == [1.0]
    alone = small(SortConfig, tmp_path, tau=(1.0,), run=tmp_path / "alone")
    with pytest.raises(train.Diverged, match=r"diverged at step 0.*nan.*Lower --lr"):
        run(SortStudy(), alone)


@pytest.mark.parametrize("damage", ["truncate", "no model"])
def test_damaged_result_is_made_again_from_the_checkpoint(tmp_path, damage):
    config = small(SortConfig, tmp_path)
    line = run(SortStudy(), config)
    if damage == "truncate":
        (tmp_path / "run" / RESULT).write_text('{"study"')
    else:
        (tmp_path / "run" / MODEL).unlink()
    again = run(SortStudy(), config)
    assert again["metrics"] == line["metrics"]
    assert json.loads((tmp_path / "run" / RESULT).read_text())["metrics"] == line["metrics"]
    assert (tmp_path / "run" / MODEL).exists()


def test_bfloat16_networks_still_score_in_float32():
    places = PlaceSum(4, 10, 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert places(torch.rand(3, 4, 10, dtype=torch.bfloat16)).dtype == torch.float32


def test_learning_beats_chance_within_seconds(tmp_path):
    """Forty steps on small digits: far from good, and far from the chance of one in six."""
    options = {"places": 1, "steps": 40, "batch": 32, "test_lists": 300, "lr": 1e-2}
    line = run(SortStudy(), small(SortConfig, tmp_path, **options))
    assert line["metrics"]["exact_match"] > 0.4


def test_building_a_batch_is_a_small_part_of_a_step(digits):
    """Measured without hurry: a share, not a time."""
    config = SortConfig(n=5)
    study = SortStudy()
    plan = study.plan(config)
    task = study.task(config, digits, 0.5, plan)
    task.model(*task.batch(0, slice(None))).backward()
    building, whole = [], []
    for step in range(5):
        start = time.perf_counter()
        batch = task.batch(step, slice(None))
        middle = time.perf_counter()
        task.model(*batch).backward()
        building.append(middle - start)
        whole.append(time.perf_counter() - start)
    assert min(building) < 0.05 * min(whole)


def test_reproduction_names_every_run_once():
    chosen = list(runs("mnist", "fast"))
    folders = [config.folder(study) for study, config in chosen]
    assert len(folders) == len(set(folders)) == 29 + 12  # on lists, and of neighbours
    det = {c.n for s, c in chosen if (s, c.method) == ("sort", "neuralsort")}
    assert det == {3, 5, 7, 9, 15}


# -- report ----------------------------------------------------------------------------------------


def fake_line(method="neuralsort", n=5, exact=0.9, **options):
    history = [{"step": 1, "seconds": 9.0, "loss": 1.0, "exact_match": exact, "log_variance": -3.0}]
    line = {
        "study": "sort",
        "method": method,
        "data": "mnist",
        "n": n,
        "places": 4,
        "recipe": "fast",
        "seed": 0,
        "tau": 0.5,
        "metrics": {"exact_match": exact, "element_wise": 0.95, "squared_difference": 0.0123},
        "intervals": {"exact_match": [exact - 0.01, exact + 0.01]},
        "steps": 1,
        "wall_seconds": 660.0,
        "config": {"plan": {"steps": 1, "batch": 4}, "steps_of_recipe": 9, "train_n": n},
        "trials": [{"tau": 0.5, "history": history}],
        "machine": {"cores": 2, "processor": "abacus"},
        "commit": "0123456789",
        "extras": {"examples": []},
    }
    return line | options


def test_table_has_ours_the_papers_and_what_is_missing():
    table = tables.sort_table([fake_line()], "mnist")
    rows = {row[0][0]: row[1:] for row in table.rows}
    column = paper.SORT_LENGTHS.index(5)
    cell = rows["Deterministic NeuralSort"][column]
    limited = "1 of 9 steps"
    interval = "95 %: 0.890 to 0.910"
    assert cell == ["0.900 (0.950)", interval, "11 min", limited, "paper: 0.837 (0.927)"]
    assert rows["Deterministic NeuralSort"][0] == ["missing", "paper: 0.930 (0.951)"]
    assert rows["Vanilla"][column] == ["missing", "paper: 0.093 (0.603)"]


def test_seeds_share_a_cell_and_the_last_line_of_a_run_counts():
    lines = [fake_line(exact=0.1), fake_line(exact=0.8), fake_line(exact=0.9, seed=1)]
    table = tables.sort_table(tables.chosen(lines), "mnist")
    (row,) = [row for row in table.rows if row[0][0] == "Deterministic NeuralSort"]
    seeds, interval = "2 seeds: 0.800 to 0.900 (0.950 to 0.950)", "seed 0, 95 %: 0.790 to 0.810"
    assert row[2][:3] == ["0.850 (0.950)", seeds, interval]


def test_a_short_trial_does_not_take_the_place_of_a_long_run():
    long = fake_line(exact=0.9, steps=600)
    for later in (fake_line(exact=0.1, steps=20), fake_line(exact=0.1, steps=600, test_lists=0)):
        assert (
            tables.chosen([long | {"test_lists": 10_000}, later])[0]["metrics"] == long["metrics"]
        )


def test_numbers_of_other_sizes_have_rows_and_columns_of_their_own():
    lines = [fake_line(), fake_line(exact=0.5, places=5), fake_line(exact=0.7, n=4)]
    table = tables.sort_table(tables.chosen(lines), "mnist")
    assert table.header == ["method", *(f"n = {n}" for n in (3, 4, 5, 7, 9, 15))]
    rows = {tuple(row[0]): row for row in table.rows}
    usual = rows["Deterministic NeuralSort", "recipe: fast"]
    assert (usual[2][0], usual[2][-1]) == ("0.700 (0.950)", "paper: not given")
    assert usual[3][0] == "0.900 (0.950)"
    other = rows["Deterministic NeuralSort", "recipe: fast", "numbers of 5 digits"]
    assert other[3][0] == "0.500 (0.950)"
    assert other[1] == ["missing"]


def test_runs_trained_at_the_length_come_first_and_others_say_so():
    other = {"config": fake_line()["config"] | {"train_n": 15}}
    both = [fake_line(exact=0.8), fake_line(exact=0.9, **other)]
    for lines, expected in ((both, "0.800 (0.950)"), (both[1:], "0.900 (0.950)")):
        table = tables.sort_table(tables.chosen(lines), "mnist")
        (row,) = [row for row in table.rows if row[0][0] == "Deterministic NeuralSort"]
        assert row[2][0] == expected
        assert ("trained at n = 15" in row[2]) == (len(lines) == 1)


def test_limited_runs_say_so():
    table = tables.runs_table([fake_line()])
    assert "limited" in table.rows[0][table.header.index("steps")][0]


def test_report_is_rendered_from_lines_alone(tmp_path):
    results = tmp_path / "lines"
    for study, kind, methods in (
        (SortStudy(), SortConfig, ("neuralsort", "vanilla")),
        (MedianStudy(), MedianConfig, ("neuralsort", "constant")),
    ):
        for method in methods:
            folder = tmp_path / f"{study.name}-{method}"
            run(study, small(kind, tmp_path, method=method, run=folder, results=results))
    # Lines of other studies stand in the same folder, and have other keys.
    (results / "others.jsonl").write_text('{"study": "gradients", "method": "rebar", "n": 5}\n')
    page = report.write_report(results, tmp_path / "report")
    text, markdown = page.read_text(), (page.parent / "report.md").read_text()
    for name in ("Deterministic NeuralSort", "Vanilla", "Constant"):
        assert name in text
        assert name in markdown
    pictures = sorted(path.name for path in (page.parent / "figures").iterdir())
    assert len(pictures) == 5
    assert all(f"figures/{one}" in text and f"figures/{one}" in markdown for one in pictures)


def test_report_without_lines_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="no lines of results"):
        report.write_report(tmp_path, tmp_path / "report")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"study": "a"}\n\n{"a": \n', r"sort\.jsonl, line 3 is not JSON"),
        ('{"a": 1}\n', r"sort\.jsonl, line 1 does not name its study"),
        ("[1]\n", r"sort\.jsonl, line 1 does not name its study"),
        ('{"study": "sort"}\n', r"study sort lacks commit, config, data"),
    ],
)
def test_lines_that_are_none_are_named(tmp_path, text, message):
    (tmp_path / "sort.jsonl").write_text(text)
    with pytest.raises(record.RecordError, match=message):
        report.write_report(tmp_path, tmp_path / "report")


def test_a_torn_line_does_not_take_the_next_one_with_it(tmp_path):
    path = tmp_path / "sort.jsonl"
    path.write_text('{"study": "so')
    record.append(path, {"study": "sort"})
    assert path.read_text().splitlines() == ['{"study": "so', '{"study": "sort"}']
