"""Nearest neighbours by every engine: the same answers, awkward points, options, messages."""

import builtins
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs the extra `neighbors`")
pytest.importorskip("safetensors", reason="needs the extra `neighbors`")

from neuralsort.neighbors import Index, engines
from neuralsort.neighbors.voting import shares
from tests.estimators import EXACT, IRIS, NEEDS_FAISS, classifier


def points(n=500, d=20, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_exact_engines_give_the_same_answers(kind, dtype, monkeypatch):
    monkeypatch.setattr(engines, "LARGEST", 2**12)  # several blocks
    known, asked = points(dtype=dtype), points(60, seed=1, dtype=dtype)
    gaps = np.sqrt(((asked[:, None] - known) ** 2).sum(-1))
    distances, indices = Index(known, kind=kind).query(asked, 7)
    assert np.array_equal(indices, gaps.argsort(1, kind="stable")[:, :7])
    assert distances.dtype == dtype
    np.testing.assert_allclose(distances, np.sort(gaps, 1)[:, :7], rtol=1e-5)


@pytest.mark.parametrize("kind", EXACT)
def test_a_common_offset_does_not_change_neighbours(kind):
    """In float32 the usual formula would see nothing but rounding here."""
    known, asked = points(), points(30, seed=1)
    expected = Index(known, kind="torch").query(asked, 5)[1]
    assert np.array_equal(Index(known + 1e4, kind=kind).query(asked + 1e4, 5)[1], expected)


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("copies", [3, 40])
def test_equal_distances_come_in_the_order_of_the_points(kind, copies):
    """Also where more points are equally near than an engine proposes at first."""
    known = np.tile(points(20), (copies, 1))
    indices = Index(known, kind=kind).query(known[:20], 3)[1]
    assert np.array_equal(indices, np.arange(20)[:, None] + 20 * np.arange(3))


def clusters(apart, n=600, d=20):
    generator = np.random.default_rng(0)
    return generator.normal(size=(n, d)) + apart * generator.choice([-1.0, 1.0], (n, 1))


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize(
    "known",
    [
        pytest.param(clusters(1e4), id="far apart"),
        pytest.param(np.append(clusters(0.0), np.full((1, 20), 1e8), 0), id="an outlier"),
        pytest.param(clusters(1.0) * 1e150, id="huge"),
        pytest.param(clusters(1.0) * 1e-150, id="tiny"),
        pytest.param((clusters(1.0) * 1e20).astype(np.float32), id="huge for float32"),
        pytest.param((np.round(clusters(0.0, d=2)) - 0.1) / 0.7, id="discrete"),
        pytest.param(np.zeros((600, 3)), id="all the same"),
    ],
)
def test_exact_engines_are_exact_for_awkward_points(kind, known):
    asked = known[::7]
    gaps = (asked[:, None] - known) / np.abs(known).max(initial=1e-300)
    expected = np.einsum("qnd,qnd->qn", gaps, gaps).argsort(1, kind="stable")[:, :5]
    found = Index(known, kind=kind).query(asked, 5)[1]
    far = (
        np.take_along_axis(gaps, expected[..., None], 1),
        np.take_along_axis(gaps, found[..., None], 1),
    )
    np.testing.assert_allclose(*(np.linalg.norm(one, axis=-1) for one in far), rtol=1e-6)
    assert np.array_equal(found, Index(known, kind="torch").query(asked, 5)[1])


@pytest.mark.parametrize(
    ("points", "queries", "k"),
    [
        (points(9, 2), np.full((1, 2), np.nan), 1),
        (points(9, 2), points(1, 3), 1),
        (points(9, 2), points(1, 2), 10),
        (points(9, 2), points(1, 2), 0),
        (points(9, 2)[0], points(1, 2), 1),
        (np.full((3, 2), np.inf), points(1, 2), 1),
        (np.array([["a", "b"]]), points(1, 2), 1),
    ],
)
def test_an_index_checks_what_it_is_given(points, queries, k):
    with pytest.raises(ValueError, match="Expected"):
        Index(points).query(queries, k)


def test_whole_numbers_are_numbers():
    found = Index(np.arange(20).reshape(10, 2)).query(np.array([[1, 1]]), 1)
    assert found[0].tolist() == [[1.0]]


@NEEDS_FAISS
@pytest.mark.parametrize(
    ("factory", "search"), [("IVF8,Flat", "nprobe=8"), ("HNSW16", "efSearch=200")]
)
def test_approximate_indices_find_nearly_everything(factory, search):
    known, asked = points(), points(60, seed=1)
    exact = Index(known, kind="torch").query(asked, 5)[1]
    found = Index(known, kind="faiss", factory=factory, search=search).query(asked, 5)[1]
    assert (found == exact).mean() > 0.95


@NEEDS_FAISS
def test_an_index_that_looks_at_too_little_is_helped():
    known, asked = points(), points(60, seed=1)
    index = Index(known, kind="faiss", factory="IVF100,Flat", search="nprobe=1")
    assert (index.engine.propose(asked.astype(np.float32), 40) < 0).any(1).all()
    assert np.array_equal(index.query(asked, 40)[1], Index(known, kind="torch").query(asked, 40)[1])


@NEEDS_FAISS
@pytest.mark.parametrize(
    ("factory", "search", "message"),
    [
        ("Nonsense", "", r"does not understand index_factory='Nonsense' for 4 features.*Flat"),
        ("Flat", "nprobe=4", r"'Flat' does not take index_search='nprobe=4'.*nprobe.*nothing"),
        ("IVF4,Flat", "nprob=4", r"does not take index_search='nprob=4'"),
    ],
)
def test_faiss_says_what_it_does_not_know_before_training(factory, search, message):
    model = classifier(index="faiss", index_factory=factory, index_search=search, epochs=10**9)
    with pytest.raises(ValueError, match=message) as found:
        model.fit(*IRIS)
    assert "/faiss/" not in str(found.value)  # where in its source


@NEEDS_FAISS
def test_faiss_says_what_it_cannot_build():
    with pytest.raises(ValueError, match=r"could not build 'IVF999,Flat' of 500 points.*Flat"):
        Index(points(), kind="faiss", factory="IVF999,Flat")


@pytest.mark.parametrize("kind", ["torch", "sklearn"])
def test_options_of_faiss_are_its_own(kind):
    with pytest.raises(ValueError, match=r"takes no index_factory.*'HNSW32'.*index=\"faiss\""):
        classifier(index=kind, index_factory="HNSW32").fit(*IRIS)


def test_without_faiss(monkeypatch):
    original = builtins.__import__

    def missing(name, *arguments, **options):
        if name == "faiss":
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert isinstance(Index(points()).engine, engines.TorchEngine)
    with pytest.raises(ImportError, match=r"pip install faiss-cpu.*torch"):
        Index(points(), kind="faiss")


def test_unknown_engines_are_refused():
    with pytest.raises(ValueError, match="auto, faiss, sklearn, torch"):
        Index(points(), kind="annoy")


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("away", [1e4, 1e10, 1e20, 3e38])
def test_queries_far_from_all_points_have_their_exact_neighbours(kind, dtype, away):
    """Squares overflow and differences round; which points are nearest does neither."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(40, 3)).astype(dtype)
    queries = (away * np.array([[1, 0, 0], [0, -1, 0], [0.5, 0.5, -0.5]])).astype(dtype)
    distances, indices = Index(points, kind=kind).query(queries, 5)
    for query, near, found in zip(queries, distances, indices, strict=True):
        gaps = [
            [Fraction(float(p)) - Fraction(float(q)) for p, q in zip(point, query, strict=True)]
            for point in points
        ]
        exact = [sum(gap**2 for gap in row) for row in gaps]
        assert found.tolist() == sorted(range(40), key=exact.__getitem__)[:5]
        with np.errstate(over="ignore"):
            length = np.linalg.norm(query.astype(np.float64)).astype(dtype)
        np.testing.assert_allclose(near, length, rtol=1e-3)


def test_what_an_engine_does_not_find_is_no_neighbour(monkeypatch):
    points = np.random.default_rng(0).normal(size=(40, 3))
    index = Index(points, kind="torch")
    expected = index.query(points[:4], 5)
    nothing = lambda queries, count: np.full((len(queries), count), -1)  # noqa: E731
    monkeypatch.setattr(index.engine, "propose", nothing)
    for found, wanted in zip(index.query(points[:4], 5), expected, strict=True):
        assert np.array_equal(found, wanted)


def test_votes_of_neighbours_that_are_all_infinitely_far_are_equal():
    far = np.array([[np.inf, np.inf], [3.0, np.inf], [0.0, 1.0], [1.0, 3.0]])
    np.testing.assert_allclose(
        shares(far, "distance"), [[0.5, 0.5], [1.0, 0.0], [1.0, 0.0], [0.75, 0.25]]
    )


@pytest.mark.parametrize("kind", EXACT)
def test_far_queries_have_probabilities(kind):
    X, y = IRIS[0].astype(np.float32), IRIS[1]
    model = classifier(epochs=0, index=kind, weights="distance").fit(X, y)
    found = model.predict_proba(np.array([[1e20] * 4, [-1e20] * 4], np.float32))
    np.testing.assert_allclose(found.sum(1), 1)
    assert (model.predict(np.array([[1e20] * 4], np.float32)) == 2).all()  # the largest flowers
