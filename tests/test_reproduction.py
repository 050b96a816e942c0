"""The queue of runs behind the report: which, in what order, and what may happen to it."""

import multiprocessing
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("lightning_fabric", reason="needs the extra `experiments`")

from neuralsort.experiments import record
from neuralsort.experiments.networks.orderings import WITHOUT_TAU
from neuralsort.experiments.reporting import paper
from neuralsort.experiments.reproduction.cells import (
    Cell,
    cells,
    in_order,
    placed,
    run_cell,
    unpublished,
)
from neuralsort.experiments.reproduction.command import reproduce
from neuralsort.experiments.reproduction.processes import Processes
from neuralsort.experiments.reproduction.queue import Queue, Unfinished
from neuralsort.experiments.studies.knn import KNNConfig, KNNStudy
from neuralsort.experiments.studies.running import MODEL, evaluate, finished, run
from neuralsort.experiments.studies.sorting import SortConfig, SortStudy
from neuralsort.runtime import files
from tests.portions import some_of

TINY = {"n": 3, "places": 2, "batch": 4, "test_lists": 20, "validation_lists": 8, "steps": 3}


def tiny(folder: Path, *, method: str = "neuralsort", seed: int = 0) -> Cell:
    """A run, and the short ones that choose its temperature."""
    places = {"results": folder / "results", "method": method}
    config = SortConfig(**TINY, **places, seed=seed, run=folder / f"{method}-{seed}")
    short = replace(config, seed=0, steps=1, tau=(0.5, 2.0), run=folder / f"{method}-short")
    return Cell("sort", config, Cell("sort", short))


# -- which runs ------------------------------------------------------------------------------------


def test_every_cell_of_the_papers_tables_is_there_three_times_with_equal_budgets():
    queue = in_order(list(cells("mnist")))
    assert len({cell.folder for cell in queue}) == len(queue)
    long = [cell for cell in queue if cell.config.steps == 3_000]
    found = {(c.study, c.config.method, c.config.n, c.config.seed) for c in long}
    for study, lengths, methods in (
        ("sort", paper.SORT_LENGTHS, paper.EXACT_MATCH),
        ("median", paper.MEDIAN_LENGTHS, paper.MSE_TEN_THOUSANDS),
    ):
        for method in methods:
            seeds = range(1 if method == "constant" else 3)
            wanted = {(study, method, n, seed) for n in lengths for seed in seeds}
            assert wanted <= found
    assert {cell.config.overlap for cell in long} == {None}  # the recipe's, for every method


def test_every_method_chooses_from_the_same_temperatures_in_runs_as_short():
    queue = [cell for cell in cells("mnist") if cell.config.steps == 3_000]
    choosers = [cell.chooser for cell in queue if cell.config.method not in WITHOUT_TAU]
    assert {(one.config.tau, one.config.steps) for one in choosers} == {
        ((0.125, 0.5, 2.0, 8.0), 600)
    }
    assert {one.config.seed for one in choosers} == {0}
    assert all(cell.chooser is None for cell in queue if cell.config.method in WITHOUT_TAU)
    places = {cell.folder: i for i, cell in enumerate(in_order(queue))}
    for cell in queue:
        if cell.chooser:
            assert places[cell.chooser.folder] < places[cell.folder]


def test_the_most_telling_runs_come_first():
    """One seed of every cell of the tables, before there is a second of any."""
    lists = [cell for cell in cells("mnist") if cell.config.steps == 3_000]
    assert (lists[0].study, lists[0].config.method, lists[0].config.n) == ("sort", "neuralsort", 5)
    seeds = [cell.config.seed for cell in lists if cell.config.method in paper.MSE_TEN_THOUSANDS]
    assert seeds == sorted(seeds)
    first = lists[: seeds.count(0)]
    assert len({(cell.study, cell.config.method, cell.config.n) for cell in first}) == 25 + 18


def test_neighbours_have_three_seeds_and_every_k_where_that_takes_minutes():
    for data, seeds, ks in (("mnist", 3, {1, 3, 5, 9}), ("cifar10", 1, {9})):
        queue = [cell.config for cell in cells(data) if cell.study == "knn"]
        for method in paper.KNN_ACCURACY:
            runs = [config for config in queue if config.method == method]
            trained = method not in ("pixels", "pca")
            assert {config.seed for config in runs} == set(range(seeds if trained else 1))
            assert {config.k for config in runs} == (ks if "neuralsort" in method else {9})
            kinds = {(config.seed, config.k) for config in runs}
            apart = {(one.seed, one.k) for one in runs if (one.scale, one.tau) == (4.0, (16.0,))}
            assert apart == (kinds if method == "stochastic_neuralsort" else set())
            assert {(one.seed, one.k) for one in runs if (one.scale, one.tau) == (1.0, ())} == kinds
        assert len(set(queue)) == len(queue)


def test_the_tuned_recipe_has_the_papers_network_and_every_method():
    queue = list(cells("mnist", "tuned"))
    by_item = [cell.config for cell in queue if cell.config.method == "sinkhorn_by_item"]
    assert [(one.n, one.seed, one.steps) for one in by_item] == [(5, 0, 10_000)]
    others = [cell for cell in queue if cell.config not in by_item]
    assert {cell.config.method for cell in others} == set(paper.EXACT_MATCH)
    assert {cell.config.n for cell in others} == set(paper.SORT_LENGTHS)
    equal = [cell for cell in others if cell.config.steps == 10_000]
    assert len(equal) == 3 * len(paper.EXACT_MATCH) * len(paper.SORT_LENGTHS)
    longer = [cell.config for cell in others if cell not in equal]
    assert len({one.steps for one in longer} | {10_000}) == 2  # what tells them apart in reports
    assert {(one.method, one.seed, one.steps) for one in longer} == {("neuralsort", 0, 12_000)}
    assert [one.n for one in longer] == [5, 9, 15, 3, 7]
    assert all(60 <= one.n * one.batch <= 90 for one in longer)
    choosing = {cell.config.method for cell in queue if cell.chooser}
    # NeuralSort's are those of the recipe.
    assert choosing == {"sinkhorn", "sinkhorn_by_item", "gumbel_sinkhorn"}
    study = SortStudy()
    for n, tau in ((3, 1024.0), (7, 1024.0), (9, 128.0), (15, 128.0)):
        config = SortConfig(recipe="tuned", n=n)
        assert study.taus(config) == (tau,)
        assert 20 <= n * study.plan(config).batch <= 30  # about as many images a step
        ours = replace(study.plan(SortConfig(n=n)), optimizer="adam", weight_decay=0.0)
        same = dict(batch=ours.batch, steps=ours.steps, validate_every=ours.validate_every)
        assert replace(study.plan(config), **same) == ours
        assert study.facts(config)["network"] == "PaperNetwork"
        assert config.jittered_places == 0


def test_cells_travel(tmp_path):
    cell = placed(next(cells("digits")), tmp_path, tmp_path, None, None)
    assert pickle.loads(pickle.dumps(cell)) == cell


def test_limits_keep_budgets_equal(tmp_path):
    some = [placed(one, tmp_path, tmp_path, None, 50) for one in cells("mnist")]
    lists = [cell.config for cell in some if cell.study == "sort" and not cell.config.tau]
    assert {config.steps for config in lists} == {50}
    assert {cell.chooser.config.steps for cell in some if cell.chooser} == {10}
    assert {cell.config.steps for cell in some if cell.study == "knn" and cell.images} == {50}


@pytest.mark.parametrize("data", ["digits", "cifar10"])
def test_limits_lengthen_nothing(tmp_path, data):
    for limit in (10**6, 50):
        for cell in cells(data):
            assert placed(cell, tmp_path, tmp_path, None, limit).images <= cell.images
    wide = [placed(cell, tmp_path, tmp_path, None, 10**6).config for cell in cells(data)]
    assert [one.steps for one in wide] == [cell.config.steps for cell in cells(data)]


# -- doing them ------------------------------------------------------------------------------------


def test_a_run_takes_the_temperature_that_short_runs_chose(tmp_path):
    cell = tiny(tmp_path)
    assert not cell.is_ready
    chosen = run_cell(cell.chooser)
    assert cell.is_ready
    line = run_cell(cell)
    assert line.tau == chosen.tau
    assert line.config["taus"] == [chosen.tau]
    (kept,) = (tmp_path / "results" / "weights").iterdir()
    assert kept.stat().st_size < 2_000_000
    (again,) = evaluate(SortStudy(), SortConfig(results=tmp_path / "again"), kept)
    assert again.metrics == line.metrics


def test_a_queue_does_every_run_once_and_goes_on(tmp_path, capfd):
    queue = in_order([tiny(tmp_path, seed=seed) for seed in (0, 1)])
    Queue(queue[:2]).run()
    Queue(queue).run()
    said = capfd.readouterr().out
    assert "3 runs to do, 0 done" not in said
    assert "1 runs to do, 2 done before." in said
    assert "done  neuralsort-1  (0 runs left, about 0 minutes)" in said
    lines = record.read(tmp_path / "results")
    assert [(line.seed, len(line.config["taus"])) for line in lines] == [(0, 2), (0, 1), (1, 1)]


def test_a_run_whose_line_is_there_is_done_wherever_it_was(tmp_path):
    """Its folder may be on another machine; a line of another run is no line of this one."""
    short, whole, other = in_order([tiny(tmp_path, seed=seed) for seed in (0, 1)])
    Queue([short]).run()
    lines = record.read(tmp_path / "results")
    left = unpublished([short, whole, other], lines)
    assert [cell.folder for cell in left] == [whole.folder, other.folder]
    assert all(cell.config.tau == (lines[0].tau,) and not cell.chooser for cell in left)
    shutil.rmtree(short.folder)  # the line alone says which temperature was chosen
    Queue(left[:1]).run()
    Queue([whole]).run()  # which knows its temperature, though the short runs are not here
    lines = record.read(tmp_path / "results")
    assert len(lines) == 2
    assert [cell.folder for cell in unpublished([short, whole, other], lines)] == [other.folder]
    for change in ({"steps": 2}, {"n": 4}, {"test_lists": 7}, {"overlap": 2}):
        changed = Cell("sort", replace(left[0].config, **change))
        assert unpublished([changed], lines) == [changed]
    again = [replace(line, tested={"date": "later"}) for line in lines]
    assert len(unpublished([short, whole], again)) == 2
    elsewhere = [replace(line, config=line.config | {"network": "another"}) for line in lines]
    assert len(unpublished([short, whole], elsewhere)) == 2
    strange = [replace(line, config=line.config | {"plan": {"pace": 1}}) for line in lines]
    assert len(unpublished([short, whole], strange)) == 2
    runs = [line for line in lines if len(line.config["taus"]) == 1]  # that of the choice is lost
    assert [cell.folder for cell in unpublished([short, whole, other], runs)] == [
        short.folder,
        other.folder,
    ]
    early = [replace(line, digests={}) for line in lines]  # of whose data nothing is known
    assert len(unpublished([short, whole], early)) == 2
    (choice,) = [line for line in lines if len(line.config["taus"]) > 1]
    later = replace(choice, tau=3.0)
    assert unpublished([other], [*lines, later])[0].config.tau == (3.0,)


def test_parameters_that_were_not_kept_in_time_are_kept_later(tmp_path):
    """The process was killed between the line and the copy."""
    queue = in_order([tiny(tmp_path)])
    Queue(queue).run()
    lines = record.read(tmp_path / "results")
    assert unpublished(queue, lines) == []
    (kept,) = (tmp_path / "results" / "weights").iterdir()
    kept.unlink()
    left = unpublished(queue, lines)
    assert [cell.folder for cell in left] == [queue[1].folder]
    Queue(left).run()
    assert kept.exists()
    assert record.read(tmp_path / "results") == lines


def test_a_folder_with_another_run_is_told_and_does_not_stop_the_queue(tmp_path, capfd):
    first, other = some_runs(tmp_path, 2)
    few = replace(first, config=replace(first.config, steps=1))
    Queue([few]).run()
    with pytest.raises(Unfinished, match="1 runs did not finish: 0"):
        Queue([first, replace(other, config=replace(other.config, steps=1))]).run()
    assert "holds another run: plan.steps is 1 there and 120 here" in capfd.readouterr().err
    assert other.is_done


def test_a_folder_in_use_is_told_and_does_not_stop_the_queue(tmp_path, capfd):
    first, other = some_runs(tmp_path, 2)
    quick = replace(other, config=replace(other.config, steps=1))
    failing = pytest.raises(Unfinished, match="1 runs did not finish: 0")
    with files.alone_in(first.folder), failing:
        Queue([first, quick]).run()
    assert "0: Another process" in capfd.readouterr().err
    assert quick.is_done


def test_a_run_whose_end_is_damaged_takes_its_temperature_from_the_short_runs(tmp_path):
    cell = tiny(tmp_path)
    for one in (cell.chooser, cell):
        line = run_cell(one)
    (cell.folder / MODEL).write_bytes(b"torn")
    assert run_cell(cell).metrics == line.metrics


def test_the_first_runs_are_the_first_that_are_left(tmp_path, capfd):
    options = {"data": "digits", "only": "knn", "dry_run": True, "results": tmp_path}
    reproduce(**options)
    everything = capfd.readouterr().out.split()
    run(KNNStudy(), KNNConfig(method="pixels", results=tmp_path, run=tmp_path / "run"))
    capfd.readouterr()
    reproduce(**options, first=2)
    assert capfd.readouterr().out.split() == everything[1:3]


def test_runs_that_only_lack_their_line_are_not_counted(tmp_path, capfd):
    options = {"data": "digits", "only": "knn", "dry_run": True, "runs_dir": tmp_path / "runs"}
    reproduce(**options, results=tmp_path, first=2)
    first, second = capfd.readouterr().out.split()
    run(KNNStudy(), KNNConfig(method="pixels", results=tmp_path, run=tmp_path / "runs" / first))
    (tmp_path / "knn.jsonl").unlink()
    capfd.readouterr()
    reproduce(**options, results=tmp_path, first=1)
    assert capfd.readouterr().out.split() == [first, second]


@pytest.mark.parametrize(("width", "minutes"), [(1, [5, 4, 1, 0]), (2, [2, 2, 2, 0])])
def test_the_time_left_goes_with_the_images_left(tmp_path, monkeypatch, capsys, width, minutes):
    """Of four runs the third has three times as many images a step; the others take a minute."""
    batches = 4, 4, 12, 4
    queue = [
        replace(cell, config=replace(cell.config, batch=batch))
        for cell, batch in zip(some_runs(tmp_path, 4), batches, strict=True)
    ]
    minute = queue[0].images
    clock = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: clock)

    class Clockwork:
        rest: list[tuple[Cell, float]] = []

        def has_room(self):
            return len(self.rest) < width

        def start(self, cell):
            self.rest.append((cell, 60 * cell.images / minute))

        def ended(self):
            nonlocal clock
            self.rest.sort(key=lambda one: one[1])
            (cell, seconds), *others = self.rest
            clock += seconds
            self.rest = [(one, rest - seconds) for one, rest in others]
            files.replace(cell.folder / MODEL, b"")  # it is done
            return [(cell, True)]

        def stop(self):
            raise AssertionError("nobody asked")

    Queue(queue, Clockwork()).run()
    said = re.findall(r"about (\d+) minutes", capsys.readouterr().out)
    assert [int(one) for one in said] == minutes


@pytest.fixture(scope="module")
def two_processes():
    """Copies of a process that has imported all; as users start them: in the last test below."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["neuralsort.experiments.reproduction.processes"])

    def made() -> Processes:
        workers = Processes(2)
        workers.context = context  # pyright: ignore
        return workers

    return made


def test_side_by_side_gives_the_lines_of_one_after_the_other(tmp_path, capfd, two_processes):
    """Two runs at once, after the one that chooses their temperature; each of them once."""
    metrics = []
    for workers in (None, two_processes()):
        folder = tmp_path / ("together" if workers else "apart")
        queue = in_order([tiny(folder, seed=seed) for seed in (0, 1)])
        Queue(queue, workers).run()
        Queue(queue, workers).run()
        said = capfd.readouterr().out
        assert "3 runs to do, 0 done before." in said
        assert "(0 runs left, about 0 minutes)" in said
        assert "0 runs to do, 3 done before." in said
        lines = record.read(folder / "results")
        assert len(lines) == 3
        metrics.append({(x.seed, len(x.config["taus"])): (x.tau, x.metrics) for x in lines})
    assert metrics[0] == metrics[1]
    assert len(metrics[0]) == 3


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, capfd, two_processes):
    good, bad = tiny(tmp_path), tiny(tmp_path, method="sinkhorn")
    bad.chooser.folder.mkdir(parents=True)
    (bad.chooser.folder / "tau-0.5").write_text("a file in the way")
    for workers in (None, two_processes()):
        where = "above, or in log.txt in their folders" if workers else "above"
        said = rf"2 runs did not finish: sinkhorn-short.*What they said is {where}\."
        with pytest.raises(Unfinished, match=said):
            Queue(in_order([bad, good]), workers).run()
        assert good.is_done
    assert "failed  sinkhorn-short" in capfd.readouterr().out
    assert "sinkhorn-short" in (bad.chooser.folder / "log.txt").read_text()


def some_runs(folder: Path, count: int) -> list[Cell]:
    """Long enough to be killed on the way, with a checkpoint after every step."""
    config = replace(tiny(folder).config, steps=120, tau=(1.0,), checkpoint_seconds=0.0)
    return [
        Cell("sort", replace(config, seed=seed, run=folder / str(seed))) for seed in range(count)
    ]


SCRIPT = """
import sys
from pathlib import Path

sys.path.insert(0, {root!r})

if __name__ == "__main__":
    from neuralsort.experiments.reproduction.processes import Processes
    from neuralsort.experiments.reproduction.queue import Queue
    from neuralsort.experiments.training.trainer import Interrupted
    from tests.test_reproduction import some_runs

    try:
        Queue(some_runs(Path(sys.argv[1]), int(sys.argv[2])), Processes(2)).run()
    except Interrupted:
        sys.exit(130)
"""


def start(folder: Path, count: int) -> subprocess.Popen:
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "some_runs.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).parents[1])))
    return subprocess.Popen([sys.executable, script, folder, str(count)], start_new_session=True)


def wait_for(path: Path, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not appear"
        time.sleep(0.02)


def children(process: subprocess.Popen) -> list[int]:
    """The workers, which run one function of ours each."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    found = []
    for child in map(int, listed.split()):
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
            found.append(child)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_end_with_the_queue_that_started_them(tmp_path):
    queue = start(tmp_path, 1)
    wait_for(tmp_path / "0" / "checkpoint.safetensors")
    (worker,) = children(queue)
    queue.kill()
    queue.wait()
    until = time.monotonic() + 60.0
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < until, "the worker goes on"
        time.sleep(0.1)
    assert not (tmp_path / "0" / MODEL).exists(), "the worker went on to the end"
    Queue(some_runs(tmp_path, 1)).run()
    assert len(record.read(tmp_path / "results")) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("count", some_of([1, 2], 1))
def test_a_worker_that_is_killed_is_started_again_and_a_queue_that_is_stopped_goes_on(
    tmp_path, count
):
    """Beside runs that nothing stopped. The rest is done here: a process takes seconds to start."""
    Queue(some_runs(tmp_path / "whole", count)).run()
    queue = start(tmp_path / "parts", count)
    wait_for(tmp_path / "parts" / str(count - 1) / "checkpoint.safetensors")
    os.kill(children(queue)[0], signal.SIGKILL)
    time.sleep(1.0)
    queue.send_signal(signal.SIGTERM)
    assert queue.wait() in (0, 130)
    Queue(some_runs(tmp_path / "parts", count)).run()
    for seed in map(str, range(count)):
        a, b = (finished(tmp_path / name / seed) for name in ("whole", "parts"))
        assert a[1].metrics == b[1].metrics
        assert all((a[0][name] == b[0][name]).all() for name in a[0])
        assert (tmp_path / "parts" / seed / MODEL).exists()
    assert len(record.read(tmp_path / "parts" / "results")) == count
