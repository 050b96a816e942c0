"""Runs on a Ray cluster: two nodes on this machine, of which one dies, and a worker with it."""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("lightning_fabric", reason="needs the extra `experiments`")

from neuralsort.experiments import cli, record
from neuralsort.experiments.reproduction import command, ray_tasks
from neuralsort.experiments.reproduction.cells import Cell
from neuralsort.experiments.reproduction.queue import Queue
from neuralsort.experiments.studies.running import MODEL, finished
from neuralsort.experiments.training import checkpoint
from neuralsort.experiments.training.trainer import CHECKPOINT, Interrupted
from tests.test_reproduction import tiny, wait_for

PATIENCE = 240.0
"""Seconds for what takes a few on an idle machine."""

# -- without a cluster -----------------------------------------------------------------------------


def test_ray_that_is_missing_is_told_before_any_work(monkeypatch, capsys):
    assert "ray" not in vars(ray_tasks), "Ray is imported before it is asked for"
    monkeypatch.setitem(sys.modules, "ray", None)
    assert cli.main(["reproduce", "--data", "digits", "--ray", "auto"]) == 2
    assert 'Install it with pip install "neuralsort[ray]"' in capsys.readouterr().err


def test_the_cluster_says_how_many_runs_are_side_by_side(capsys):
    assert cli.main(["reproduce", "--ray", "auto", "--jobs", "2"]) == 2
    assert "--jobs 2 is for this machine" in capsys.readouterr().err


def test_a_folder_that_machines_do_not_share_is_told(tmp_path, monkeypatch, capsys):
    """As if a worker had ended well on a machine that keeps its files to itself."""
    monkeypatch.setattr(ray_tasks, "SHARED_SECONDS", 0.0)
    ray = SimpleNamespace(
        remote=lambda **options: lambda function: function,
        wait=lambda tasks, **options: (tasks, []),
        get=lambda task: True,
        exceptions=SimpleNamespace(RayError=OSError),
    )
    workers = ray_tasks.RayTasks(ray)
    cell = tiny(tmp_path)
    workers.running["task"] = cell, 1.0
    assert workers.ended() == [(cell, False)]
    assert "Give a --runs-dir and --results that all machines share" in capsys.readouterr().err


def test_ctrl_c_asks_every_run_for_its_checkpoint_and_waits(tmp_path):
    """On a cluster: at the end of this file, in `make test-all`."""
    cancelled, waited = [], []

    def wait(tasks, *, num_returns, timeout):
        if not cancelled:
            raise KeyboardInterrupt
        assert num_returns == len(tasks)
        assert timeout == ray_tasks.STOP_SECONDS
        waited.extend(tasks)

    class Task:
        def options(self, *, num_cpus):
            return self

        def remote(self, cell):
            return cell.folder.name

    ray = SimpleNamespace(
        remote=lambda **options: lambda function: Task(),
        cluster_resources=lambda: {"CPU": 2},
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 2}}],
        wait=wait,
        cancel=cancelled.append,
    )
    cells = [tiny(tmp_path, method=name).chooser for name in ("neuralsort", "softsort")]
    with pytest.raises(Interrupted):
        Queue(cells, ray_tasks.RayTasks(ray)).run()
    assert cancelled == waited == ["neuralsort-short", "softsort-short"]


def test_workers_have_the_settings_of_this_process(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    monkeypatch.setenv("NEURALSORT_DATA", "shared")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    found = ray_tasks.settings_of_workers()
    assert (found["ONEDNN_MAX_CPU_ISA"], found["NEURALSORT_DATA"]) == ("SSE41", "shared")
    assert "GLIBC_TUNABLES" not in found


# -- with one --------------------------------------------------------------------------------------

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def cluster():
    """One node, of one core."""
    if sys.platform != "linux":
        pytest.skip("looks into /proc")
    pytest.importorskip("ray", reason="needs the extra `ray`")
    from ray.cluster_utils import Cluster

    # Workers that are not nice to others, and a death that is noticed soon.
    quick = {"worker_niceness": 0, "health_check_period_ms": 500}
    nodes = Cluster(initialize_head=True, head_node_args=NODE | {"_system_config": quick})
    yield nodes
    nodes.shutdown()


@pytest.fixture
def second(cluster):
    """Another node."""
    node = cluster.add_node(**NODE)
    yield node
    cluster.remove_node(node)


def reproduce(monkeypatch, folder: Path, cells: list[Cell], ray: str | None) -> None:
    """`neuralsort reproduce` with cells of ours, from a folder that workers do not start in."""
    folder.mkdir(exist_ok=True)
    with monkeypatch.context() as here:
        here.setattr(command, "cells", lambda *_, **options: cells)
        here.chdir(folder)
        command.reproduce("digits", ray=ray)


def worker_of(raylet: int, checkpoints: list[Path]) -> tuple[int, Path]:
    """The process of that node that writes one of the checkpoints, once that is there."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        time.sleep(0.02)
        for file in filter(Path.exists, checkpoints):
            with suppress(OSError, StopIteration):  # the process may end while we look
                worker = holder({one / ".lock" for one in file.parents})
                if parent(worker) == raylet:
                    return worker, file
    raise AssertionError(f"nobody on that node wrote any of {checkpoints}")


def holder(locks: set[Path]) -> int:
    """The process that has one of these files open."""
    opened = Path("/proc").glob("[0-9]*/fd/*")
    return int(next(one for one in opened if linked(one) in locks).parts[2])


def linked(path: Path) -> Path | None:
    try:
        return Path(os.readlink(path))
    except OSError:
        return None


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def without_times(facts: Any) -> Any:
    """What a line says, but for when it was and how long it took."""
    if isinstance(facts, dict):
        times = ("date", "seconds", "wall_seconds")
        return {name: without_times(one) for name, one in facts.items() if name not in times}
    return [without_times(one) for one in facts] if isinstance(facts, list) else facts


def test_a_worker_that_is_killed_changes_no_line(cluster, tmp_path, monkeypatch, capfd):
    """One run on one node: every run, and every worker in place of one, takes seconds to start."""
    config = tiny(tmp_path, method="softsort").config
    cells = [Cell("sort", replace(config, tau=(1.0,), steps=60, checkpoint_seconds=0.0))]
    reproduce(monkeypatch, tmp_path / "here", cells, None)
    checkpoints = [tmp_path / "ray" / "runs" / "softsort-0" / CHECKPOINT]
    raylet = cluster.head_node.all_processes["raylet"][0].process.pid
    ended = []

    def end_it() -> None:
        worker, file = worker_of(raylet, checkpoints)
        os.kill(worker, signal.SIGKILL)
        ended.append(file)

    ending = threading.Thread(target=end_it)
    ending.start()
    reproduce(monkeypatch, tmp_path / "ray", cells, cluster.address)
    ending.join()
    assert_same_lines(tmp_path, ended, capfd.readouterr().out, ["softsort-0"])


@pytest.mark.long
@pytest.mark.parametrize("end", ["worker is killed", "worker is told", "node dies"])
def test_an_end_in_the_middle_changes_no_line(end, cluster, second, tmp_path, monkeypatch, capfd):
    """Two runs at a time, one on either node; a third takes the temperature that one chose."""
    often = {"steps": 150, "checkpoint_seconds": 0.0}
    last = tiny(tmp_path)
    chooser = replace(last.chooser, config=replace(last.chooser.config, **often))
    other = tiny(tmp_path, method="softsort").config
    cells = [replace(last, chooser=chooser), Cell("sort", replace(other, tau=(1.0,), **often))]
    reproduce(monkeypatch, tmp_path / "here", cells, None)

    runs = tmp_path / "ray" / "runs"
    checkpoints = [runs / "neuralsort-short/tau-0.5" / CHECKPOINT, runs / "softsort-0" / CHECKPOINT]
    raylet = second.all_processes["raylet"][0].process.pid
    ended = []

    def end_one() -> None:
        worker, file = worker_of(raylet, checkpoints)
        if end == "node dies":
            os.kill(raylet, signal.SIGKILL)
        os.kill(worker, signal.SIGTERM if end == "worker is told" else signal.SIGKILL)
        ended.append(file)

    ending = threading.Thread(target=end_one)
    ending.start()
    reproduce(monkeypatch, tmp_path / "ray", cells, cluster.address)
    ending.join()
    names = ["neuralsort-short", "neuralsort-0", "softsort-0"]
    assert_same_lines(tmp_path, ended, capfd.readouterr().out, names)


def assert_same_lines(tmp_path: Path, ended: list[Path], said: str, names: list[str]) -> None:
    """What the cluster did, in which a run was ended, is what one process did."""
    (file,) = ended
    assert len(checkpoint.read(file)[1]["sittings"]) == 2, "it did not go on from its checkpoint"
    assert said.count(f"{len(names)} runs to do, 0 done before.") == 2
    assert said.count("(0 runs left, about 0 minutes)") == 2
    here, there = (
        sorted(
            (without_times(asdict(one)) for one in record.read(tmp_path / name / "results")),
            key=str,
        )
        for name in ("here", "ray")
    )
    assert len(here) == len(names)
    assert here == there
    for name in names:
        one, same = (finished(tmp_path / way / "runs" / name)[0] for way in ("here", "ray"))
        assert all((one[key] == same[key]).all() for key in one)


@pytest.mark.long
def test_ctrl_c_leaves_checkpoints_on_the_cluster(cluster, tmp_path, monkeypatch):
    """Runs write none on the way, but at the end of each temperature; stopped in the second one."""
    config = tiny(tmp_path).chooser.config
    cell = Cell("sort", replace(config, steps=1000, checkpoint_seconds=1e6))
    run = tmp_path / "ray" / "runs" / "neuralsort-short"

    def interrupt() -> None:
        wait_for(run / "tau-0.5" / CHECKPOINT, PATIENCE)
        time.sleep(0.5)  # into the second one
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(Interrupted):
        reproduce(monkeypatch, tmp_path / "ray", [cell], cluster.address)
    assert 0 < checkpoint.read(run / "tau-2.0" / CHECKPOINT)[1]["step"] < 1000
    assert not (run / MODEL).exists()
