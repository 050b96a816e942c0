"""The study of nearest neighbours: data, augmentation, networks, losses, votes, a whole run."""

import gzip
import io
import json
import os
import struct
import tarfile
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("lightning_fabric", reason="needs the extra `experiments`")

import neuralsort.torch as ns
from benchmarks import pages
from neuralsort.experiments import cli
from neuralsort.experiments.data import downloads, images
from neuralsort.experiments.data.augmentation import Augmentation
from neuralsort.experiments.data.images import SPLITS, Images, load_images
from neuralsort.experiments.networks import embeddings
from neuralsort.experiments.record import Line
from neuralsort.experiments.reporting import figures, knn_tables, paper, report, summary, tables
from neuralsort.experiments.reporting.selection import chosen, preferred
from neuralsort.experiments.reproduction.cells import Cell, cells
from neuralsort.experiments.studies import knn
from neuralsort.experiments.studies.knn import KNNConfig, KNNStudy
from neuralsort.experiments.studies.running import MODEL, evaluate, run
from neuralsort.experiments.studies.votes import Votes, project
from neuralsort.experiments.training import checkpoint
from neuralsort.experiments.training.checkpoint import CheckpointError
from neuralsort.experiments.training.plan import ConfigError
from tests.portions import some_of

NEEDS_DATA = pytest.mark.skipif(
    "NEURALSORT_DATA" not in os.environ, reason="NEURALSORT_DATA is not set"
)
METHODS = tuple(KNNConfig.__annotations__["method"].__args__)


@pytest.fixture(scope="module")
def digits():
    return load_images("digits")


# -- data ------------------------------------------------------------------------------------------


def test_embedded_digits_have_their_labels(digits):
    from sklearn.datasets import load_digits

    known = {
        tuple(np.round(x * 255 / 16).astype(int)): y
        for x, y in zip(*load_digits(return_X_y=True), strict=True)
    }
    test = digits["test"]
    rows = zip(test.pixels.flatten(1).tolist(), test.labels.tolist(), strict=True)
    assert all(known[tuple(pixels)] == label for pixels, label in rows)
    assert [len(digits[name]) for name in SPLITS] == [1252, 181, 364]
    assert knn.TRAIN_SIZE["digits"] == 1252


@pytest.fixture
def small_cifar(tmp_path, monkeypatch):
    """Batches in CIFAR-10's format, with images that say where they come from."""
    import hashlib

    folder = tmp_path / "cifar10" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    digests = {}
    for number, name in enumerate(downloads.DOWNLOADS["cifar10"].digests):
        rows = np.zeros((10_000, 3073), np.uint8)
        rows[:, 0] = np.arange(10_000) % 10
        rows[:, 1:1025], rows[:, 1025:2049], rows[:, 2049:] = number, 100 + number, 200
        rows[:, 1] = 250  # the first pixel of the first row, in red
        (folder / name).write_bytes(rows.tobytes())
        digests[name] = hashlib.sha256(rows.tobytes()).hexdigest()
    fake = replace(downloads.DOWNLOADS["cifar10"], digests=digests)
    monkeypatch.setitem(downloads.DOWNLOADS, "cifar10", fake)
    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    return tmp_path


def test_colour_images_are_read_in_order(small_cifar):
    splits = load_images("cifar10", small_cifar)
    assert [len(splits[name]) for name in SPLITS] == [45_000, 5_000, 10_000]
    assert knn.TRAIN_SIZE["cifar10"] == 45_000
    assert splits["validation"].pixels[0, :, 5, 5].tolist() == [4, 104, 200]
    assert splits["test"].pixels[0, :, 0, 0].tolist() == [250, 105, 200]
    assert splits["test"].pixels[0, :, 0, 1].tolist() == [5, 105, 200]
    assert splits["train"].labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_an_archive_is_unpacked_and_its_files_checked(small_cifar, tmp_path, monkeypatch):
    import pooch

    source = small_cifar / "cifar10" / "cifar-10-batches-bin"
    cache = tmp_path / "cache"

    def retrieve(url, known_hash, fname, path):
        assert url == "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
        path.mkdir(parents=True)
        with tarfile.open(path / fname, "w:gz", compresslevel=1) as archive:
            archive.add(source, "cifar-10-batches-bin")
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    monkeypatch.setattr(downloads, "_cache", lambda name: cache / name)
    found = downloads.find("cifar10")
    assert set(found) == set(downloads.DOWNLOADS["cifar10"].digests)
    assert all(path.parent.name == "cifar-10-batches-bin" for path in found.values())


def test_fashion_is_read_like_mnist(tmp_path, monkeypatch):
    """The same four names, in a folder of another name."""
    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    monkeypatch.setattr(downloads, "_checked", lambda path, digest: path)
    (tmp_path / "fashion-mnist").mkdir()
    for name in downloads.DOWNLOADS["fashion-mnist"].digests:
        count = 60_000 if "train" in name else 10_000
        if "images" in name:
            head, body = struct.pack(">HBB3I", 0, 8, 3, count, 28, 28), bytes(784 * count)
        else:
            head, body = struct.pack(">HBBI", 0, 8, 1, count), bytes(i % 10 for i in range(count))
        path = tmp_path / "fashion-mnist" / name
        path.write_bytes(gzip.compress(head + body, compresslevel=1))
    splits = load_images("fashion-mnist", tmp_path)
    assert [len(splits[name]) for name in SPLITS] == [50_000, 10_000, 10_000]
    assert knn.TRAIN_SIZE["fashion-mnist"] == knn.TRAIN_SIZE["mnist"] == 50_000
    assert torch.bincount(splits["test"].labels).tolist() == [1000] * 10


@NEEDS_DATA
def test_real_files_are_the_canonical_ones():
    for source in ("mnist", "fashion-mnist"):
        assert len(downloads.find(source, download=False)) == 4


def test_pictures_survive_png():
    from PIL import Image

    gray, colour = torch.arange(64).byte().view(8, 8), torch.randint(256, (3, 4, 5)).byte()
    for pixels, expected in ((gray, gray), (gray[None], gray), (colour, colour.movedim(0, -1))):
        import base64

        shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(images.png(pixels)))))
        assert np.array_equal(shown, expected.numpy())


# -- augmentation ----------------------------------------------------------------------------------


def test_shifts_move_whole_images_and_bring_in_zeros():
    torch.manual_seed(0)
    x = torch.rand(200, 3, 6, 6) + 1
    moved = Augmentation(shift=2)(x)
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    seen = set()
    for one, whole in zip(moved, padded, strict=True):
        fits = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if torch.equal(one, whole[:, i : i + 6, j : j + 6])
        ]
        assert len(fits) == 1
        seen |= set(fits)
    assert len(seen) == 25


def test_flips_mirror_about_half():
    torch.manual_seed(0)
    x = torch.rand(400, 1, 4, 4)
    flipped = Augmentation(flip=True)(x)
    mirrored = (flipped == x.flip(-1)).all(-1).all(-1).all(-1)
    assert ((flipped == x).all(-1).all(-1).all(-1) ^ mirrored).all()
    assert 150 < mirrored.sum() < 250


def test_cutout_hides_a_square():
    torch.manual_seed(0)
    x = torch.ones(50, 2, 9, 9)
    hidden = Augmentation(cutout=4)(x) == 0
    assert (hidden.sum((-1, -2)) == 16).all()
    assert (hidden.any(-1).sum(-1) == 4).all()
    assert torch.equal(hidden[:, 0], hidden[:, 1])


def test_no_augmentation_is_the_identity():
    x = torch.rand(3, 1, 4, 4)
    assert torch.equal(Augmentation()(x), x)
    assert len(Augmentation().views(x)) == 1
    assert len(Augmentation(flip=True).views(x)) == 2


# -- networks --------------------------------------------------------------------------------------


def count(network) -> int:
    return sum(one.numel() for one in network.parameters())


def test_papers_network_has_the_papers_layers():
    """Conv 5x5-20, pool, conv 5x5-50, pool: 4 x 4 x 50, then 500 units."""
    expected = (25 * 20 + 20) + (25 * 20 * 50 + 50) + (16 * 50 * 500 + 500)
    assert count(embeddings.PaperEmbedding(1, 28)) == expected
    assert embeddings.PaperEmbedding(1, 28)(torch.rand(2, 1, 28, 28)).shape == (2, 500)
    assert embeddings.PaperEmbedding(1, 8)(torch.rand(2, 1, 8, 8)).shape == (2, 500)


def test_resnet18_is_the_known_one():
    """11.17 million parameters with its 10 outputs of 5,130, for colour images."""
    assert count(embeddings.ResNet18(3, 32)) == 11_173_962 - 5_130
    assert embeddings.ResNet18(1, 28)(torch.rand(2, 1, 28, 28)).shape == (2, 512)


def test_papers_autoencoders_have_the_papers_sizes():
    dense = embeddings.DenseAutoencoder(784)
    widths = [784, 500, 500, 50, 500, 500, 784]
    expected = sum(a * b + b for a, b in zip(widths, widths[1:], strict=False))
    assert count(dense) == expected
    assert dense(torch.rand(2, 1, 28, 28)).shape == (2, 1, 28, 28)
    colour = embeddings.ConvolutionalAutoencoder()
    assert colour.encoder(torch.rand(2, 3, 32, 32)).flatten(1).shape == (2, 256)
    assert colour(torch.rand(2, 3, 32, 32)).shape == (2, 3, 32, 32)


@pytest.mark.parametrize(("channels", "height"), [(1, 8), (1, 28), (3, 32)])
def test_small_networks_give_points_on_a_sphere(channels, height):
    points = embeddings.SmallNetwork(channels, height, 4)(torch.rand(3, channels, height, height))
    torch.testing.assert_close(points.norm(dim=-1), torch.ones(3))


def test_patches_become_white():
    """Neighbouring pixels are much alike; what comes out is not, whatever comes in."""
    torch.manual_seed(0)
    images = torch.nn.functional.avg_pool2d(torch.rand(200, 3, 14, 14), 3, 1)  # (200, 3, 12, 12)
    white = embeddings.Whitening(3, least=0.0)
    white.fit(images)
    out = white(images)
    assert out.shape == (200, 24, 11, 11)
    torch.testing.assert_close(out[:, 12:], -out[:, :12])
    covariance = out[:, :12].movedim(1, 0).flatten(1).cov()
    torch.testing.assert_close(covariance, torch.eye(12), atol=1e-3, rtol=0)


def test_convolutions_pass_on_at_first():
    network = embeddings.SmallNetwork(1, 28, 8).eval()
    images = torch.rand(2, 8, 27, 27)
    pooled = torch.nn.functional.max_pool2d(images, 2)
    torch.testing.assert_close(network.layers[:3](images)[:, :8], pooled)


GREY, COLOUR = ("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))


def of_colour(method: str, recipe: str) -> Any:
    """Large networks, which the paper's recipe has for all: one of them in every run."""
    every_run = recipe == "fast" or method == "neuralsort"
    source, shape = COLOUR
    shape = (3, 16, 16) if method == "pca" else shape  # which decomposes a square matrix
    return pytest.param(source, shape, method, recipe, marks=() if every_run else pytest.mark.long)


@pytest.mark.parametrize(
    ("source", "shape", "method", "recipe"),
    [
        case
        for method in METHODS
        for recipe in ("fast", "paper")
        for case in ((*GREY, method, recipe), of_colour(method, recipe))
    ],
)
def test_every_method_embeds_grey_and_colour(source, shape, method, recipe):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (60, *shape), generator=generator, dtype=torch.uint8)
    some = Images(pixels, torch.arange(60) % 10)
    config, study = KNNConfig(data=source, method=method, recipe=recipe), KNNStudy()
    model = study.task(config, {"train": some, "validation": some}, 1.0, study.plan(config)).model
    assert len(knn.embed(model.eval(), some[:3])) == 3
    if method not in knn.UNTRAINED:
        model.train()(some.floats(), some.labels).backward()
        assert all(one.grad is not None for one in model.parameters())


@pytest.mark.parametrize(("recipe", "most"), [("fast", 127), ("paper", 100)])
def test_more_neighbours_than_candidates_are_refused(digits, recipe, most):
    study = KNNStudy()
    config = KNNConfig(recipe=recipe, k=most)
    plan = study.plan(config)
    study.task(config, digits, 1.0, plan)
    with pytest.raises(ConfigError, match=rf"--k must be at most {most}.*got {most + 1}"):
        study.task(replace(config, k=most + 1), digits, 1.0, plan)
    whole = len(digits["train"])
    large = replace(plan, batch=5_000)
    for method, bound in (("neuralsort", None), ("pixels", whole), ("autoencoder", whole)):
        bound = bound or (whole - whole // 2 if recipe == "paper" else whole - 1)
        with pytest.raises(ConfigError, match=rf"--k must be at most {bound}.*got {bound + 1}"):
            study.task(replace(config, k=bound + 1, method=method), digits, 1.0, large)


def test_principal_components_are_scikit_learns(digits):
    from sklearn.decomposition import PCA

    x = digits["train"].floats()
    ours = embeddings.PrincipalComponents(64, 10).fit(x)(x).numpy()
    theirs = PCA(10).fit_transform(x.flatten(1).numpy())
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-3)


# -- losses ----------------------------------------------------------------------------------------


def neighbour_loss(**options):
    settings = {"k": 2, "tau": 0.5, "samples": None, "scale": 1.0, "augment": Augmentation()}
    settings |= {"halves": False, "logarithm": False} | options
    return knn.NeighbourLoss(torch.nn.Flatten(), **settings)


IMAGES = torch.rand(8, 1, 2, 2, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])


def test_every_image_is_query_and_candidate_but_not_its_own():
    points = IMAGES.flatten(1)
    expected = []
    for i in range(8):
        rest = [j for j in range(8) if j != i]
        P = ns.neuralsort(-(points[rest] - points[i]).square().sum(-1), tau=0.5)
        expected.append(ns.knn_loss(P, LABELS[rest] == LABELS[i], k=2))
    torch.testing.assert_close(neighbour_loss()(IMAGES, LABELS), torch.stack(expected).mean())
    torch.testing.assert_close(
        neighbour_loss(logarithm=True)(IMAGES, LABELS), -(-torch.stack(expected)).log().mean()
    )


def test_the_loss_sees_points_so_many_times_as_far_apart():
    three, larger = (neighbour_loss(**one)(IMAGES, LABELS) for one in ({"scale": 3.0}, {}))
    assert three != larger
    # Without noise, a temperature that grows with squared distances undoes it.
    torch.testing.assert_close(neighbour_loss(scale=3.0, tau=4.5)(IMAGES, LABELS), larger)
    # Noise stays as it is, so with noise it does not.
    noisy = []
    for one in ({"scale": 3.0, "tau": 4.5}, {}):
        torch.manual_seed(0)
        noisy.append(neighbour_loss(samples=2, **one)(IMAGES, LABELS))
    assert noisy[0] != pytest.approx(noisy[1].item(), abs=1e-3)


def test_in_the_papers_batches_the_first_half_asks_the_second():
    points = IMAGES.flatten(1)
    P = ns.neuralsort(-torch.cdist(points[:4], points[4:]).square(), tau=0.5)
    expected = ns.knn_loss(P, LABELS[:4, None] == LABELS[4:], k=2)
    torch.testing.assert_close(neighbour_loss(halves=True)(IMAGES, LABELS), expected)


def test_samples_change_the_loss():
    torch.manual_seed(0)
    model = neighbour_loss(samples=3)
    assert model(IMAGES, LABELS) != model(IMAGES, LABELS)


def test_an_epoch_sees_every_image_once(digits):
    study, config = KNNStudy(), KNNConfig()
    task = study.task(config, digits, 1.0, study.plan(config))
    task.size = 313  # a fourth of the images
    seen = torch.cat([task.batch(step, slice(None))[0].flatten(1) for step in range(4)])
    assert torch.equal(
        torch.sort(seen.sum(1)).values,
        torch.sort(digits["train"].floats().flatten(1).sum(1)).values,
    )
    again = study.task(config, digits, 1.0, study.plan(config))
    again.size = 313
    assert torch.equal(again.batch(3, slice(None))[0].flatten(1), seen[-313:])
    parts = [again.batch(3, slice(rank, None, 2))[1] for rank in (0, 1)]
    assert [len(part) for part in parts] == [157, 156]


# -- votes -----------------------------------------------------------------------------------------


def test_votes_are_scikit_learns(digits):
    from sklearn.neighbors import KNeighborsClassifier

    train, test = digits["train"], digits["test"]
    x, asked = (one.floats().flatten(1).numpy() for one in (train, test))
    votes = Votes.of(x, train, asked, test)
    for k in knn.KS:
        for weights in ("uniform", "distance"):
            theirs = KNeighborsClassifier(k, weights=weights).fit(x, train.labels)
            assert (votes.predictions(k, weights) == theirs.predict(asked)).all()


def test_mirror_images_are_averaged():
    class Identity(torch.nn.Module):
        def embed(self, x):
            return x.flatten(1)

    some = Images(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), torch.zeros(1).long())
    found = knn.embed(Identity(), some, Augmentation(flip=True))
    assert found.tolist() == [[0.5, 0.5]]


# -- runs ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def small_projections():
    """t-SNE of a hundred points in every run, since that of all takes longer than the rest."""

    def of_few(points: np.ndarray) -> list[list[float]]:
        return project(points[:100]) + [[0.5, 0.5]] * (len(points) - 100)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(knn, "project", of_few)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two steps of every method."""
    folder = tmp_path_factory.mktemp("knn")
    lines = {}
    for method in METHODS:
        for recipe in ("fast", "paper") if method == "neuralsort" else ("fast",):
            config = KNNConfig(
                method=method,
                recipe=recipe,
                steps=2,
                tau=(1.0,),
                run=folder / f"{method}-{recipe}",
                results=folder / "results",
            )
            lines[method, recipe] = run(KNNStudy(), config)
    return folder, lines


def test_lines_say_what_was_done(finished):
    _, lines = finished
    for (method, recipe), line in lines.items():
        assert (line.study, line.data, line.sizes["k"]) == ("knn", "digits", 9)
        assert 0.05 < line.metrics["accuracy"] <= 1
        low, high = line.intervals["accuracy"]
        assert low < line.metrics["accuracy"] <= high
        if method != "cross_entropy":
            assert line.extras["chosen"]["k"] in knn.KS
        assert line.config["augmentation"]["turn"] == (
            recipe == "fast" and method in (*knn.NEURALSORT, "cross_entropy")
        )
    assert lines["pixels", "fast"].metrics["accuracy"] > 0.97
    assert lines["pixels", "fast"].steps == 0
    assert lines["neuralsort", "paper"].config["network"] == "PaperEmbedding"
    assert lines["neuralsort", "paper"].config["plan"]["batch"] == 200


def test_k_and_weights_are_chosen_on_validation(digits):
    """Labels of test images, all wrong, change the accuracy and nothing that was chosen."""
    study, config = KNNStudy(), KNNConfig(method="pixels")
    model = study.task(config, digits, 1.0, study.plan(config)).model
    right = study.test(config, model, digits)
    moved = Images(digits["test"].pixels, (digits["test"].labels + 1) % 10)
    wrong = study.test(config, model, digits | {"test": moved})
    assert wrong.metrics["accuracy"] < 0.05
    assert wrong.extras["chosen"] == right.extras["chosen"]


def test_a_finished_run_is_tested_again(finished, tmp_path):
    folder, lines = finished
    options = KNNStudy(), KNNConfig(results=tmp_path), folder / "neuralsort-fast"
    (line,) = evaluate(*options)
    assert line.metrics == lines["neuralsort", "fast"].metrics
    with pytest.raises(ConfigError, match="no lists"):
        list(evaluate(*options, lengths=[3]))
    other = tmp_path / "other"
    facts = {"line": asdict(lines["neuralsort", "fast"])}
    checkpoint.write(other / MODEL, {"network.weight": torch.ones(3)}, facts)
    with pytest.raises(CheckpointError, match="of this version"):
        list(evaluate(KNNStudy(), KNNConfig(results=tmp_path), other))


def test_points_in_one_place_have_a_projection():
    assert project(np.zeros((60, 5), np.float32)) == [[0.5, 0.5]] * 60
    two = np.repeat(np.eye(2, dtype=np.float32), 30, axis=0)
    assert np.isfinite(project(two)).all()


def test_report_shows_tables_and_figures(finished, tmp_path):
    folder, _ = finished
    page = report.write_report(folder / "results", tmp_path).read_text()
    for text in ("Nearest neighbours: accuracy", "accuracy by k", "paper: 99.5 %", "kNN + PCA"):
        assert text in page
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"knn-projection-digits-fast.png", "knn-neighbours-digits-fast.png"} <= drawn


def test_figures_name_what_labels_stand_for(finished, tmp_path, monkeypatch):
    _, lines = finished
    line = lines["neuralsort", "fast"]
    drawn = []
    monkeypatch.setattr(figures, "_save", lambda figure, path: drawn.append(figure) or path)
    figures.neighbours(replace(line, data="cifar10"), tmp_path)
    figures.projection(replace(line, data="fashion-mnist"), tmp_path)
    queries, plane = drawn
    label = line.extras["queries"][0]["label"]
    animals = ["airplane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    assert queries.axes[0].get_xlabel() == f"query: {animals[label]}"
    clothes = [text.get_text() for text in plane.axes[1].get_legend().get_texts()]
    assert (len(clothes), clothes[0], clothes[-1]) == (10, "T-shirt", "boot")


def test_the_table_takes_the_k_that_validation_likes():
    def line(k, validation, accuracy, lr=1e-4, seed=0, network="some"):
        by_k = {f"accuracy_k{each}": accuracy for each in knn.KS}
        return Line(
            study="knn",
            data="mnist",
            method="neuralsort",
            sizes={"k": k},
            seed=seed,
            steps=5,
            wall_seconds=60.0,
            metrics={"accuracy": accuracy} | by_k,
            trials=[],
            extras={"chosen": {"k": k, "weights": "uniform", "validation": validation}},
            config={
                "network": network,
                "steps_of_recipe": 9,
                "plan": {"lr": lr, "steps": 5, "batch": 7},
            },
        )

    slower = line(9, 0.97, 0.5, lr=1e-5)
    lines = chosen([line(9, 0.99, 0.98), line(3, 0.98, 0.99), slower])
    assert len(lines) == 3
    table = knn_tables.knn_table(lines)
    row = next(row for row in table.rows if row[0][0] == "Deterministic NeuralSort")
    assert row[1][0] == "98.00 %"
    assert {"5 of 9 steps", "vote: k = 9, uniform", "trained with k = 9"} <= set(row[1])
    (row,) = pages.neighbours([replace(one, recipe="fast") for one in lines]).splitlines()[2:]
    assert [cell.strip() for cell in row.split("|")[1:3]] == [
        "Deterministic NeuralSort",
        "98.00 in one seed (99.5)",
    ]
    by_k, *others = knn_tables.knn_by_k_table(lines).rows
    assert all(row[1][0] == tables.MISSING and "paper" in row[1][1] for row in others)
    assert [cell[0] for cell in by_k[1:]] == ["98.00 %", "99.00 %", "98.00 %", "98.00 %"]
    assert "trained with k = 9" in by_k[1]
    assert "trained with k = 9" not in by_k[2]
    # One lucky seed of another k does not push three seeds aside.
    three = [line(9, 0.97, accuracy, seed=seed) for seed, accuracy in enumerate((0.9, 0.91, 0.92))]
    assert preferred([*three, line(3, 0.99, 0.99)]) == three
    # Seeds of another network are not averaged with them, nor is it "the same network".
    other = line(9, 0.99, 0.99, seed=3, network="other")
    assert preferred([*three, other]) == three
    plain = replace(line(9, 0.98, 0.95), method="cross_entropy", recipe="fast")
    ours = [replace(line(9, 0.97, 0.9, network=name), recipe="fast") for name in ("some", "other")]
    (claims,) = summary.summaries([ours[0], plain])
    assert "close to the same network" in claims.rows[0][0][0]
    assert not summary.summaries([ours[1], plain])
    # Nor are runs of other budgets, nor do they push those of the recipe aside.
    longer = replace(plain, config=plain.config | {"plan": plain.plan | {"steps": 99}})
    assert not summary.summaries([ours[0], longer])
    whole = replace(longer, config=longer.config | {"steps_of_recipe": 99})
    endless = replace(whole, config=whole.config | {"plan": whole.plan | {"steps": 10**6}})
    assert preferred([plain, whole, endless]) == [whole]
    # How far apart points were is a choice of validation as well, and the table tells it.
    apart = line(9, 0.98, 0.93)
    apart = replace(apart, config=apart.config | {"scale": 4.0})
    close = line(9, 0.97, 0.94)
    assert preferred([apart, close]) == [apart]
    # So is every other option, such as the temperature: the last line is not the better one.
    soft, hard = (
        replace(one, config=one.config | {"taus": [tau]})
        for one, tau in ((line(9, 0.93, 0.9), 1.0), (line(9, 0.5, 0.5), 4.0))
    )
    assert preferred([soft, hard]) == [soft]
    told = "points 4 times as far apart"
    for table in (knn_tables.knn_table, knn_tables.knn_by_k_table):
        for lines, expected in (([apart, close], True), ([close], False)):
            assert any(told in cell for row in table(lines).rows for cell in row) == expected


def test_papers_tables_are_whole():
    assert set(paper.KNN_ACCURACY) == set(METHODS)
    assert len(paper.KNN_ACCURACY_BY_K) == 6
    for (data, method), row in paper.KNN_ACCURACY_BY_K.items():
        best = paper.KNN_ACCURACY[method][paper.KNN_DATA.index(data)]
        assert max(row) == best


def test_reproduction_fills_the_tables():
    for data in paper.KNN_DATA:
        chosen = [cell.config for cell in cells(data) if cell.study == "knn"]
        assert {config.method for config in chosen} == set(METHODS)
        ks = set(paper.KNN_KS) if data == "mnist" else {9}  # those of others take hours each
        assert {c.k for c in chosen if c.method == "neuralsort"} == ks
    for recipe in ("fast", "paper"):
        folders = [cell.folder for cell in cells("mnist", recipe)]
        assert len(folders) == len(set(folders))


def test_folders_say_what_is_not_as_in_the_recipe():
    usual = KNNConfig().folder("knn").name
    assert usual == "knn-digits-neuralsort-k9-fast-seed0"
    short = KNNConfig(steps=50, lr=1e-5, tau=(1.0, 0.5)).folder("knn").name
    assert short == f"{usual}-steps50-lr1e-05-tau-1-0.5"


def test_the_command_line_trains(tmp_path, capsys):
    options = ["--method", "pca", "--run", str(tmp_path / "run"), "--results", str(tmp_path)]
    assert cli.main(["train", "knn", *options]) == 0
    said = capsys.readouterr().out
    assert "knn pca, digits, k = 9, fast" in said
    line = json.loads((tmp_path / "knn.jsonl").read_text())
    assert line["config"]["index"] == "all training images"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--k", "0"], "--k must be at least 1"),
        (["--data", "svhn"], "fashion-mnist"),
        (["--scale", "-1"], "--scale must be a positive number, got -1"),
        (["--scale", "inf"], "--scale must be a positive number, got inf"),
        (["--method", "pca", "--scale", "2"], "pca does not. Leave it out"),
    ],
)
def test_wrong_options_are_refused(capsys, options, message):
    try:
        status = cli.main(["train", "knn", *options])
    except SystemExit as stop:
        status = stop.code
    said = capsys.readouterr()
    assert status == 2
    assert message in said.err + said.out


def test_runs_of_another_scale_are_other_runs(tmp_path, monkeypatch):
    config = KNNConfig(method="stochastic_neuralsort", steps=1, batch=16, results=tmp_path)
    cells = [Cell("knn", replace(config, scale=scale)) for scale in (1.0, 4.0)]
    assert "-seed0-scale4-" in cells[1].folder.name
    lines = [run(KNNStudy(), replace(cell.config, run=tmp_path / cell.folder)) for cell in cells]
    told = [[cell.is_told_by(line) for line in lines] for cell in cells]
    assert told == [[True, False], [False, True]]
    assert lines[0].settings != lines[1].settings
    assert lines[0].trials[0]["history"][-1]["loss"] != lines[1].trials[0]["history"][-1]["loss"]
    assert "--scale 4.0" in lines[1].command
    early = replace(lines[0], config={x: y for x, y in lines[0].config.items() if x != "scale"})
    assert cells[0].is_told_by(early)
    assert early.settings == lines[0].settings
    scales = []
    task = KNNStudy.task

    def seen(self, config, *rest):
        scales.append(config.scale)
        return task(self, config, *rest)

    monkeypatch.setattr(KNNStudy, "task", seen)
    list(evaluate(KNNStudy(), KNNConfig(results=tmp_path), tmp_path / cells[1].folder))
    assert scales == [4.0]
    other = replace(cells[1].config, run=tmp_path / cells[0].folder)
    with pytest.raises(CheckpointError, match="holds another run"):
        run(KNNStudy(), other)
    (tmp_path / cells[0].folder / MODEL).unlink()
    with pytest.raises(CheckpointError, match="belongs to another run: .*scale"):
        run(KNNStudy(), other)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "least"), some_of([(60, 0.95), (200, 0.975)], (60, 0.95)))
def test_the_quick_form_learns(tmp_path, steps, least):
    """Untrained, the network has an accuracy of about 0.8, and a loss of 1.7."""
    config = KNNConfig(steps=steps, run=tmp_path / "run", results=tmp_path)
    line = run(KNNStudy(), config)
    assert line.metrics["accuracy"] > least
    assert line.validation["loss"] < 1


@pytest.mark.long
def test_all_points_have_a_projection(tmp_path, monkeypatch):
    monkeypatch.setattr(knn, "project", project)
    line = run(KNNStudy(), KNNConfig(steps=2, run=tmp_path / "run", results=tmp_path))
    for name in ("before", "after"):
        points = np.array(line.extras["projection"][name])
        assert points.shape == (len(line.extras["projection"]["labels"]), 2)
        assert np.ptp(points, axis=0).tolist() == [1.0, 1.0]
