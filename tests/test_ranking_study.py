"""The ranking study: its data format, its folds, and a short run of every method."""

import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning_fabric", reason="needs the extra 'experiments'")

from neuralsort.experiments import record
from neuralsort.experiments.data import letor
from neuralsort.experiments.data.downloads import DataError
from neuralsort.experiments.studies import ranking
from neuralsort.experiments.studies.ranking import RankConfig, RankStudy
from neuralsort.experiments.studies.running import evaluate, run
from neuralsort.experiments.training.plan import ConfigError
from tests.portions import some_of

ROOT = Path(__file__).parents[1]


def write_part(path: Path, part: int, queries: int = 20) -> None:
    """Documents whose first feature, but for noise, is their relevance."""
    generator = torch.Generator().manual_seed(part)
    lines = []
    for query in range(queries):
        for _ in range(int(torch.randint(6, 15, (), generator=generator))):
            relevance = int(torch.randint(0, 3, (), generator=generator))
            values = torch.rand(letor.FEATURES, generator=generator)
            values[0] += 2 * relevance
            columns = " ".join(f"{i + 1}:{value:.6f}" for i, value in enumerate(values.tolist()))
            lines.append(f"{relevance} qid:{part}{query:02d} {columns} #docid = X inc = 1")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    place = tmp_path_factory.mktemp("letor")
    (place / "MQ2008").mkdir()
    for part in range(1, 6):
        write_part(place / "MQ2008" / f"S{part}.txt", part)
    return place


@pytest.fixture
def folder(parts, tmp_path, monkeypatch):
    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    (tmp_path / "letor").symlink_to(parts)
    return tmp_path


def config(folder: Path, **options) -> RankConfig:
    places = {"data_dir": folder, "results": folder / "results", "run": folder / "run"}
    return RankConfig(**places | options)


# -- data ------------------------------------------------------------------------------------------


def test_folds_turn_through_the_five_parts():
    """As the data's own readme says."""
    assert letor.parts_of_fold(1) == ((1, 2, 3), 4, 5)
    assert letor.parts_of_fold(2) == ((2, 3, 4), 5, 1)
    assert letor.parts_of_fold(3) == ((3, 4, 5), 1, 2)
    assert letor.parts_of_fold(5) == ((5, 1, 2), 3, 4)
    assert sorted(letor.parts_of_fold(fold)[2] for fold in range(1, 6)) == [1, 2, 3, 4, 5]


def test_lines_become_padded_queries(tmp_path):
    path = tmp_path / "part.txt"
    path.write_text(
        "2 qid:7 1:0.5 2:1.0 #docid = A\n0 qid:7 1:0.25 2:0.0 #docid = B\n1 qid:9 1:1.0 2:0.5\n"
    )
    queries = letor.Queries.padded(list(letor.read_letor(path)))
    assert queries.relevance.tolist() == [[2, 0], [1, 0]]
    assert queries.mask.tolist() == [[True, True], [True, False]]
    assert queries.features[0].tolist() == [[0.5, 1.0], [0.25, 0.0]]
    assert queries[torch.tensor([1])].features.tolist() == [[[1.0, 0.5]]]


def test_features_are_standardised_by_the_training_documents(folder):
    train, validation, test = letor.load_fold(1, folder).values()
    documents = train.features[train.mask]
    torch.testing.assert_close(documents.mean(0), torch.zeros(letor.FEATURES), atol=1e-5, rtol=0)
    torch.testing.assert_close(documents.std(0), torch.ones(letor.FEATURES), atol=1e-4, rtol=0)
    assert validation.features[validation.mask].mean(0).abs().max() > 1e-3
    assert len(test) == 20


def test_missing_data_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    with pytest.raises(DataError, match=r"MQ2008 is missing.*letor.MQ2008.*NEURALSORT_DATA"):
        letor.load_fold(1, tmp_path)


def test_files_in_another_format_are_refused(tmp_path):
    path = tmp_path / "part.txt"
    path.write_text("relevance,query\n2,7\n")
    with pytest.raises(DataError, match=r"part\.txt is not in LETOR's format"):
        list(letor.read_letor(path))


@pytest.mark.parametrize("fold", [0, 6])
def test_folds_that_cannot_be(fold):
    with pytest.raises(ConfigError, match=rf"--fold must be .*{fold}"):
        RankConfig(fold=fold)


# -- runs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "steps"),
    some_of(
        [(method, steps) for method in ranking.METHODS for steps in (40, 150)],
        *(("neural_ndcg", 40), ("permutation_cross_entropy", 40), ("plackett_luce_nll", 40)),
        *(("spearman_loss", 40), ("lambda_loss", 40), ("knn_loss", 40), ("lambdamart", 40)),
    ),
)
def test_every_method_learns_an_easy_ranking(method, steps, folder):
    if method == "lambdamart":
        pytest.importorskip("lightgbm", reason="needs LightGBM, of the extra 'experiments'")
    line = run(RankStudy(), config(folder, method=method, tau=(1.0,), steps=steps, batch=8))
    test = letor.load_fold(1, folder)["test"]
    random = ranking.measure(torch.zeros(test.mask.shape), test)
    assert line.metrics["ndcg@10"] > random["ndcg@10"].mean() + 0.1
    assert record.read(folder / "results") == [line]
    assert (line.study, line.data, line.sizes) == ("rank", "mq2008", {"fold": 1})
    names = {"ndcg@5", "ndcg@10", "mrr", "map", "precision@5", "recall@10"}
    assert set(line.metrics) == set(line.intervals) == names
    low, high = line.intervals["ndcg@10"]
    assert low <= line.metrics["ndcg@10"] <= high
    assert line.intervals_over == "queries"
    options = config(folder)
    (again,) = evaluate(RankStudy(), options, folder / "run")
    assert again.metrics == line.metrics


def test_double_precision_trains_and_tests(folder):
    options = config(folder, tau=(1.0,), steps=2, batch=8, precision="64-true")
    line = run(RankStudy(), options)
    (again,) = evaluate(RankStudy(), config(folder), folder / "run")
    assert again.metrics == line.metrics


def test_trees_that_were_kept_are_the_ones_that_are_tested(folder):
    pytest.importorskip("lightgbm", reason="needs LightGBM, of the extra 'experiments'")
    splits = letor.load_fold(1, folder)
    kept, grown = (
        ranking.LambdaMART(0, splits[name], splits["validation"]) for name in ("train", "test")
    )
    before = grown.scores(splits["test"])
    grown.load_state_dict(kept.state_dict())
    assert torch.equal(grown.scores(splits["test"]), kept.scores(splits["test"]))
    assert not torch.equal(grown.scores(splits["test"]), before)


def test_the_same_options_give_the_same_numbers(folder):
    options = {"method": "ranknet_loss", "tau": (1.0,), "steps": 12}
    lines = [
        run(RankStudy(), config(folder, seed=seed, run=folder / name, **options))
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert lines[0].metrics == lines[1].metrics
    assert lines[0].validation["loss"] != lines[2].validation["loss"]


def test_an_epoch_sees_every_query_that_teaches_something(folder):
    splits = letor.load_fold(1, folder)
    task = ranking.RankTask(torch.nn.Identity(), RankConfig(), splits, 16)
    steps = -(-len(task.usable) // 16)
    seen = torch.cat([task.batch(step, slice(None))[3].sum(-1) for step in range(steps)])
    expected = splits["train"].mask[task.usable].sum(-1)
    assert torch.equal(seen.sort().values, expected.sort().values)
    features, relevance, order, mask = task.batch(0, slice(None))
    ordered = relevance.masked_fill(~mask, -1).gather(-1, order)
    assert (ordered.diff(dim=-1) <= 0).all()


def test_processes_without_a_query_repeat_one(folder):
    task = ranking.RankTask(torch.nn.Identity(), RankConfig(), letor.load_fold(1, folder), 16)
    whole, other = (task.batch(0, part) for part in (slice(0, 1), slice(16, None, 17)))
    assert all(torch.equal(a, b) for a, b in zip(whole, other, strict=True))


def test_the_temperature_is_chosen_on_validation(folder):
    line = run(RankStudy(), config(folder, tau=(1e3, 1.0), steps=20))
    best = {t["tau"]: max(h["ndcg@10"] for h in t["history"]) for t in line.trials}
    assert best[line.tau] == max(best.values()) == line.validation["ndcg@10"]


# -- the published lines ---------------------------------------------------------------------------


def test_the_best_loss_keeps_up_with_lambdamart():
    """Of the published lines: mean NDCG@10 over the five folds, at most 0.01 below."""
    lines = [line for line in record.read(ROOT / "results") if line.study == "rank"]
    folds = {(line.method, line.sizes["fold"]): line.metrics["ndcg@10"] for line in lines}
    means = {m: sum(folds[m, fold] for fold in range(1, 6)) / 5 for m in ranking.METHODS}
    anchor = means.pop("lambdamart")
    assert max(means.values()) >= anchor - 0.01


@pytest.mark.skipif("NEURALSORT_DATA" not in os.environ, reason="NEURALSORT_DATA is not set")
def test_the_real_folds_have_the_sizes_the_authors_give():
    sizes = [tuple(map(len, letor.load_fold(fold).values())) for fold in range(1, 6)]
    assert sum(test for _, _, test in sizes) == 784
    assert all(train + validation + test == 784 for train, validation, test in sizes)
