"""Estimators in folders: the same again, killed and crowded writers, damaged folders."""

import json
import resource
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="needs the extra `neighbors`")
pytest.importorskip("safetensors", reason="needs the extra `neighbors`")

from sklearn.exceptions import NotFittedError

from neuralsort.neighbors import (
    DifferentiableKNeighborsClassifier,
    DifferentiableKNeighborsRegressor,
    StorageError,
    engines,
)
from neuralsort.neighbors import storage as storage_room
from tests.estimators import DIABETES, EXACT, IRIS, NEEDS_FAISS, classifier, regressor


@pytest.mark.parametrize("kind", EXACT)
def test_a_saved_classifier_is_the_same(tmp_path, kind):
    X, y = IRIS
    model = classifier(index=kind, weights="distance", n_neighbors=3).fit(X, y.astype(str))
    model.save(tmp_path / "model")
    again = DifferentiableKNeighborsClassifier.load(tmp_path / "model")
    assert again.get_params() == model.get_params()
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.predict(X).dtype == model.predict(X).dtype
    assert again.n_features_in_ == 4
    names = {path.name.split("-")[-1] for path in (tmp_path / "model").glob("[!.]*")}
    engine = {"index.faiss"} if kind == "faiss" else set()
    assert names == {"estimator.json", "tensors.safetensors"} | engine


@NEEDS_FAISS
@pytest.mark.parametrize("factory", ["IVF8,Flat", "HNSW16"])
def test_an_approximate_index_is_saved_as_it_is(tmp_path, factory):
    X, y = IRIS
    search = "nprobe=2" if "IVF" in factory else "efSearch=20"
    model = classifier(index="faiss", index_factory=factory, index_search=search).fit(X, y)
    assert model.score(X, y) > 0.9
    model.save(tmp_path)
    again = DifferentiableKNeighborsClassifier.load(tmp_path)
    assert not again._index.engine.exact
    assert np.array_equal(again.kneighbors(X)[1], model.kneighbors(X)[1])


@NEEDS_FAISS
@pytest.mark.parametrize("kind", ["auto", "faiss"])
def test_a_folder_with_an_index_goes_where_there_is_no_faiss(tmp_path, monkeypatch, kind):
    X, y = IRIS
    model = classifier(index=kind).fit(X, y)
    expected = model.predict_proba(X)
    model.save(tmp_path)
    monkeypatch.setitem(sys.modules, "faiss", None)
    if kind == "auto":
        again = DifferentiableKNeighborsClassifier.load(tmp_path)
        assert np.array_equal(again.predict_proba(X), expected)
    else:
        with pytest.raises(ImportError, match="pip install faiss-cpu"):
            DifferentiableKNeighborsClassifier.load(tmp_path)


def test_names_of_features_and_shared_parameters_are_saved(tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = IRIS
    table = pandas.DataFrame(X, columns=list("abcd"))
    square = torch.nn.Linear(4, 4)
    network = torch.nn.Sequential(square, torch.nn.ReLU(), square)
    model = classifier(embedding=network).fit(table, y)
    model.save(tmp_path)
    again = DifferentiableKNeighborsClassifier.load(tmp_path, embedding=network)
    assert again.feature_names_in_.tolist() == list("abcd")
    assert np.array_equal(again.predict_proba(table), model.predict_proba(table))
    with pytest.raises(ValueError, match="feature names"):
        again.predict(table[list("dcba")])


def test_a_saved_regressor_is_the_same(tmp_path):
    X, y = DIABETES
    model = regressor(weights="distance").fit(X.astype(np.float32), y)
    model.save(tmp_path)
    again = DifferentiableKNeighborsRegressor.load(tmp_path)
    assert np.array_equal(again.predict(X), model.predict(X))


def test_an_embedding_of_your_own_is_passed_again(tmp_path):
    X, y = IRIS
    model = classifier(embedding=torch.nn.Linear(4, 3)).fit(X, y)
    model.save(tmp_path)
    again = DifferentiableKNeighborsClassifier.load(tmp_path, embedding=torch.nn.Linear(4, 3))
    assert np.array_equal(again.transform(X), model.transform(X))
    with pytest.raises(StorageError, match=r"embedding of your own.*embedding=\.\.\."):
        DifferentiableKNeighborsClassifier.load(tmp_path)
    others = torch.nn.Linear(4, 2), torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    for other in others:
        with pytest.raises(StorageError, match=r"not the network that was saved.*architecture"):
            DifferentiableKNeighborsClassifier.load(tmp_path, embedding=other)


def test_another_network_of_the_same_parameters_is_refused(tmp_path):
    layer = torch.nn.Linear(4, 3)
    classifier(embedding=torch.nn.Sequential(layer, torch.nn.ReLU())).fit(*IRIS).save(tmp_path)
    with pytest.raises(StorageError, match=r"first training point elsewhere"):
        DifferentiableKNeighborsClassifier.load(
            tmp_path, embedding=torch.nn.Sequential(layer, torch.nn.Tanh())
        )


def test_what_was_fitted_is_saved_whatever_the_parameters_say_now(tmp_path):
    X, y = IRIS
    model = classifier(epochs=1).fit(X, y).set_params(embedding=torch.nn.Linear(4, 3))
    model.save(tmp_path)
    again = DifferentiableKNeighborsClassifier.load(tmp_path)
    assert np.array_equal(again.transform(X), model.transform(X))


class Shorter(torch.nn.Module):
    """A network with nothing but a buffer, whose results have another precision."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype
        self.register_buffer("weight", torch.arange(8.0).view(4, 2) / 8)

    def forward(self, x):
        return (x @ self.weight).to(self.dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_any_precision_is_asked_in_any_other(tmp_path, dtype):
    X, y = IRIS
    model = classifier(embedding=Shorter(dtype), epochs=0).fit(X, y)
    model.save(tmp_path)
    again = DifferentiableKNeighborsClassifier.load(tmp_path, embedding=Shorter(dtype))
    assert np.array_equal(again.transform(X), model.transform(X))
    assert np.array_equal(again.predict(X.astype(np.float32)), model.predict(X.astype(np.float32)))


def test_a_folder_is_the_old_or_the_new_estimator(tmp_path, monkeypatch):
    """Killed between any two of its files, a save leaves what was there."""
    X, y = IRIS
    old, new = classifier(epochs=0).fit(X, y), classifier(epochs=1, n_neighbors=1).fit(X, y)
    old.save(tmp_path)
    whole = len(list(tmp_path.glob("[!.]*")))
    (tmp_path / f".{'0' * 16}-tensors.safetensors.draft").touch()  # somebody was killed
    write = storage_room.replace

    def dying_after(count):
        left = iter(range(count))

        def replace(path, content):
            if next(left, None) is None:
                raise KeyboardInterrupt
            write(path, content)

        return replace

    for count in range(whole):
        monkeypatch.setattr(storage_room, "replace", dying_after(count))
        with pytest.raises(KeyboardInterrupt):
            new.save(tmp_path)
        again = DifferentiableKNeighborsClassifier.load(tmp_path)
        assert np.array_equal(again.predict_proba(X), old.predict_proba(X))
    monkeypatch.setattr(storage_room, "replace", dying_after(whole))
    new.save(tmp_path)
    again = DifferentiableKNeighborsClassifier.load(tmp_path)
    assert np.array_equal(again.predict_proba(X), new.predict_proba(X))
    assert len(list(tmp_path.glob("[!.]*"))) == whole
    assert not list(tmp_path.glob(".*draft"))


def test_many_may_save_and_load_at_once(tmp_path):
    X, y = IRIS
    models = [classifier(epochs=0, n_neighbors=k).fit(X * k, y) for k in (1, 3)]
    known = [model.predict_proba(X).tolist() for model in models]
    models[0].save(tmp_path)

    def save(model):
        for _ in range(20):
            model.save(tmp_path)

    def load(_):
        for _ in range(20):
            again = DifferentiableKNeighborsClassifier.load(tmp_path)
            assert again.predict_proba(X).tolist() in known

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(save, model) for model in models]
        jobs += [pool.submit(load, None) for _ in range(2)]
        for job in jobs:
            job.result()


def test_an_estimator_moves_to_a_device_that_is_there(tmp_path):
    X, y = IRIS
    model = classifier(epochs=0).fit(X, y)
    model.set_params(device="nowhere").save(tmp_path)
    with pytest.raises(ValueError, match=r"device='nowhere' cannot be used here.*'cpu'.*`load`"):
        DifferentiableKNeighborsClassifier.load(tmp_path)
    again = DifferentiableKNeighborsClassifier.load(tmp_path, device="cpu")
    assert np.array_equal(again.predict_proba(X), model.set_params(device="cpu").predict_proba(X))


@NEEDS_FAISS
def test_an_index_of_other_points_is_refused(tmp_path, monkeypatch):
    X, y = IRIS
    other = classifier(epochs=0, index="faiss").fit(X[::2], y[::2])
    content = other._index.engine.to_bytes()
    monkeypatch.setattr(engines.FaissEngine, "to_bytes", lambda self: content)
    classifier(epochs=0, index="faiss").fit(X, y).save(tmp_path)
    with pytest.raises(StorageError, match=r"points \(150, 4\), of which \(75, 4\) are indexed"):
        DifferentiableKNeighborsClassifier.load(tmp_path)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "model").write_text("mine")
    with pytest.raises(StorageError, match="is a file"):
        classifier(epochs=0).fit(*IRIS).save(tmp_path / "model")
    assert (tmp_path / "model").read_text() == "mine"


def test_only_fitted_estimators_are_saved(tmp_path):
    with pytest.raises(NotFittedError):
        classifier().save(tmp_path)


CHANGES = {
    "no classes": {"classes": None},
    "no history": {"history": None, "input_shape": None},
    "no files": {"files": {}},
    "files in a list": {"files": [1]},
    "another dtype": {"dtype": "object"},
    "a function for a dtype": {"dtype": "load"},
    "an unknown parameter": {"parameters": {"index": "torch", "metric": "cosine"}},
    "no parameters": {"parameters": 3},
    "no shape": {"input_shape": []},
    "a negative shape": {"input_shape": [-1]},
    "a huge shape": {"input_shape": [2_000_000_000]},
    "a shape of another kind": {"input_shape": ["4"]},
    "another precision": {"dtype": "float32"},
    "history of words": {"history": [{"loss": "low"}]},
    "too few names": {"feature_names_in": ["a"]},
    "names that are none": {"feature_names_in": [1, 2, 3, 4]},
    "no such number of neighbours": {"parameters": {"index": "torch", "n_neighbors": -3}},
    "no such optimiser": {"parameters": {"index": "torch", "optimizer": "magic"}},
}


def sign(facts, changes):
    """Changes facts, with a digest that says they are whole: of somebody who knows how."""
    said = json.loads(facts.read_text()) | changes
    facts.write_text(json.dumps(said | {"digest": storage_room.digest_of(said)}))


def damage(folder, kind):
    facts, (tensors,) = folder / "estimator.json", folder.glob("*-tensors.safetensors")
    if kind == "empty":
        for path in folder.iterdir():
            path.unlink()
    elif kind == "facts cut":
        facts.write_text(facts.read_text()[:50])
    elif kind == "tensors cut":
        tensors.write_bytes(tensors.read_bytes()[:-10])
    elif kind == "tensors gone":
        tensors.unlink()
    elif kind == "foreign":
        facts.write_text(json.dumps({"model": "something else"}))
    elif kind in CHANGES:
        sign(facts, CHANGES[kind])
    elif kind == "not a mapping":
        facts.write_text("[1, 2]")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("empty", r"no saved estimator.*estimator\.json"),
        ("facts cut", r"estimator\.json is damaged"),
        ("tensors cut", r"tensors\.safetensors is missing, truncated"),
        ("tensors gone", r"tensors\.safetensors is missing, truncated"),
        ("foreign", r"not in the format.*got None"),
        *((kind, r"estimator\.json is damaged, or of another version") for kind in CHANGES),
        ("not a mapping", r"not in the format.*got 'list'"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, kind, message):
    classifier(epochs=0).fit(*IRIS).save(tmp_path)
    damage(tmp_path, kind)
    with pytest.raises(StorageError, match=message):
        DifferentiableKNeighborsClassifier.load(tmp_path)


def test_facts_that_do_not_fit_their_digest_are_refused(tmp_path):
    classifier(epochs=0).fit(IRIS[0], IRIS[1].astype(str)).save(tmp_path)
    facts = tmp_path / "estimator.json"
    facts.write_text(facts.read_text().replace('"2"', '"3"'))
    with pytest.raises(StorageError, match=r"estimator\.json is damaged.*digest.*save again"):
        DifferentiableKNeighborsClassifier.load(tmp_path)


@pytest.mark.parametrize("classes", [["a", "a", "b"], [["a"], ["b"], ["c"]], ["a"]])
def test_classes_must_be_those_of_the_targets(tmp_path, classes):
    classifier(epochs=0).fit(*IRIS).save(tmp_path)
    sign(tmp_path / "estimator.json", {"classes": {"dtype": "<U1", "values": classes}})
    with pytest.raises(StorageError, match=r"distinct classes|targets of no class"):
        DifferentiableKNeighborsClassifier.load(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"one_output": 3}, {"scale": {"dtype": "float64", "values": [1.0, 2.0]}}]
)
def test_facts_of_a_regressor_must_be_those_of_its_targets(tmp_path, changes):
    regressor(epochs=0).fit(*DIABETES).save(tmp_path)
    sign(tmp_path / "estimator.json", changes)
    with pytest.raises(StorageError, match=r"`scale` must be one number.*`one_output` true or"):
        DifferentiableKNeighborsRegressor.load(tmp_path)


def test_sizes_are_checked_before_anything_is_allocated(tmp_path):
    """A network of 20,000 features would take 3 GB."""
    classifier(epochs=0).fit(*IRIS).save(tmp_path)
    sign(tmp_path / "estimator.json", {"input_shape": [20_000]})
    tracemalloc.start()
    with pytest.raises(StorageError, match=r"points of shape \(20000,\).*has \(4,\)"):
        DifferentiableKNeighborsClassifier.load(tmp_path)
    largest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StorageError):
        DifferentiableKNeighborsClassifier.load(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kilobytes
    assert largest < 10**8


def test_a_folder_that_holds_the_folder_says_so(tmp_path):
    classifier(epochs=0).fit(*IRIS).save(tmp_path / "model")
    with pytest.raises(StorageError, match=r"no saved estimator.*such as .*model"):
        DifferentiableKNeighborsClassifier.load(tmp_path)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "estimator.json").mkdir()
    with pytest.raises(StorageError, match=r"estimator\.json is a folder.*file was expected"):
        DifferentiableKNeighborsClassifier.load(tmp_path)
    classifier(epochs=0).fit(*IRIS).save(tmp_path / "model")
    (tensors,) = (tmp_path / "model").glob("*-tensors.safetensors")
    tensors.unlink()
    tensors.mkdir()
    with pytest.raises(StorageError, match=r"tensors\.safetensors is missing, truncated"):
        DifferentiableKNeighborsClassifier.load(tmp_path / "model")


def test_no_flipped_bit_loads_as_another_estimator(tmp_path):
    """1,000 of them, over every file of a classifier and a regressor."""
    X, y = IRIS
    models = {
        "classifier": classifier(epochs=1, weights="distance").fit(X, y.astype(str)),
        "regressor": regressor(epochs=1).fit(X, X[:, 0]),
    }
    rng, outcomes = np.random.default_rng(0), {"refused": 0, "harmless": 0}
    for name, model in models.items():
        model.save(tmp_path / name)
    files = [path for name in models for path in sorted((tmp_path / name).glob("[!.]*"))]
    answers = {name: model.predict(X) for name, model in models.items()}
    for i in range(1000):
        path = files[i % len(files)]
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(flipped)
        model = models[path.parent.name]
        try:
            again = type(model).load(path.parent)
        except StorageError:
            outcomes["refused"] += 1
        else:
            outcomes["harmless"] += 1
            assert again.get_params() == model.get_params()
            assert again.history_ == model.history_
            assert np.array_equal(again.predict(X), answers[path.parent.name])
        path.write_bytes(whole)
    assert outcomes["refused"] > 900  # only how facts are written down may change


def test_the_other_estimator_is_refused(tmp_path):
    classifier(epochs=0).fit(*IRIS).save(tmp_path)
    with pytest.raises(StorageError, match=r"holds a DifferentiableKNeighborsClassifier"):
        DifferentiableKNeighborsRegressor.load(tmp_path)
    with pytest.raises(StorageError, match=r"default embedding\. Load it without"):
        DifferentiableKNeighborsClassifier.load(tmp_path, embedding=torch.nn.Identity())
