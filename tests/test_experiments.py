"""The studies: data, networks, methods, metrics, intervals, and the lines they end in."""

import ast
import gzip
import math
import os
import struct
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
from neuralsort.experiments import record
from neuralsort.experiments.data import downloads
from neuralsort.experiments.data.augmentation import jitter
from neuralsort.experiments.data.downloads import DataError
from neuralsort.experiments.data.images import SPLITS, read_idx
from neuralsort.experiments.data.numbers import Digits, Sequences, load_digits, split_cells
from neuralsort.experiments.data.randomness import generator_for, seed_for
from neuralsort.experiments.networks import orderings
from neuralsort.experiments.networks.readers import CellReader, PaperNetwork, PlaceSum
from neuralsort.experiments.studies import intervals, median, running, sorting
from neuralsort.experiments.studies import lists as list_studies
from neuralsort.experiments.studies.lists import readings
from neuralsort.experiments.studies.median import MedianConfig, MedianStudy
from neuralsort.experiments.studies.running import evaluate, run
from neuralsort.experiments.studies.sorting import SortConfig, SortModel, SortStudy, outcomes
from neuralsort.experiments.training import trainer
from neuralsort.experiments.training.checkpoint import CheckpointError
from neuralsort.experiments.training.plan import ConfigError, Plan

NEEDS_DATA = pytest.mark.skipif(
    "NEURALSORT_DATA" not in os.environ, reason="NEURALSORT_DATA names no folder with MNIST"
)


@pytest.fixture(scope="module")
def digits():
    return load_digits("digits")


@pytest.fixture
def numbers() -> Digits:
    """Twenty 'images' of one pixel: the classes twice, the pixel telling class and copy."""
    labels = torch.arange(10).repeat(2)
    return Digits.of(
        (labels * 10 + torch.arange(2).repeat_interleave(10)).byte().view(-1, 1, 1), labels
    )


def test_experiments_use_the_public_api_only():
    folder = Path(record.__file__).parent
    shared = "neuralsort.runtime."
    imported = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name for name in imported if name.split(".")[0] == "neuralsort"}
    ours = {name for name in ours if not name.startswith(shared)}
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


def test_mixed_lists_are_of_the_same_numbers(numbers):
    drawn = Sequences.draw(numbers, 6, 4, 3, torch.Generator().manual_seed(0))
    which, mixed = drawn.mixed(50, torch.Generator().manual_seed(1))
    assert which.shape == mixed.values.shape == (50, 4)
    assert all(len(set(row)) == 4 for row in which.tolist())
    assert set(which.flatten().tolist()) == set(range(24))
    assert torch.equal(drawn.values.flatten()[which], mixed.values)
    assert torch.equal(drawn.images().flatten(0, 1)[which], mixed.images())


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
    assert np.array_equal(read_idx(tmp_path / "file.gz").numpy(), array)
    (tmp_path / "file.gz").write_bytes(gzip.compress(b"\1\2\3\4\5"))
    with pytest.raises(DataError, match="not an IDX file"):
        read_idx(tmp_path / "file.gz")


def test_missing_files_say_where_they_were_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    monkeypatch.setattr(downloads, "_cache", lambda source: tmp_path / "cache")
    with pytest.raises(DataError, match=r"train-images.*is missing.*--data-dir or NEURALSORT_DATA"):
        downloads.find("mnist", tmp_path, download=False)


def test_corrupt_file_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"half a file")
    with pytest.raises(DataError, match=r"is corrupt.*neuralsort data fetch"):
        downloads.find("mnist", tmp_path)


def test_failed_download_names_the_mirrors(tmp_path, monkeypatch):
    import pooch

    def fail(url, *arguments, **options):
        raise OSError("no network")

    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    monkeypatch.setattr(pooch, "retrieve", fail)
    with pytest.raises(DataError, match=r"download failed \(https://.*no network.*https://"):
        downloads.find("mnist")


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
    monkeypatch.setattr(downloads, "_checked", lambda path, digest: path)
    assert len(downloads.find("mnist")) == 4
    assert len(tried) == 8


def test_unknown_source_lists_the_valid_ones():
    with pytest.raises(DataError, match="Choose one of: digits, mnist"):
        load_digits("svhn")


@NEEDS_DATA
def test_mnist_has_the_papers_splits():
    splits = load_digits("mnist")
    assert [len(splits[name].images) for name in SPLITS] == [50_000, 10_000, 10_000]
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
    assert kinds.shape == (2, 3, places, reader.outputs)
    each = kinds.unflatten(-1, (reader.opinions, reader.kinds))
    assert torch.allclose(each.sum(-1), torch.ones(2, 3, places, reader.opinions))
    assert PlaceSum(places, reader.outputs, 7)(kinds).shape == (2, 3, 7)


def test_papers_network_has_the_papers_layers():
    """Conv 5x5-32, pool, conv 5x5-64, pool, 64 units on 28 x 7 x 64, then the outputs."""
    expected = (25 * 32 + 32) + (25 * 32 * 64 + 64) + (28 * 7 * 64 * 64 + 64) + (64 + 1)
    assert sum(p.numel() for p in PaperNetwork(28, 112, 1).parameters()) == expected


def test_standardised_units_begin_with_mean_0_and_variance_1():
    torch.manual_seed(0)
    network, images = PaperNetwork(8, 32, 3), torch.rand(50, 8, 32)
    seen = []
    for layer in network.layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(lambda layer, inputs, found: seen.append(found))
    network.standardise(images)
    seen.clear()
    network(images)
    assert len(seen) == 4
    for found in seen:
        units = found.transpose(0, 1).flatten(1)
        torch.testing.assert_close(units.mean(1), torch.zeros(len(units)), atol=1e-4, rtol=0)
        torch.testing.assert_close(units.std(1), torch.ones(len(units)), atol=1e-4, rtol=0)
    hidden = seen[-2]
    assert (hidden > 0).any(0).all()  # every hidden unit has a gradient for some image
    blank = PaperNetwork(8, 32, 3)
    before = [one.abs().max() for one in blank.parameters()]
    blank.standardise(torch.zeros(2, 8, 32))
    for one, largest in zip(blank.parameters(), before, strict=True):
        assert one.abs().max() < 10 * largest + 1  # what does not vary is not blown up


def test_only_the_tuned_recipe_standardises():
    splits = load_digits("digits", None)
    study = SortStudy()
    for recipe, there in (("tuned", True), ("paper", False)):
        config = SortConfig(recipe=recipe, validation_lists=1, test_lists=2)
        torch.manual_seed(0)
        task = study.task(config, splits, 1.0, study.plan(config))
        last = list(task.model.parameters())[-1]
        torch.manual_seed(0)
        plain = list(PaperNetwork(8, 32, 1).parameters())[-1]
        assert torch.equal(last, plain) != there
        assert ("begin" in study.facts(config)) == there


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


def test_jitter_is_an_affine_map_of_every_digit():
    images = torch.rand(3, 28, 56)
    torch.manual_seed(0)
    actual = jitter(images, 2)
    torch.manual_seed(0)
    dx, dy, turn, scale = 2 * torch.rand(4, 6) - 1
    cosine, sine = ((1 + 0.1 * scale) * trig(0.2 * turn) for trig in (torch.cos, torch.sin))
    rows = [torch.stack((cosine, -sine, dx / 7), -1), torch.stack((sine, cosine, dy / 7), -1)]
    flat = split_cells(images, 2).reshape(6, 1, 28, 28)
    grid = nn.functional.affine_grid(torch.stack(rows, -2), flat.shape, align_corners=False)
    expected = nn.functional.grid_sample(flat, grid, align_corners=False)
    torch.testing.assert_close(
        split_cells(actual, 2).reshape(6, 1, 28, 28), expected, atol=1e-4, rtol=0
    )


# -- methods ---------------------------------------------------------------------------------------


def scores_network(outputs: int) -> nn.Module:
    return nn.Linear(3, outputs)


ITEMS = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", orderings.METHODS)
def test_method_gives_row_stochastic_matrices_and_gradients(method):
    ordering = orderings.build(method, scores_network, n=4, tau=1.0)
    said = ordering.outputs(ITEMS)
    P = ordering(said)
    assert P.shape == (2, 4, 4)
    assert torch.allclose(P.to_dense().sum(-1), torch.ones(2, 4), atol=1e-5)
    target = torch.arange(4).expand(2, 4)
    ordering.expected(lambda P: 1 - P.log_prob(target).exp().mean(-1), said).sum().backward()
    gradients = [p.grad.abs().sum() for p in ordering.parameters() if p.grad is not None]
    assert sum(gradients) > 0


@pytest.mark.parametrize("method", ["stochastic_neuralsort", "gumbel_sinkhorn"])
def test_stochastic_methods_average_five_samples(method):
    ordering = orderings.build(method, scores_network, n=4, tau=1.0)
    seen = []

    def cost(P):
        seen.append(P.shape)
        return P.to_dense()[..., 0, 0]

    said = ordering.outputs(ITEMS)
    assert ordering.expected(cost, said).shape == (2,)
    assert ordering.averaged(cost, said).shape == (2,)
    assert seen == [(5, 2, 4, 4)] * 2
    assert ordering(said).shape == (2, 4, 4)  # evaluation without noise
    assert torch.equal(ordering(said).to_dense(), ordering(said).to_dense())


def test_sinkhorn_reads_rows_as_positions():
    """The network gives each item its logits over positions; a position's row has all items."""
    ordering = orderings.build("sinkhorn", lambda outputs: nn.Identity(), n=3, tau=0.05)
    to_positions = torch.eye(3)[[2, 0, 1]].unsqueeze(0)  # item 0 at place 2, 1 at 0, 2 at 1
    assert ordering(to_positions).permutation().tolist() == [[1, 2, 0]]
    as_in_the_code = orderings.build(
        "sinkhorn_by_item", lambda outputs: nn.Identity(), n=3, tau=0.05
    )
    assert as_in_the_code(to_positions).permutation().tolist() == [[2, 0, 1]]


def test_only_scores_sort_lists_of_any_length():
    for method in orderings.METHODS:
        ordering = orderings.build(method, scores_network, n=4, tau=1.0)
        assert ordering.any_length == (method not in orderings.BY_MATRIX)
    assert set(orderings.BY_MATRIX) > {"vanilla", "sinkhorn", "gumbel_sinkhorn"}


ORDERED = ("neuralsort", "stochastic_neuralsort", "vanilla", "sinkhorn", "gumbel_sinkhorn")


class SaysScores(orderings.Ordering):
    """The images are the scores."""

    def __init__(self):
        super().__init__(nn.Identity())

    def forward(self, items, which=None):
        return ns.neuralsort(self.outputs(items, which)[..., 0, 0], tau=1.0)


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


@pytest.mark.parametrize(
    ("study", "method"),
    [
        *((study, method) for study in (SortStudy(), MedianStudy()) for method in ORDERED),
        (MedianStudy(), "constant"),
    ],
)
def test_lists_that_overlap_have_the_loss_of_the_lists_themselves(study, method, digits):
    """Images are read once, and the loss is that of the same lists written out."""
    config = study.config(n=3, places=2, recipe="paper", method=method)
    task = study.task(config, digits, 1.0, Plan(steps=1, batch=4, lr=1.0, overlap=5))
    images, target, which = task.batch(0, slice(None))
    assert which.shape == (20, 3)
    whole = images.flatten(0, 1)[which]
    losses = []
    for batch in ((images, target, which), (whole, target)):
        torch.manual_seed(0)  # the noise of methods that sample
        losses.append(task.model(*batch))
    torch.testing.assert_close(*losses)
    halves = [task.batch(0, slice(rank, None, 2)) for rank in (0, 1)]
    assert [len(half[1]) for half in halves] == [10, 10]
    assert torch.equal(halves[1][0], images[1::2])
    again = task.batch(0, slice(None))
    assert all(torch.equal(a, b) for a, b in zip(again, (images, target, which), strict=True))


@pytest.mark.parametrize("study", [SortStudy(), MedianStudy()])
@pytest.mark.parametrize("method", ["neuralsort", "sinkhorn", "vanilla"])
@pytest.mark.parametrize("recipe", ["fast", "paper"])
def test_digits_read_once_are_the_digits_read_in_every_number(digits, study, method, recipe):
    config = study.config(n=3, places=2, method=method, recipe=recipe)
    model = study.task(config, digits, 1.0, Plan(steps=1, batch=4, lr=1.0)).model.eval()
    sequences = Sequences.fixed(digits["test"], "test", 120, 3, 2)
    with torch.no_grad():
        parts = [part for _, part in readings(model, sequences)]
        assert [len(part) for part in parts] == [50, 50, 20]
        expected = model.reader(sequences.images())
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-5, rtol=1e-5)


# -- metrics and intervals -------------------------------------------------------------------------


class ReadsPixels(nn.Module):
    """Knows the numbers of the one-pixel digits, except for a few it is told to mistake."""

    def __init__(self, mistakes: dict[int, int]):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.reader = nn.Identity()
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


def test_exact_and_element_wise_match_count_lists_and_places(numbers, monkeypatch):
    monkeypatch.setattr(list_studies, "CHUNK", 3)
    lists = sequences_of(numbers, [[12, 75, 40], [12, 75, 41], [80, 12, 3], [41, 41, 9]])
    found = outcomes(ReadsPixels({41: 90}), lists)
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


@pytest.mark.parametrize("effect", [0.0, 1.0])
def test_intervals_cover_lists_and_the_images_they_share(effect):
    """Of 400 test sets, about 95 % have the true mean in their interval, shared images or not."""
    generator = torch.Generator().manual_seed(0)
    covered, narrow = 0, 0
    for _ in range(400):
        images = torch.randint(60, (300, 6), generator=generator)
        own = torch.randn(60, dtype=torch.float64, generator=generator) * effect
        values = own[images].sum(-1)
        values = values + torch.randn(300, dtype=torch.float64, generator=generator)
        low, high = intervals.of_mean(values, images)
        covered += low <= 0 <= high
        narrow += bool(abs(values.mean()) <= 1.96 * values.std() / 300**0.5)
    assert 0.91 <= covered / 400 <= 0.985
    assert (narrow / 400 < 0.75) == bool(effect)  # what lists alone would claim


def test_interval_of_a_share_is_wilsons_where_lists_share_nothing():
    values = (torch.arange(1000) % 10 > 0).double()
    images = torch.arange(3000).view(1000, 3)
    expected = intervals.wilson(0.9, 1000)
    assert intervals.of_share(values, images) == pytest.approx(expected, abs=1e-3)
    assert intervals.of_share(torch.ones(1000), images) == intervals.wilson(1.0, 1000)


def test_interval_of_r2_is_near_the_bootstraps():
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(2000, dtype=torch.float64, generator=generator)
    both = torch.stack((true, true + torch.randn(2000, generator=generator) / 2), -1)
    images = torch.arange(2000).view(-1, 1)
    index = torch.randint(2000, (3000, 2000), generator=generator)
    drawn = torch.stack([median.r2(both[one]) for one in index])
    expected = drawn.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    assert intervals.of_r2(both, images) == pytest.approx(expected.tolist(), abs=0.005)


def test_student_needs_three_seeds():
    assert intervals.over_seeds([0.1, 0.2]) is None
    assert intervals.over_seeds([0.5, 0.5, 0.5]) == pytest.approx((0.5, 0.5))


def test_intervals_stay_where_the_numbers_are():
    values, images = torch.tensor([1.0, 1.0, 1.0, 0.4]), torch.arange(4).view(4, 1)
    low, high = intervals.of_mean(values, images, most=1.0)
    assert low < 0.85 < high == 1.0
    low, high = intervals.of_mean(values - 0.4, images)
    assert 0 < low < 0.45 < high
    assert intervals.of_mean(1 - values, images)[0] == 0.0


def test_a_number_that_no_seed_changes_has_no_seeds():
    values = [0.1, 0.2, 0.4]
    found = intervals.of_distance(values, 0.2)
    assert found is not None
    assert found[0] == pytest.approx([end - 0.2 for end in intervals.over_seeds(values)])
    assert intervals.of_distance(values[:2], 0.2) is None
    assert intervals.of_distance([0.5] * 3, 0.5)[1] == 1.0
    assert intervals.of_distance([0.5] * 3, 0.25)[1] == 0.0


def test_holm_multiplies_the_smallest_most():
    assert intervals.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert intervals.holm([0.5, 0.6]) == [1.0, 1.0]
    assert intervals.holm([]) == []


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
    assert stored == line
    assert {"exact_match", "element_wise", "squared_difference"} == stored.metrics.keys()
    assert stored.intervals["exact_match"][0] <= stored.metrics["exact_match"]
    assert (stored.study, stored.method, stored.sizes["n"]) == ("sort", method, 3)
    assert stored.versions["torch"] == torch.__version__
    assert stored.machine["cores"] == os.cpu_count()
    assert stored.config["steps_of_recipe"] > stored.config["plan"]["steps"] == 2
    assert stored.seed == 0


@pytest.mark.parametrize("method", median.METHODS)
def test_median_runs_and_leaves_one_line(tmp_path, method):
    line = run(MedianStudy(), small(MedianConfig, tmp_path, method=method))
    (stored,) = record.read(tmp_path / "results")
    assert stored.metrics.keys() == {"mse", "r2"}
    assert len(stored.extras["points"]) == 20
    points = np.array(stored.extras["points"])
    assert line.metrics["mse"] == pytest.approx(
        np.mean((points[:, 0] - points[:, 1]) ** 2), rel=0.1
    )


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_other_precisions_train(tmp_path, precision):
    line = run(SortStudy(), small(SortConfig, tmp_path, precision=precision))
    assert line.precision == precision
    assert math.isfinite(line.trials[0]["history"][0]["loss"])


def test_constant_says_the_middle_of_the_range(tmp_path):
    line = run(MedianStudy(), small(MedianConfig, tmp_path, method="constant", places=4))
    assert {predicted for _, predicted in line.extras["points"]} == {5000}  # 4999.5, rounded
    assert line.metrics["r2"] <= 0


def test_temperature_is_chosen_on_validation(tmp_path):
    line = run(SortStudy(), small(SortConfig, tmp_path, tau=(0.5, 4.0), validation_lists=100))
    best = {t["tau"]: max(h["exact_match"] for h in t["history"]) for t in line.trials}
    assert best.keys() == {0.5, 4.0}
    assert best[line.tau] == max(best.values())
    assert (tmp_path / "run" / "tau-4.0").is_dir()


@pytest.mark.parametrize(
    "options",
    [
        {"places": 2},
        {"test_lists": 5},
        {"validation_lists": 5},
        {"precision": "64-true"},
        {"tau": (1.0,)},
        {"temperature": "learned"},
        {"device": "cuda"},
        {"batch": 2},
        {"steps": 2},
        {"patience": 2},
        {"threads": 2},
        {"lr": 0.1},
        {"overlap": 2},
        {"seed": 1},
        {"n": 3},
    ],
)
def test_runs_that_differ_have_folders_of_their_own(options):
    usual = SortConfig().folder("sort")
    assert usual == Path("runs/sort-digits-neuralsort-n5-fast-seed0")
    assert SortConfig(**options).folder("sort") != usual


def test_numbers_that_differ_little_differ_in_names():
    near = [SortConfig(tau=(tau,)).folder("sort") for tau in (0.1234567, 0.1234568)]
    assert near[0] != near[1]
    assert (
        SortConfig(tau=(1024.0, 0.125), lr=1e-5)
        .folder("sort")
        .name.endswith("lr1e-05-tau-1024-0.125")
    )


def test_a_command_names_the_device_which_changes_rounding():
    assert "--device" not in SortConfig().command("sort")
    assert "--device cuda" in SortConfig(device="cuda").command("sort")


@pytest.mark.parametrize("kind", ["annealed", "learned"])
@pytest.mark.parametrize(
    ("study", "config"), [(SortStudy(), SortConfig), (MedianStudy(), MedianConfig)]
)
def test_temperatures_that_do_not_stay_are_kept_with_their_run(tmp_path, study, config, kind):
    options = small(config, tmp_path, temperature=kind, tau=(2.0,), steps=4, method="neuralsort")
    line = run(study, options)
    assert line.config["temperature"] == kind
    taus = [entry["tau"] for entry in line.trials[0]["history"]]
    if kind == "annealed":
        assert taus == pytest.approx([8.0 * 16 ** (-t / 4) for t in (1, 2, 3, 4)])
    else:
        assert taus[-1] != 2.0
    (again,) = evaluate(study, config(results=options.results), options.run)
    assert again.metrics == line.metrics
    assert f"--temperature {kind}" in options.command(study.name)
    assert kind in str(replace(options, run=None).folder(study.name))
    with pytest.raises(CheckpointError, match=f"temperature is '{kind}' there and 'fixed' here"):
        run(study, replace(options, temperature="fixed"))


def test_a_line_says_nothing_of_a_temperature_that_stays(tmp_path):
    assert "temperature" not in run(SortStudy(), small(SortConfig, tmp_path)).config


def test_finished_run_is_not_done_again(tmp_path):
    config = small(SortConfig, tmp_path)
    assert run(SortStudy(), config) == run(SortStudy(), config)
    assert len(record.read(tmp_path / "results")) == 1
    with pytest.raises(CheckpointError, match="holds another run: seed is 0 there and 1 here"):
        run(SortStudy(), replace(config, seed=1))
    with pytest.raises(CheckpointError, match=r"plan\.steps is 2 there and 3 here"):
        run(SortStudy(), replace(config, steps=3))

    class Updated(SortStudy):
        def facts(self, config):
            return super().facts(config) | {"network": "another"}

    with pytest.raises(CheckpointError, match="network is 'CellReader' there and 'another' here"):
        run(Updated(), config)


def test_line_that_a_kill_kept_from_the_results_is_added_later(tmp_path):
    config = small(SortConfig, tmp_path)
    line = run(SortStudy(), config)
    (tmp_path / "results" / "sort.jsonl").unlink()
    run(SortStudy(), config)
    assert record.read(tmp_path / "results") == [line]


def test_evaluation_at_another_length_adds_a_line(tmp_path):
    config = small(SortConfig, tmp_path)
    trained = run(SortStudy(), config)
    (again,) = evaluate(SortStudy(), SortConfig(results=config.results), config.run)
    assert again.metrics == trained.metrics
    (longer,) = evaluate(SortStudy(), SortConfig(results=config.results), config.run, lengths=[6])
    assert (longer.sizes["n"], longer.config["train_n"]) == (6, 3)
    assert record.read(tmp_path / "results") == [trained, again, longer]


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
    assert line.metrics["squared_difference"] == 0


def test_numbers_that_are_not_finite_are_told_and_lose_no_other(tmp_path, monkeypatch):
    """At a tiny temperature the variance of gradients may be infinite; then there is none."""
    line = run(SortStudy(), small(SortConfig, tmp_path, recipe="paper", tau=(1.0, 1e-20)))
    assert line.trials[1]["history"][-1]["log_variance"] is None
    wild = small(SortConfig, tmp_path, lr=1e38, steps=1, run=tmp_path / "wild")
    with pytest.raises(trainer.Diverged, match=r"on validation, .* is nan\. Lower --lr"):
        run(SortStudy(), wild)
    good = small(MedianConfig, tmp_path, run=tmp_path / "good")
    run(MedianStudy(), good)
    monkeypatch.setattr(median, "r2", lambda both: torch.tensor(math.nan))
    with pytest.raises(trainer.Diverged, match=r"In the test, r2 is nan\. Train with"):
        run(MedianStudy(), small(MedianConfig, tmp_path, run=tmp_path / "r2"))
    with pytest.raises(trainer.Diverged, match=r"In the test, r2 is nan\. Train with"):
        list(evaluate(MedianStudy(), MedianConfig(results=good.results), good.run))


def test_one_list_is_no_test():
    with pytest.raises(ConfigError, match="--test-lists must be at least 2, got 1"):
        SortConfig(test_lists=1)


def test_one_digit_is_no_step(tmp_path):
    options = {"n": 1, "places": 1, "batch": 1, "overlap": 1}
    with pytest.raises(ConfigError, match="one digit cannot be normalised. Raise --batch, --n or"):
        run(MedianStudy(), small(MedianConfig, tmp_path, **options))
    run(MedianStudy(), small(MedianConfig, tmp_path, method="constant", **options))
    two = options | {"places": 2, "run": tmp_path / "two"}
    run(MedianStudy(), small(MedianConfig, tmp_path, **two))


def test_a_run_is_tested_again_in_its_own_precision(tmp_path):
    options = small(SortConfig, tmp_path, precision="64-true")
    line = run(SortStudy(), options)
    (again,) = evaluate(SortStudy(), SortConfig(results=options.results), options.run)
    assert again.metrics == line.metrics


def test_a_run_of_two_processes_is_another_run(tmp_path):
    options = small(SortConfig, tmp_path)
    line = run(SortStudy(), options)
    assert "torchrun" not in line.command
    two = running._command(SortStudy(), options, 2)
    assert "torchrun --nproc-per-node 2 -m -- neuralsort.experiments train sort " in two
    kept = [SortStudy(), options, options.run, options.adjusted(SortStudy().plan(options)), (0.5,)]
    assert running._finished(*kept, 1) == line
    with pytest.raises(CheckpointError, match="processes is 1 there and 2 here"):
        running._finished(*kept, 2)


def test_a_temperature_that_diverges_loses_and_does_not_stop_the_others(tmp_path, monkeypatch):
    forward = sorting.SortModel.forward

    def spoilt(self, *batch):
        return forward(self, *batch) * (math.nan if self.ordering.tau == 1.0 else 1.0)

    monkeypatch.setattr(sorting.SortModel, "forward", spoilt)
    line = run(SortStudy(), small(SortConfig, tmp_path, tau=(1.0, 2.0)))
    assert line.tau == 2.0
    assert [trial["tau"] for trial in line.trials if "diverged" in trial] == [1.0]

    def later(self, *batch):
        if self.ordering.tau == 1.0 and self.training:
            steps.append(1)
            if len(steps) > 3:
                return forward(self, *batch) * math.nan
        return forward(self, *batch)

    steps = []
    monkeypatch.setattr(sorting.SortModel, "forward", later)
    late = small(SortConfig, tmp_path, tau=(1.0, 2.0), steps=10, run=tmp_path / "late")
    line = run(SortStudy(), late)
    (lost,) = [trial for trial in line.trials if "diverged" in trial]
    assert [entry["step"] for entry in lost["history"]] == [2]  # what it had come to is told
    monkeypatch.setattr(sorting.SortModel, "forward", spoilt)
    alone = small(SortConfig, tmp_path, tau=(1.0,), run=tmp_path / "alone")
    with pytest.raises(trainer.Diverged, match=r"diverged at step 0.*nan.*Lower --lr"):
        run(SortStudy(), alone)


def test_bfloat16_networks_still_score_in_float32():
    places = PlaceSum(4, 10, 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert places(torch.rand(3, 4, 10, dtype=torch.bfloat16)).dtype == torch.float32


def test_learning_beats_chance_within_seconds(tmp_path):
    """Forty steps on small digits: far from good, and far from the chance of one in six."""
    options = {"places": 1, "steps": 40, "batch": 32, "test_lists": 300, "lr": 1e-2}
    line = run(SortStudy(), small(SortConfig, tmp_path, **options))
    assert line.metrics["exact_match"] > 0.4
