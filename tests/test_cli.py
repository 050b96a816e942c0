"""The command line: what it says, what it refuses before any work, and how it ends."""

import dataclasses
import json
import os
import re

import pytest
import safetensors.torch
import torch

pytest.importorskip("lightning_fabric", reason="needs the extra `experiments`")

from neuralsort.experiments import cli, quickstart
from neuralsort.experiments.networks.orderings import METHODS
from neuralsort.experiments.studies import STUDIES, lists
from neuralsort.experiments.training import checkpoint, trainer
from neuralsort.runtime import files

PAPER_METHODS = {"neuralsort", "stochastic_neuralsort", "vanilla", "sinkhorn", "gumbel_sinkhorn"}
TINY = ["--n", "3", "--places", "2", "--steps", "2", "--batch", "4", "--test-lists", "8"]
TINY += ["--validation-lists", "8"]


def refused(capsys, *arguments: str) -> str:
    """What the command line says when it stops with status 2."""
    try:
        status = cli.main(arguments)
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    said = capsys.readouterr()
    return re.sub(r"[\s│╭╮╰╯─]+", " ", said.err + said.out)


@pytest.fixture
def no_work(monkeypatch):
    def work(*arguments, **options):
        raise AssertionError("work was done")

    monkeypatch.setattr(lists, "load_digits", work)
    monkeypatch.setattr(trainer.Trainer, "__init__", work)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n", "0"], "--n must be at least 1, got 0"),
        (["--n", "1"], "--n must be at least 2, so that lists have orders; got 1"),
        (["--places", "12"], "--places must be at most 9, got 12"),
        (["--tau", "1e308"], "--tau must be positive numbers, got 1e+308"),
        (["--threads", "1000000000000"], "--threads must be at most 1024, got 1000000000000"),
        (["--method", "vanilla", "--temperature", "learned"], "vanilla has none. Leave it out"),
        (["--tau", "1", "-2"], "--tau must be positive numbers, got -2.0"),
        (["--lr", "nan"], "--lr must be a positive number, got nan"),
        (["--steps", "-3"], "--steps must be at least 1, got -3"),
        (["--patience", "-1"], "--patience must not be negative, got -1"),
        (["--checkpoint-seconds", "-1"], "--checkpoint-seconds must not be negative"),
        (["--checkpoint-seconds", "nan"], "--checkpoint-seconds must not be negative"),
        (["--results", __file__], "--results must be a folder, but"),
        (["--run", __file__], "--run must be a folder, but"),
        (["--device", "cuda"], "--device cuda cannot be used here"),
        (["--n", "five"], "invalid"),
    ],
)
@pytest.mark.usefixtures("no_work")
def test_wrong_values_stop_before_any_work(capsys, options, message):
    assert message in refused(capsys, "train", "sort", *options)


@pytest.mark.usefixtures("no_work")
def test_medians_need_odd_lists(capsys):
    assert "--n must be odd" in refused(capsys, "train", "median", "--n", "4")


@pytest.mark.usefixtures("no_work")
def test_unknown_method_lists_the_valid_ones(capsys):
    said = refused(capsys, "train", "sort", "--method", "bogosort")
    for method in METHODS:
        assert method in said


@pytest.mark.usefixtures("no_work")
def test_unknown_command_lists_the_valid_ones(capsys):
    said = refused(capsys, "trian")
    for command in ("quickstart", "train", "evaluate", "reproduce", "report", "data"):
        assert command in said


@pytest.mark.parametrize("name", STUDIES)
def test_help_explains_every_option_with_its_default(capsys, name):
    config = STUDIES[name].config
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", name, "--help"])
    assert stop.value.code == 0
    said = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    for option in (field.name for field in dataclasses.fields(config)):
        flag = f"--{option.replace('_', '-')}"
        explained = re.search(rf"{flag}[ ,].*?\(default:[^)]*\)", said)
        assert explained, f"{flag} is not explained with its default"
        assert len(explained.group()) > len(flag) + 30


@pytest.mark.parametrize(
    "command", [["quickstart"], ["evaluate"], ["reproduce"], ["report"], ["data", "fetch"]]
)
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, "--help"])
    assert stop.value.code == 0
    assert "usage: neuralsort" in capsys.readouterr().out


def test_train_evaluate_report(tmp_path, capsys):
    run, results = str(tmp_path / "run"), str(tmp_path / "results")
    assert cli.main(["train", "sort", *TINY, "--run", run, "--results", results]) == 0
    said = capsys.readouterr().out
    assert "exact_match" in said
    assert "95 % interval" in said
    assert cli.main(["evaluate", run, "--n", "3", "4", "--results", results]) == 0
    assert "n = 4" in capsys.readouterr().out
    assert cli.main(["report", "--results", results, "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "index.html").is_file()
    lines = (tmp_path / "results" / "sort.jsonl").read_text().splitlines()
    assert [json.loads(line)["sizes"]["n"] for line in lines] == [3, 3, 4]


def test_evaluate_needs_a_finished_run(tmp_path, capsys):
    for text in ("[1]", '{"study": "knn"}', "nonsense", None):
        if text is not None:
            (tmp_path / "result.json").write_text(text)
        assert "not the folder of a finished run" in refused(capsys, "evaluate", str(tmp_path))


def test_foreign_files_of_tensors_are_errors_not_tracebacks(tmp_path, capsys):
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}))
    assert "is not a checkpoint of ours" in refused(capsys, "evaluate", str(tmp_path))
    checkpoint.write(path, {"a": torch.ones(2)}, {"step": 3})
    assert "holds no finished run" in refused(capsys, "evaluate", str(path))


def test_evaluation_of_an_unknown_study_lists_the_known_ones(tmp_path, capsys):
    line = {"study": "poetry", "method": "a", "data": "b", "seed": 0, "metrics": {}, "config": {}}
    line |= {"trials": [], "wall_seconds": 1.0}
    checkpoint.write(tmp_path / "model.safetensors", {"a": torch.ones(2)}, {"line": line})
    said = refused(capsys, "evaluate", str(tmp_path))
    assert "a run of the study 'poetry'" in said
    assert all(name in said for name in STUDIES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\n", "is not text in UTF-8"),
        (b'{"study": "sort", "metrics": {"exact_match": "a"}}\n', "line 1 lacks config"),
    ],
)
def test_damaged_results_are_errors_not_tracebacks(tmp_path, capsys, content, message):
    (tmp_path / "sort.jsonl").write_bytes(content)
    assert message in refused(capsys, "report", "--results", str(tmp_path))


@pytest.mark.parametrize("options", [("--n", "100000001"), ("--test-lists", "1000000000000")])
def test_lists_too_long_for_memory_are_errors_not_tracebacks(tmp_path, capsys, options):
    run = ("--run", str(tmp_path / "run"), "--results", str(tmp_path / "results"))
    for study in ("sort", "median"):
        assert "GB of memory" in refused(capsys, "train", study, *options, *run)


def test_a_busy_folder_is_an_error_not_a_traceback(tmp_path, capsys):
    run = tmp_path / "run"
    with files.alone_in(run):
        said = refused(capsys, "train", "sort", *TINY, "--run", str(run))
    assert "Another process is at work in" in said


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: 9 bytes")])
def test_memory_that_runs_out_is_told(capsys, monkeypatch, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(cli, "run", fail)
    assert "There is not enough memory for this" in refused(capsys, "train", "sort")


@pytest.mark.parametrize("kind", [trainer.Interrupted, KeyboardInterrupt])
@pytest.mark.parametrize("folder", ["a folder", "a[/b]c", "a[bold]c"])
def test_interrupt_says_how_to_go_on(capsys, monkeypatch, kind, folder):
    def stop(*arguments):
        raise kind

    monkeypatch.setattr(cli, "run", stop)
    assert cli.main(["train", "sort", "--n", "7", "--run", folder]) == 130
    said = capsys.readouterr().err
    assert f"neuralsort train sort --n 7 --run '{folder}'" in said
    assert ("checkpoint" in said) == (kind is trainer.Interrupted)
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun does
    assert cli.main(["train", "sort"]) == 130
    start = "  torchrun --nproc-per-node 2 -m -- neuralsort.experiments train sort\n"
    assert start in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert cli.main(["train", "sort"]) == 130
    assert capsys.readouterr().err == ""


def test_broken_lines_and_folders_are_errors_not_tracebacks(tmp_path, capsys):
    (tmp_path / "sort.jsonl").write_text("{\n")
    assert "line 1 is not JSON" in refused(capsys, "report", "--results", str(tmp_path))
    (tmp_path / "sort.jsonl").unlink()
    said = refused(capsys, "report", "--results", str(tmp_path), "--out", __file__)
    assert "no lines of results" in said


def test_progress_is_quiet_where_there_is_no_terminal(tmp_path, capsys):
    run, results = str(tmp_path / "run"), str(tmp_path / "results")
    cli.main(["train", "sort", *TINY, "--run", run, "--results", results])
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_reproduce_says_what_it_would_do(capsys, tmp_path):
    nothing = ["--results", str(tmp_path)]  # is published there yet
    assert cli.main(["reproduce", "--dry-run", "--only", "median", *nothing]) == 0
    said = capsys.readouterr().out.split()
    chooser = "median-mnist-stochastic_neuralsort-n15-fast-seed0-steps600-tau-0.125-0.5-2-8"
    run = "median-mnist-stochastic_neuralsort-n15-fast-seed2-steps3000"
    assert said.index(chooser) < said.index(run)
    assert all(one.startswith("median") for one in said)


def test_reproduce_takes_the_studies_on_lists_together(capsys, tmp_path):
    nothing = ["--results", str(tmp_path)]  # is published there yet
    assert cli.main(["reproduce", "--dry-run", "--only", "lists", *nothing]) == 0
    kinds = [one.split("-")[0] for one in capsys.readouterr().out.split()]
    assert set(kinds) == {"sort", "median"}
    said = refused(capsys, "reproduce", "--dry-run", "--only", "lists", "--data", "cifar10")
    assert "no runs of the study lists on cifar10" in said
    assert "--jobs must be at least 1, got 0" in refused(capsys, "reproduce", "--jobs", "0")


def test_data_is_listed_and_checked(capsys, tmp_path, monkeypatch):
    assert cli.main(["data", "list"]) == 0
    assert "mnist" in capsys.readouterr().out
    monkeypatch.delenv("NEURALSORT_DATA", raising=False)
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"no")
    assert "is corrupt" in refused(capsys, "data", "check", "--data-dir", str(tmp_path))


@pytest.mark.skipif("NEURALSORT_DATA" not in os.environ, reason="NEURALSORT_DATA is not set")
def test_good_data_is_found(capsys):
    assert cli.main(["data", "check"]) == 0
    assert capsys.readouterr().out.count("good") == 4


def test_quickstart_tells_the_whole_story(tmp_path, capsys, monkeypatch):
    """In miniature: every run of the real one, with two steps each."""
    small = {"n": 3, "places": 2, "steps": 2, "batch": 4, "test_lists": 8, "validation_lists": 8}
    whole = list(quickstart.runs(0))
    methods = {config.method for name, config in whole if name == "sort"}
    assert methods == PAPER_METHODS
    monkeypatch.setattr(
        quickstart,
        "runs",
        lambda seed: [
            (name, type(config)(method=config.method, **small)) for name, config in whole
        ],
    )
    (tmp_path / "report" / "results").mkdir(parents=True)
    (tmp_path / "report" / "runs").mkdir()
    quickstart.quickstart(out=tmp_path / "report")
    said = capsys.readouterr().out
    for words in ("Deterministic NeuralSort", "Stochastic NeuralSort", "Sinkhorn", "median"):
        assert words in said
    assert (tmp_path / "report" / "index.html").is_file()
    assert {path.name for path in (tmp_path / "report").iterdir()} >= {"results", "runs"}  # others'
    quickstart.quickstart(out=tmp_path / "report")  # anew, not added to
    work = tmp_path / "report" / "quickstart-seed0"
    assert [path.name for path in work.iterdir()] == ["results"]
    lines = (work / "results" / "sort.jsonl").read_text().splitlines()
    assert len(lines) == sum(name == "sort" for name, _ in whole)
