"""Lines of results: their schema, how they are kept, and what they say of a run."""

import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning_fabric", reason="needs the extra `experiments`")

from neuralsort.experiments import record
from neuralsort.experiments.record import Line
from neuralsort.experiments.reporting import report
from neuralsort.experiments.reproduction.cells import KEPT_BYTES
from neuralsort.experiments.studies import STUDIES, running
from neuralsort.experiments.studies.running import MODEL, evaluate, finished, run
from neuralsort.experiments.studies.sorting import SortConfig, SortStudy
from neuralsort.experiments.training import trainer
from neuralsort.experiments.training.plan import ConfigError
from neuralsort.runtime import files, machine

RESULTS = Path(__file__).parent.parent / "results"

SMALL = {"n": 3, "places": 2, "steps": 2, "batch": 4, "test_lists": 20, "validation_lists": 8}
LINE = Line(
    study="sort",
    method="neuralsort",
    data="mnist",
    seed=0,
    sizes={"n": 5},
    metrics={"exact_match": 0.5},
    intervals={"exact_match": (0.4, 0.6)},
    config={"plan": {"steps": 2}},
    trials=[],
    wall_seconds=1.0,
    commit="0123",
)


def small(tmp_path, **options) -> SortConfig:
    places = {"run": tmp_path / "run", "results": tmp_path / "results"}
    return SortConfig(**SMALL | places | options)


# -- the schema ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"study": "a"}\n\n{"a": \n', r"sort\.jsonl, line 3 is not JSON"),
        ('{"a": 1}\n', r"sort\.jsonl, line 1 does not name its study"),
        ("[" * 10**5 + "\n", r"sort\.jsonl, line 1 is not JSON"),
        ("1" * 5000 + "\n", r"sort\.jsonl, line 1 is not JSON"),
        ("[1]\n", r"sort\.jsonl, line 1 does not name its study"),
        ('{"study": 1}\n', r"sort\.jsonl, line 1 does not name its study"),
        ('{"study": "sort"}\n', r"line 1 lacks config, data, method, metrics"),
        ('{"study": "sort"}\nnot \xff text\n', r"sort\.jsonl is not text in UTF-8"),
    ],
)
def test_lines_that_are_none_are_named(tmp_path, text, message):
    (tmp_path / "sort.jsonl").write_text(text, encoding="latin-1")
    with pytest.raises(record.RecordError, match=message):
        report.write_report(tmp_path, tmp_path / "report")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metrics", {"exact_match": "high"}),
        ("metrics", None),
        ("steps", None),
        ("steps", "3"),
        ("sizes", {"n": 2.5}),
        ("intervals", {"exact_match": [1.0]}),
        ("wall_seconds", "long"),
        ("trials", {}),
        ("seed", "zero"),
        ("commit", 7),
    ],
)
def test_values_of_another_kind_are_named(tmp_path, name, value):
    path = tmp_path / "sort.jsonl"
    path.write_text(json.dumps(json.loads(LINE.to_json()) | {name: value}) + "\n")
    with pytest.raises(record.RecordError, match=rf"sort\.jsonl, line 1 has a wrong `{name}`"):
        record.read(tmp_path)


def test_entries_that_no_line_has_are_named(tmp_path):
    path = tmp_path / "sort.jsonl"
    path.write_text(json.dumps(json.loads(LINE.to_json()) | {"strange": 1}) + "\n")
    with pytest.raises(record.RecordError, match="has strange, which no line has"):
        record.read(tmp_path)


def test_all_published_lines_are_lines():
    lines = record.read(Path(__file__).parents[1] / "results")
    assert {line.study for line in lines} == {"sort", "median", "knn", "rank"}
    for line in lines:
        assert Line.from_facts(json.loads(line.to_json())) == line
        assert line.sizes


def test_one_flipped_bit_of_a_line_is_refused_or_harmless(tmp_path):
    path, generator = tmp_path / "sort.jsonl", random.Random(0)
    record.append(path, LINE)
    whole = path.read_bytes()
    for _ in range(1000):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        with warnings.catch_warnings(record=True), suppress(record.RecordError):
            assert record.read(tmp_path, {"sort", "median"}) in ([LINE], [])


def test_a_line_that_was_edited_says_so_and_one_without_a_digest_is_of_before(tmp_path):
    path = tmp_path / "sort.jsonl"
    path.write_text(LINE.to_json().replace("0.5", "0.9") + "\n")
    with pytest.raises(record.RecordError, match=r"line 1 was changed.*its digest says.*run again"):
        record.read(tmp_path)
    path.write_text(json.dumps(asdict(LINE)) + "\n")
    record.append(path, LINE)  # is there already
    assert record.read(tmp_path) == [LINE]


# -- how they are kept -----------------------------------------------------------------------------


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record.os, "fsync", full)
    with pytest.raises(OSError, match=r"Could not write: No space.*sort\.jsonl"):
        record.append(tmp_path / "sort.jsonl", LINE)


def test_a_line_that_was_cut_off_is_healed_with_a_warning(tmp_path):
    path, other = tmp_path / "sort.jsonl", replace(LINE, sizes={"n": 7})
    path.write_text(LINE.to_json() + "\n" + LINE.to_json()[:50])
    with pytest.warns(record.RecordWarning, match=r"sort\.jsonl, line 2 was cut off.*left out"):
        assert record.read(tmp_path) == [LINE]
    with pytest.warns(record.RecordWarning, match=r"sort\.jsonl, line 2 was cut off.*removed"):
        record.append(path, other)
    assert record.read(tmp_path) == [LINE, other]
    path.write_text(LINE.to_json())  # whole, but for its end
    assert record.read(tmp_path) == [LINE]
    record.append(path, other)
    record.append(path, other)
    assert record.read(tmp_path) == [LINE, other]


def test_many_processes_add_lines_at_once(tmp_path):
    script = (
        "import sys; from dataclasses import replace; from pathlib import Path\n"
        "from neuralsort.experiments import record\n"
        "path = Path(sys.argv[1]); (line,) = record.read_file(path)[:1]\n"
        "for n in range(20):\n"
        "    record.append(path, replace(line, sizes={'n': n}, seed=int(sys.argv[2])))"
    )
    path = tmp_path / "sort.jsonl"
    record.append(path, replace(LINE, seed=99))
    workers = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", script, path, str(seed)])
        for seed in range(3)
    ]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert len(record.read(tmp_path)) == 61


def test_two_processes_cannot_share_a_run(tmp_path):
    config = small(tmp_path)
    with files.alone_in(tmp_path / "run"), pytest.raises(files.Busy, match=r"at work in .*run"):
        run(SortStudy(), config)
    run(SortStudy(), config)
    assert len(record.read(tmp_path / "results")) == 1


# -- what they say of a run ------------------------------------------------------------------------


def test_lines_say_what_numbers_depend_on(tmp_path, monkeypatch):
    for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    first = run(SortStudy(), small(tmp_path, seed=3))
    assert first.machine["isa"] == torch.backends.cpu.get_cpu_capability()
    assert first.machine["threads"] == first.plan["threads"] == 1
    assert first.command == (
        "neuralsort train sort --steps 2 --batch 4 --seed 3 --n 3 --places 2 --test-lists 20 "
        "--validation-lists 8"
    )
    assert datetime.fromisoformat(str(first.date)).tzinfo is not None
    assert first.digests.keys() == {"data", "network", "augmentation"}
    other = run(SortStudy(), small(tmp_path, recipe="paper", tau=(1.0,), run=tmp_path / "other"))
    assert first.digests["data"] == other.digests["data"]
    assert first.digests["network"] != other.digests["network"]


def test_commands_of_lines_begin_with_settings_that_change_rounding(tmp_path, monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")  # as ever
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
    line = run(SortStudy(), small(tmp_path))
    assert str(line.command).startswith("ONEDNN_MAX_CPU_ISA=AVX512_CORE neuralsort train sort ")
    assert line.machine["isa_limit"] == "AVX512_CORE"


def test_evaluation_keeps_what_training_was(tmp_path, monkeypatch):
    """Commit, versions and machine are those of the training; where it was tested stands beside."""
    trained = run(SortStudy(), small(tmp_path))
    monkeypatch.setattr(running.machine, "commit", lambda: "another")
    options = SortStudy(), SortConfig(results=tmp_path / "results"), tmp_path / "run"
    (again,) = evaluate(*options)
    for name in ("commit", "versions", "machine", "date", "command", "digests", "metrics"):
        assert getattr(again, name) == getattr(trained, name)
    assert again.tested["commit"] == "another"
    assert not trained.tested
    several = list(evaluate(*options, lengths=[6, 4]))
    assert [(line.sizes["n"], line.train_n) for line in several] == [(6, 3), (4, 3)]


def test_parameters_kept_as_a_file_are_tested_like_the_run(tmp_path):
    trained = run(SortStudy(), small(tmp_path))
    kept = tmp_path / "kept.safetensors"
    shutil.copy(tmp_path / "run" / MODEL, kept)
    (again,) = evaluate(SortStudy(), SortConfig(results=tmp_path / "results"), kept)
    assert again.metrics == trained.metrics


@pytest.mark.parametrize("damage", ["truncate", "no model"])
def test_damaged_result_is_made_again_from_the_checkpoint(tmp_path, damage):
    line = run(SortStudy(), small(tmp_path))
    path = tmp_path / "run" / MODEL
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        path.unlink()
    again = run(SortStudy(), small(tmp_path))
    assert again == line  # commit, versions and date too are those of the training
    assert finished(tmp_path / "run")[1] == line


def test_a_run_that_went_on_elsewhere_says_so(tmp_path, monkeypatch):
    source = tmp_path / "augmentation.py"
    source.write_text("first")
    monkeypatch.setattr(running.augmentation, "__file__", str(source))
    monkeypatch.setattr(running.machine, "commit", lambda: "first")
    step = trainer.Trainer.step

    def stop(self):
        if self.state.step == 3:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    monkeypatch.setattr(trainer.Trainer, "step", stop)
    with pytest.raises(trainer.Interrupted):
        run(SortStudy(), small(tmp_path, steps=6))
    monkeypatch.setattr(trainer.Trainer, "step", step)
    monkeypatch.setattr(running.machine, "commit", lambda: "second")
    source.write_text("second")
    line = run(SortStudy(), small(tmp_path, steps=6))
    assert line.commit == "first"
    first, second = (hashlib.sha256(text).hexdigest() for text in (b"first", b"second"))
    assert line.digests["augmentation"] == first
    assert line.sittings == [{"commit": "second", "augmentation": second}]


def test_untracked_source_makes_a_commit_dirty(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=b", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    monkeypatch.setattr(machine, "SOURCE", tmp_path / "src")
    clean = machine.commit()
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "results.jsonl").write_text("a line")  # no source
    assert machine.commit() == clean
    (tmp_path / "src" / "b.py").write_text("b = 1")
    assert machine.commit() == f"{clean}-dirty"


def test_results_that_cannot_be_written_are_told_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "results").write_text("a file in the way")
    config = small(tmp_path, results=tmp_path / "results" / "mine")
    with pytest.raises(OSError, match="results"):
        run(SortStudy(), config)
    assert not (tmp_path / "run").exists()


def test_tests_of_long_lists_are_refused_where_memory_is_short(tmp_path):
    run(SortStudy(), small(tmp_path))
    again = evaluate(SortStudy(), SortConfig(results=tmp_path), tmp_path / "run", lengths=[10**6])
    with pytest.raises(ConfigError, match=r"GB of memory, .* Lower --n\.$"):
        list(again)


@pytest.mark.parametrize(
    "options", [{"n": 10**7}, {"test_lists": 10**12}, {"batch": 10**9}, {"overlap": 10**8}]
)
def test_lists_too_long_for_memory_are_refused_before_any_work(tmp_path, options):
    with pytest.raises(ConfigError, match=r"needs at least .* GB .* are free. Lower --n"):
        run(SortStudy(), small(tmp_path, **options))


# -- the published ones ----------------------------------------------------------------------------


def test_parameters_that_are_kept_are_those_of_published_lines():
    lines = record.read(RESULTS)
    kept = sorted((RESULTS / "weights").iterdir())
    assert {line.study for _, line in map(finished, kept)} == {"sort", "median", "knn"}
    for path in kept:
        assert finished(path)[1] in lines, path.name
        assert path.stat().st_size <= KEPT_BYTES


@pytest.mark.skipif(
    "NEURALSORT_DATA" not in os.environ, reason="NEURALSORT_DATA names no folder with MNIST"
)
@pytest.mark.parametrize("start", ["sort-mnist-neuralsort-n3", "median-mnist-neuralsort-n5"])
def test_a_published_cell_can_be_tested_again(tmp_path, start):
    (path,) = (RESULTS / "weights").glob(f"{start}-fast-*")
    line = finished(path)[1]
    study = STUDIES[line.study]
    (again,) = evaluate(study, study.config(results=tmp_path), path)
    for name, value in line.metrics.items():
        # Instruction sets round differently, so a near tie among 10,000 lists may turn.
        assert again.metrics[name] == pytest.approx(value, rel=1e-3), name
