"""The scikit-learn estimators: its checks, its tools, what they learn, and neighbours."""

import ast
import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="needs the extra `neighbors`")
pytest.importorskip("safetensors", reason="needs the extra `neighbors`")

from sklearn.base import clone
from sklearn.datasets import load_digits, make_moons
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from examples import knn_tutorial
from neuralsort.neighbors import (
    DifferentiableKNeighborsClassifier,
    DifferentiableKNeighborsRegressor,
    base,
    training,
)
from neuralsort.neighbors.embedding import ResidualMLP
from neuralsort.neighbors.training import own_randomness, suited_threads
from tests.estimators import DIABETES, IRIS, NEEDS_FAISS, classifier, regressor


@parametrize_with_checks(
    [
        DifferentiableKNeighborsClassifier(epochs=8),
        DifferentiableKNeighborsRegressor(epochs=8),
    ]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


FILES = [
    {"embedding", "engines", "voting"},
    {"search", "training"},
    {"storage"},
    {"saving"},
    {"base"},
    {"classifier", "regressor"},
]
"""Each file imports from those before it."""


def test_imports_point_downwards():
    folder = Path(base.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == set().union(*FILES)
    seen = set()
    for layer, names in enumerate(FILES):
        for name in names:
            tree = ast.walk(ast.parse((folder / f"{name}.py").read_text()))
            froms = [node for node in tree if isinstance(node, ast.ImportFrom) and node.level]
            used = {node.module or alias.name for node in froms for alias in node.names}
            assert used <= set().union(*FILES[:layer])
            seen |= used
    assert "search" in seen  # the check sees imports at all


# -- a citizen of scikit-learn ---------------------------------------------------------------------


def test_pipeline_and_grid_search():
    pipeline = make_pipeline(StandardScaler(), classifier())
    grid = {"differentiablekneighborsclassifier__n_neighbors": [1, 5]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(*IRIS)
    assert search.best_score_ > 0.93


def test_string_labels_come_back():
    X, y = IRIS
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = classifier().fit(X, names)
    assert model.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert set(model.predict(X)) == set(names)
    assert model.score(X, names) > 0.95


def test_clone_copies_the_embedding():
    model = classifier(embedding=torch.nn.Linear(4, 2))
    copy = clone(model)
    assert copy.embedding is not model.embedding
    assert torch.equal(copy.embedding.weight, model.embedding.weight)


def test_the_embedding_given_is_not_changed_by_fit():
    given = torch.nn.Linear(4, 2)
    before = given.weight.detach().clone()
    model = classifier(embedding=given).fit(*IRIS)
    assert torch.equal(given.weight, before)
    assert given.weight.dtype is torch.float32
    assert not torch.equal(model.embedding_.weight.float(), before)


def test_the_global_generator_is_left_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    classifier().fit(*IRIS)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("stochastic", [False, True])
def test_seeds_decide_everything(stochastic):
    first, again, other = (
        classifier(stochastic=stochastic, samples=2, random_state=seed)
        .fit(*IRIS)
        .transform(IRIS[0])
        for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first, other)


@pytest.mark.parametrize("options", [{"n_neighbors": 0}, {"tau": 0.0}, {"optimizer": "lbfgs"}])
def test_parameters_are_checked_in_fit(options):
    with pytest.raises(ValueError, match=f"The '{next(iter(options))}' parameter"):
        classifier(**options).fit(*IRIS)


def test_progress_is_shown_when_asked_for(capsys):
    classifier(verbose=True, early_stopping=True).fit(*IRIS)
    said = capsys.readouterr().err
    assert "3/3" in said
    assert "validation" in said
    classifier().fit(*IRIS)
    assert capsys.readouterr().err == ""
    stopped = {"early_stopping": True, "patience": 1, "learning_rate": 1e-9, "verbose": 1}
    classifier(**stopped).fit(*IRIS)
    assert "1/3" in capsys.readouterr().err


def test_transform_may_give_tables():
    pandas = pytest.importorskip("pandas")
    found = classifier().set_output(transform="pandas").fit(*IRIS).transform(IRIS[0])
    assert isinstance(found, pandas.DataFrame)
    assert found.columns[0] == "differentiablekneighborsclassifier0"


@NEEDS_FAISS
def test_a_faiss_estimator_survives_pickling():
    model = classifier(index="faiss").fit(*IRIS)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(IRIS[0]), model.predict(IRIS[0]))


# -- what it learns --------------------------------------------------------------------------------


def test_without_training_it_is_knn():
    """The default embedding starts as the features: same neighbours, same votes."""
    X, y = IRIS
    for weights in ("uniform", "distance"):
        ours = classifier(epochs=0, weights=weights).fit(X[::2], y[::2])
        theirs = KNeighborsClassifier(weights=weights).fit(X[::2], y[::2])
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)
    X, y = DIABETES
    ours = regressor(epochs=0).fit(X[::2], y[::2])
    theirs = KNeighborsRegressor().fit(X[::2], y[::2])
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X))


def test_it_learns_to_leave_out_noise():
    """Two moons among 18 features of noise: neighbours in the features are nearly useless."""
    generator = np.random.default_rng(0)

    def draw(count, seed):
        X, y = make_moons(count, noise=0.1, random_state=seed)
        return np.hstack((X, generator.normal(size=(count, 18)))), y

    train, test = draw(600, 0), draw(400, 1)
    plain = KNeighborsClassifier().fit(*train).score(*test)
    learned = classifier(epochs=40).fit(*train).score(*test)
    assert learned > plain + 0.08


def test_the_regressor_learns_to_leave_out_noise():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(800, 12))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    plain = KNeighborsRegressor().fit(X[:500], y[:500]).score(X[500:], y[500:])
    model = regressor(epochs=40).fit(X[:500], y[:500])
    assert model.score(X[500:], y[500:]) > plain + 0.2


def test_loss_falls():
    history = classifier(epochs=10).fit(*load_digits(return_X_y=True)).history_
    assert len(history) == 10
    assert history[-1]["loss"] < history[0]["loss"] < 0


def test_early_stopping_keeps_the_best_and_indexes_everything():
    model = classifier(epochs=50, early_stopping=True, patience=2, learning_rate=0.03).fit(*IRIS)
    assert len(model.history_) < 50
    assert model.n_samples_fit_ == 150
    assert model.score(*IRIS) > 0.95


def train_line(scores, *, epochs=9, patience=2):
    """Trains a line on 40 points with scores that are given; what each batch was, and the line."""
    network, batches, seen = torch.nn.Linear(1, 1), [], []

    def loss(batch):
        batches.append(batch)
        return batch.queries.square().mean()

    def validate():
        seen.append(copy.deepcopy(network.state_dict()))
        return next(scores)

    schedule = training.Schedule(epochs, 16, 30, 0.1, "sgd", patience)
    ids = torch.arange(40)
    history = training.train(
        network,
        loss,
        torch.arange(40.0).unsqueeze(1),
        ids,
        schedule,
        validate=None if scores is None else validate,
        report=lambda *_: None,
    )
    return network, history, seen, batches


def test_training_keeps_the_best_and_stops():
    network, history, seen, _ = train_line(iter([0.1, 0.5, 0.9, 0.9, 0.3, 1.0]))
    assert [one["score"] for one in history] == [0.5, 0.9, 0.9, 0.3]
    assert all(torch.equal(seen[3][k], one) for k, one in network.state_dict().items())
    network, history, seen, _ = train_line(iter([0.8, 0.5, 0.7]))  # nothing was better
    assert len(history) == 2
    assert all(torch.equal(seen[0][k], one) for k, one in network.state_dict().items())


def test_training_asks_every_point_and_offers_none_itself():
    *_, batches = train_line(None, epochs=1)
    asked = torch.cat([one.wanted for one in batches])
    assert torch.equal(asked.sort().values, torch.arange(40))
    for one in batches:
        assert one.known.unique().numel() == 30
        assert torch.equal(one.mask, one.wanted.unsqueeze(-1) != one.known)


def test_held_out_points_are_of_every_class(monkeypatch):
    X, y = IRIS
    model = classifier(early_stopping=True, validation_fraction=0.1)
    for _, spare in [model._split(y, seed) for seed in range(5)]:
        assert np.bincount(y[spare]).tolist() == [5, 5, 5]
    kept, spare = model._split(np.array([0, 0, 0, 1]), 0)  # one class has one point
    assert len(kept) + len(spare) == 4
    with pytest.raises(ValueError, match=r"at least 2 points to train on.*= 1 without those held"):
        model.fit(X[49:51], y[49:51])


def test_images_go_through_an_embedding_of_their_own():
    X, y = load_digits(return_X_y=True)
    images = X.reshape(-1, 1, 8, 8).astype(np.float32)[:600]
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten()
    )
    model = classifier(embedding=network, epochs=15, tau=500.0).fit(images[:400], y[:400])
    assert model.transform(images[:2]).shape == (2, 72)
    assert model.transform(images[:2]).dtype == np.float32
    untrained = classifier(embedding=network, epochs=0).fit(images[:400], y[:400])
    assert model.score(images[400:], y[400:600]) > untrained.score(images[400:], y[400:600])
    maps = classifier(embedding=network[0], epochs=1).fit(images[:50], y[:50])
    assert maps.transform(images[:2]).shape == (2, 72)
    with pytest.raises(ValueError, match=r"points of shape \(1, 6, 8\).*fitted on.*\(1, 8, 8\)"):
        model.predict(images[:, :, :6])


def test_images_need_an_embedding():
    with pytest.raises(ValueError, match=r"dim 4.*Flatten.*`embedding`"):
        classifier().fit(np.zeros((10, 1, 8, 8)), np.arange(10) % 2)


class Odd(torch.nn.Module):
    """An embedding that is none, in some way."""

    def __init__(self, way):
        super().__init__()
        self.linear, self.way = torch.nn.Linear(4, 3), way

    def forward(self, x):
        return self.way(self.linear(x))


@pytest.mark.parametrize(
    ("embedding", "message"),
    [
        (torch.nn.Linear(5, 3), r"does not take points of shape \(2, 4\).*4.*5"),
        (Odd(lambda x: (x, x)), r"must give a tensor \(m, d\), got tuple"),
        (Odd(lambda x: x.sum(1)), r"got \(2,\) for points of shape \(2, 4\)"),
        (Odd(lambda x: x[:1]), r"got \(1, 3\).*one row for each point"),
        (Odd(lambda x: x * float("nan")), r"not finite.*learning_rate"),
    ],
)
def test_what_embeds_nothing_is_refused(embedding, message):
    with pytest.raises(ValueError, match=message):
        classifier(embedding=embedding).fit(*IRIS)


def test_an_interrupted_fit_changes_nothing(monkeypatch):
    X, y = IRIS
    model = classifier().fit(X, y)
    known = model.predict_proba(X)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(base, "train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[::2, :3], y[::2].astype(str))
    assert np.array_equal(model.predict_proba(X), known)
    assert model.predict(X).dtype == y.dtype
    fresh = classifier()
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(X, y)
    with pytest.raises(NotFittedError):
        fresh.predict(X)


def test_data_are_left_alone():
    X, y = IRIS[0] - 3.0, DIABETES[1].copy()[:150]
    before = X.copy(), y.copy()
    network = torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 3))
    model = regressor(embedding=network).fit(X, y)
    model.predict(X)
    y += 1
    assert np.array_equal(X, before[0])
    assert np.array_equal(model._targets[:, 0], before[1])


def test_one_neighbour_is_taken_at_its_word():
    X, y = DIABETES
    assert np.array_equal(regressor(n_neighbors=1).fit(X, y).predict(X), y)


def test_numbers_of_numpy_are_numbers():
    model = classifier(batch_size=np.int64(50), candidates=np.int16(60), early_stopping=True)
    assert model.set_params(n_neighbors=np.int16(3)).fit(*IRIS).score(*IRIS) > 0.9


def test_threads_do_not_share_random_numbers():
    alone = classifier().fit(*IRIS).transform(IRIS[0])
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: classifier().fit(*IRIS).transform(IRIS[0]), range(4)))
    assert torch.equal(torch.rand(3), expected)
    assert all(np.array_equal(one, alone) for one in found)


def test_nothing_to_learn_is_said():
    with pytest.warns(UserWarning, match="nothing to learn") as caught:
        classifier(embedding=torch.nn.Identity()).fit(*IRIS)
    assert caught[0].filename == __file__  # the line that called `fit`


def test_more_neighbours_than_the_default_candidates_are_trained_with_fewer():
    X, y = DIABETES
    message = r"99 neighbours; prediction looks at 150.*candidates"
    with pytest.warns(UserWarning, match=message) as caught:
        model = regressor(n_neighbors=150, epochs=1).fit(X, y)
    assert caught[0].filename == __file__  # the line that called `fit`
    assert model.kneighbors(X[:2])[1].shape == (2, 150)


class Threads(torch.nn.Linear):
    """Notes how many threads work on it, and fails if it is told to."""

    seen: tuple[int, ...] = ()
    fails = False

    def forward(self, points):
        Threads.seen += (torch.get_num_threads(),)
        if self.fails:
            raise RuntimeError("no more")
        return super().forward(points)


@pytest.fixture
def four_threads(monkeypatch):
    """Four threads on a machine with three free cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr("joblib.cpu_count", lambda: 3)
    Threads.seen = ()
    yield
    torch.set_num_threads(before)


def test_fitting_takes_no_more_threads_than_it_can_use(four_threads, monkeypatch):
    X, y = IRIS
    seen = []
    small = ResidualMLP.forward
    monkeypatch.setattr(
        ResidualMLP,
        "forward",
        lambda self, x: (seen.append(torch.get_num_threads()), small(self, x))[1],
    )
    classifier(epochs=1).fit(X, y)
    assert 1 in seen  # of the default network, a step is small
    assert torch.get_num_threads() == 4
    classifier(epochs=1, embedding=Threads(4, 2).double()).fit(X, y)
    assert 3 in Threads.seen  # what a network of the user's takes is not known
    assert torch.get_num_threads() == 4


def test_a_fit_that_fails_leaves_the_threads_as_they_were(four_threads):
    network = Threads(4, 2).double()
    network.fails = True
    with pytest.raises(ValueError, match="does not take points.*no more"):
        classifier(epochs=1, embedding=network).fit(*IRIS)
    with pytest.raises(RuntimeError, match="no more"), suited_threads(network, 10, dense=False):
        raise RuntimeError("no more")
    assert torch.get_num_threads() == 4


def test_large_steps_keep_their_threads(four_threads):
    for rows, threads in ((10, 1), (10**9, 3)):
        with suited_threads(torch.nn.Linear(4, 2), rows, dense=True):
            assert torch.get_num_threads() == threads


class FakeAccelerator:
    """A machine with some devices, whose generators are numbers."""

    def __init__(self, monkeypatch, devices):
        self.states = list(range(devices))
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
        monkeypatch.setattr(torch, "get_device_module", lambda device: self)

    def get_rng_state(self, *device):
        assert len(device) == (len(self.states) > 1)  # MPS, which has one, takes no number
        return self.states[device[0] if device else 0]

    def set_rng_state(self, state, *device):
        self.states[device[0] if device else 0] = state


@pytest.mark.parametrize("devices", [1, 3])
def test_fitting_leaves_the_generators_of_every_accelerator_as_they_were(monkeypatch, devices):
    machine = FakeAccelerator(monkeypatch, devices)
    before = torch.random.get_rng_state()
    with own_randomness(7):
        machine.states = [9] * devices
        torch.rand(3)
    assert machine.states == list(range(devices))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="device='nowhere' cannot be used here"):
        classifier(device="nowhere").fit(*IRIS)


def test_candidates_are_more_than_neighbours():
    with pytest.raises(ValueError, match=r"more than `n_neighbors`, got 5 and 5"):
        classifier(candidates=5).fit(*IRIS)


def test_several_targets():
    X, y = DIABETES
    both = np.stack((y, -2 * y), 1)
    model = regressor().fit(X, both)
    found = model.predict(X[:7])
    assert found.shape == (7, 2)
    np.testing.assert_allclose(found[:, 1], -2 * found[:, 0])


@pytest.mark.parametrize("folds", [1, pytest.param(5, marks=pytest.mark.long)])
def test_digits_above_knn_and_neighbourhood_components(folds):
    """As the tutorial has them, the same folds for all: the first of them, or all five."""
    plain, components, _, with_images = knn_tutorial.MODELS["digits"].values()
    ours, *theirs = (
        knn_tutorial.measure(make, "digits", folds)["accuracy"]
        for make in (with_images, plain, components)
    )
    assert ours > max(theirs) + 0.003


def test_the_tutorial_prints_and_writes_its_table(tmp_path, monkeypatch, capsys):
    lines = tmp_path / "lines.jsonl"
    some = {"breast cancer": {"plain": KNeighborsClassifier}}
    monkeypatch.setattr(knn_tutorial, "MODELS", some)
    monkeypatch.setattr("sys.argv", ["knn_tutorial", "--json", str(lines)])
    knn_tutorial.main()
    line = json.loads(lines.read_text())
    assert line["model"] == "plain"
    assert 0.9 < line["accuracy"] < 1
    assert {"versions", "commit", "machine"} <= line.keys()
    assert f"| breast cancer | plain | {100 * line['accuracy']:.2f} %" in capsys.readouterr().out


# -- neighbours ------------------------------------------------------------------------------------


def test_neighbours_are_those_in_the_embedding():
    X, y = IRIS
    model = classifier().fit(X[:100], y[:100])
    distances, indices = model.kneighbors(X[100:], 4)
    gaps = model.transform(X[100:])[:, None] - model.transform(X[:100])
    expected = np.sort(np.sqrt((gaps**2).sum(-1)), 1)[:, :4]
    np.testing.assert_allclose(distances, expected)
    assert np.array_equal(model.kneighbors(X[100:], 4, return_distance=False), indices)


def test_no_training_point_is_its_own_neighbour():
    X, y = IRIS
    X = np.concatenate((X, X[:5], X[:5], X[:5], X[:5]))  # five at one place: more than asked for
    y = np.concatenate((y, y[:5], y[:5], y[:5], y[:5]))
    indices = classifier().fit(X, y).kneighbors(n_neighbors=3, return_distance=False)
    assert indices.shape == (170, 3)
    assert (indices != np.arange(170)[:, None]).all()


def test_more_neighbours_than_points_are_refused():
    X, y = IRIS
    model = classifier().fit(X[45:55], y[45:55])
    with pytest.raises(ValueError, match=r"from 1 to n_samples_fit.*n_neighbors = 11"):
        model.kneighbors(X, 11)
    with pytest.raises(ValueError, match=r"n_neighbors = 10"):
        model.kneighbors(n_neighbors=10)


def test_distance_weights_at_distance_zero():
    """As scikit-learn: training points that are where the query is share the vote."""
    X, y = IRIS
    ours = classifier(weights="distance", epochs=0).fit(X, y)
    theirs = KNeighborsClassifier(weights="distance").fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X))
