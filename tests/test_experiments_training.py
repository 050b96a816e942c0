"""The training engine: resume to the bit, whatever stops a run, and what a plan promises."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import nn

pytest.importorskip("lightning_fabric", reason="needs the extra `experiments`")

from neuralsort.experiments import cli
from neuralsort.experiments.data.randomness import generator_for, seed_for
from neuralsort.experiments.studies.running import MODEL, finished
from neuralsort.experiments.training import checkpoint
from neuralsort.experiments.training.plan import ConfigError, Plan
from neuralsort.experiments.training.trainer import (
    CHECKPOINT,
    Diverged,
    Interrupted,
    Trainer,
    make_fabric,
)

PLAN = Plan(steps=12, batch=4, lr=0.05, optimizer="adamw", schedule="one_cycle", validate_every=4)
TINY = ("--n", "3", "--places", "2", "--batch", "4", "--test-lists", "8", "--validation-lists", "8")


class Regression:
    """Batch norm, channels-last weights and dropout, on noise: all that may go wrong."""

    metric = "error"
    larger_is_better = False

    def __init__(self, interrupt_at: int | None = None):
        torch.manual_seed(1)
        self.model = LossModel()
        self.interrupt_at = interrupt_at

    def batch(self, step, part):
        if step == self.interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
        generator = generator_for("regression", step)
        return (torch.randn(4, 2, 6, 6, generator=generator)[part],)

    def validate(self, model):
        return {"error": model.layers[0].weight.detach().square().sum().item()}


class LossModel(nn.Module):
    def __init__(self):
        super().__init__()
        layers = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten()
        self.layers = nn.Sequential(*layers, nn.Linear(48, 1)).to(memory_format=torch.channels_last)

    def forward(self, x):
        return (self.layers(x) - x.mean((1, 2, 3)).unsqueeze(-1)).square().mean()


def trainer(folder, *, plan=PLAN, task=None, **options):
    settings = {"seed": 0, "identity": {"name": "test"}, "checkpoint_seconds": 0.0} | options
    return Trainer(task or Regression(), plan, folder=folder, fabric=make_fabric("cpu"), **settings)


def assert_same(actual: dict, expected: dict) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name


# -- resume ----------------------------------------------------------------------------------------


def test_ctrl_c_leaves_a_checkpoint_from_which_the_run_ends_with_the_same_bits(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.run("whole")
    with pytest.raises(Interrupted):
        trainer(tmp_path / "parts", task=Regression(interrupt_at=5)).run("first part")
    _, facts = checkpoint.read(tmp_path / "parts" / CHECKPOINT)
    assert facts["step"] == 6  # the step it came in is done to its end
    second = trainer(tmp_path / "parts")
    state = second.run("second part")
    assert state.step == PLAN.steps
    assert_same(second.model.state_dict(), whole.model.state_dict())
    ends = [checkpoint.read(tmp_path / name / CHECKPOINT)[0] for name in ("whole", "parts")]
    assert_same(ends[1], ends[0])
    assert len(state.history) == 3


def test_ctrl_c_in_the_last_step_stops_as_well(tmp_path):
    """What comes after may take long: other temperatures, the test, or the rest of a queue."""
    with pytest.raises(Interrupted):
        trainer(tmp_path, task=Regression(interrupt_at=PLAN.steps - 1)).run("all steps")
    again = trainer(tmp_path)
    assert again.done
    assert again.run("nothing left").step == PLAN.steps


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_a_run_cut_into_single_steps_is_the_same_run(tmp_path, optimizer):
    plan = replace(PLAN, optimizer=optimizer, average=0.9, clip=1.0)
    trainer(tmp_path / "whole", plan=plan).run("whole")
    for step in range(plan.steps - 1):
        with pytest.raises(Interrupted):
            trainer(tmp_path / "parts", plan=plan, task=Regression(interrupt_at=step)).run("part")
    trainer(tmp_path / "parts", plan=plan).run("last")
    ends = [checkpoint.read(tmp_path / name / CHECKPOINT)[0] for name in ("whole", "parts")]
    assert_same(ends[1], ends[0])


KILLER = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from neuralsort.experiments.cli import main

def attempt(arguments, seconds=None):
    child = os.fork()
    if child == 0:
        os._exit(main(arguments))
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]

random.seed(int(sys.argv[1]))
whole, parts, *options = sys.argv[2:]
start = time.monotonic()
assert attempt([*options, "--run", whole]) == 0
duration = time.monotonic() - start
kills = 0
for _ in range(5):
    seconds = random.uniform(0.1, 0.7) * duration
    kills += os.WIFSIGNALED(attempt([*options, "--run", parts], seconds))
assert attempt([*options, "--run", parts]) == 0
print("kills", kills)
"""


def test_kill_9_at_random_moments_ends_with_the_same_bits(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ("train", "sort", *TINY, "--steps", "30", "--checkpoint-seconds", "0")
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(seed_for("kills") % 1000), whole, parts, *options]
        + ["--results", str(tmp_path / "results")],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split("kills")[1]) >= 2, "too few kills came before the end"
    tensors = [checkpoint.read(folder / MODEL)[0] for folder in (whole, parts)]
    assert_same(tensors[1], tensors[0])
    lines = [finished(folder)[1] for folder in (whole, parts)]
    assert lines[0].metrics == lines[1].metrics


def test_checkpoint_of_another_run_is_refused(tmp_path):
    trainer(tmp_path).run("first")
    with pytest.raises(checkpoint.CheckpointError, match=r"plan\.lr is 0\.05 there and 0\.1 here"):
        trainer(tmp_path, plan=replace(PLAN, lr=0.1))


def test_checkpoint_of_another_network_is_refused(tmp_path):
    """As after an update that changed the network of a recipe."""
    trainer(tmp_path).run("first")
    other = Regression()
    other.model.layers[0] = nn.Conv2d(2, 4, 3)
    with pytest.raises(checkpoint.CheckpointError, match=r"another network .* Delete it"):
        trainer(tmp_path, task=other)


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty", "deep"])
def test_damaged_checkpoint_says_what_to_do(tmp_path, damage):
    trainer(tmp_path).run("first")
    path = tmp_path / CHECKPOINT
    content = {"truncated": path.read_bytes()[:-100], "foreign": b"{}" * 50, "empty": b""}
    content["deep"] = (10**5).to_bytes(8, "little") + b"[" * 10**5
    path.write_bytes(content[damage])
    with pytest.raises(checkpoint.CheckpointError, match="Delete it to start again"):
        trainer(tmp_path)


def test_a_folder_in_place_of_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(checkpoint.CheckpointError, match=r"is a folder.*Give a file in it"):
        checkpoint.read(tmp_path)


def test_one_flipped_bit_is_refused_or_harmless(tmp_path):
    """Anywhere in the file: lengths, names, facts, digest, values."""
    path = tmp_path / "file"
    tensors = {"a": torch.randn(20), "b": torch.arange(6).view(2, 3), "c": torch.tensor(True)}
    facts = {"step": 3, "history": [{"loss": 0.5}]}
    checkpoint.write(path, tensors, facts)
    content = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    places = torch.randperm(8 * len(content), generator=generator)[:1000].tolist()
    refused = 0
    for place in places:
        spoilt = bytearray(content)
        spoilt[place // 8] ^= 1 << place % 8
        path.write_bytes(spoilt)
        try:
            again, said = checkpoint.read(path)
        except checkpoint.CheckpointError:
            refused += 1
        else:
            assert said == facts
            assert_same(again, tensors)
    assert refused > 900


@pytest.mark.parametrize("facts", [None, {"facts": "[1]"}, {"facts": "{}", "format": "other"}])
def test_a_file_of_tensors_that_is_no_checkpoint_is_refused(tmp_path, facts):
    path = tmp_path / CHECKPOINT
    path.write_bytes(safetensors.torch.save({"a": torch.ones(2)}, metadata=facts))
    with pytest.raises(checkpoint.CheckpointError, match="not a checkpoint of ours"):
        trainer(tmp_path)


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    checkpoint.write(tmp_path / CHECKPOINT, {"a": torch.ones(2)}, {"line": {}})
    with pytest.raises(checkpoint.CheckpointError, match="belongs to another run"):
        trainer(tmp_path)


def test_a_full_disk_is_told_with_the_path_and_leaves_nothing(tmp_path, monkeypatch):
    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*checkpoint\.safetensors"):
        trainer(tmp_path).run("full")
    assert not list(tmp_path.iterdir())


def test_missing_checkpoint_says_so(tmp_path):
    with pytest.raises(checkpoint.CheckpointError, match="There is no checkpoint"):
        checkpoint.read(tmp_path / "nothing")


def test_checkpoint_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    checkpoint.write(path, {"a": torch.ones(2)}, {"fact": 1})

    def crash(*arguments):
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        checkpoint.write(path, {"a": torch.zeros(2)}, {"fact": 2})
    tensors, facts = checkpoint.read(path)
    assert facts == {"fact": 1}
    assert torch.equal(tensors["a"], torch.ones(2))


# -- what a plan promises --------------------------------------------------------------------------


def test_seed_decides_everything(tmp_path):
    ends = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        trainer(tmp_path / name, seed=seed).run(name)
        ends.append(checkpoint.read(tmp_path / name / CHECKPOINT)[0])
    assert_same(ends[1], ends[0])
    assert any(not torch.equal(ends[2][name], one) for name, one in ends[0].items())


def test_one_cycle_rises_to_the_peak_and_falls_to_nothing():
    plan = replace(PLAN, steps=100)
    rates = [plan.lr_at(step) for step in range(100)]
    assert max(rates) == pytest.approx(plan.lr)
    assert rates.index(max(rates)) == 20
    assert rates[0] == pytest.approx(0.04 * plan.lr)
    assert rates[-1] < 0.001 * plan.lr
    assert replace(plan, schedule="constant").lr_at(50) == plan.lr


class Scripted(Regression):
    """Validation errors as written."""

    def __init__(self, errors):
        super().__init__()
        self.errors = list(errors)

    def validate(self, model):
        return {"error": self.errors.pop(0)}


def test_the_best_validated_parameters_are_kept(tmp_path):
    plan = replace(PLAN, validate_every=3)
    one = trainer(tmp_path, plan=plan, task=Scripted([3.0, 1.0, 2.0, 2.0]))
    state = one.run("best")
    assert state.best["step"] == 6
    shorter = trainer(tmp_path / "to 6", plan=plan, task=Scripted([3.0, 1.0, 9.0, 9.0]))
    shorter.run("as far as the best")
    assert_same(one.model.state_dict(), shorter.model.state_dict())


def test_patience_stops_early(tmp_path):
    plan = replace(PLAN, validate_every=1, patience=2)
    state = trainer(tmp_path, plan=plan, task=Scripted([3.0, 1.0, 2.0, 2.0, 0.0])).run("early")
    assert state.step == 4
    assert state.best["step"] == 2


def test_average_follows_the_parameters(tmp_path):
    one = trainer(tmp_path, plan=replace(PLAN, steps=1, average=0.9, validate_every=1))
    before = one.average.layers[0].weight.clone()
    one.run("one step")
    now = checkpoint.under("model", checkpoint.read(tmp_path / CHECKPOINT)[0])["layers.0.weight"]
    expected = before + (1 - 0.1) * (now - before)  # the first steps count in full
    assert torch.allclose(one.average.layers[0].weight, expected, atol=1e-7)


def test_log_variance_is_that_of_the_gradients(tmp_path):
    """Entries of constant expectation and known noise; a long run of Adam's moments finds it."""

    class Noisy(Regression):
        def __init__(self):
            super().__init__()
            self.model = NoiseModel()

        def validate(self, model):
            return {"error": 0.0}

    class NoiseModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2000))

        def forward(self, x):
            return (self.weight * (1 + 3 * torch.randn(2000))).sum()

    plan = Plan(steps=300, batch=4, lr=1e-3, validate_every=300)
    state = trainer(tmp_path, plan=plan, task=Noisy()).run("noise")
    # The mean over ten steps keeps a part of the variance, which its square takes away.
    assert state.best["log_variance"] == pytest.approx(torch.tensor(9.0).log().item(), abs=0.15)


def test_batches_that_do_not_divide_among_processes_are_refused(tmp_path):
    class TwoProcesses:
        world_size = 2

    with pytest.raises(ConfigError, match="does not divide among 2 processes"):
        Trainer(
            Regression(),
            replace(PLAN, batch=5),
            seed=0,
            folder=tmp_path,
            fabric=TwoProcesses(),  # pyright: ignore
            identity={},
            checkpoint_seconds=0.0,
        )


def test_tensorboard_logs_are_written_with_a_flag(tmp_path):
    pytest.importorskip("tensorboard")
    trainer(tmp_path, log_folder=tmp_path / "logs").run("logged")
    assert list((tmp_path / "logs").glob("events.*"))


ONE_AFTER_THE_OTHER = """
import json, sys
from neuralsort.experiments.cli import main

for options in json.loads(sys.argv[1]):
    assert main(options) == 0
    print("--- done", flush=True)
"""

# The paper's network has no batch norm, so that halves of a batch add up to the whole. Adam makes
# steps of rounding errors in small gradients, so that it takes float64 to compare.
LIKE_ONE = ["train", "sort", *TINY, "--steps", "3", "--recipe", "paper", "--tau", "1"]
LIKE_ONE += ["--precision", "64-true"]
WITH_BATCH_NORM = ["train", "sort", *TINY, "--steps", "40", "--patience", "1"]
WITH_BATCH_NORM += ["--checkpoint-seconds", "0.02"]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Both runs in the same two processes, which take seconds to start; where, and what is said."""
    folder = tmp_path_factory.mktemp("two")
    runs = {"like one": LIKE_ONE, "with batch norm": WITH_BATCH_NORM}
    options = [
        [*chosen, "--run", str(folder / name), "--results", str(folder / "results")]
        for name, chosen in runs.items()
    ]
    script = folder / "script.py"
    script.write_text(ONE_AFTER_THE_OTHER)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, str(script), json.dumps(options)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_two_processes_train_as_one_with_the_same_batch(two_processes, tmp_path):
    there, _ = two_processes
    results = ["--results", str(tmp_path / "results")]
    assert cli.main([*LIKE_ONE, *results, "--run", str(tmp_path / "one")]) == 0
    a, b = (checkpoint.read(one / MODEL)[0] for one in (tmp_path / "one", there / "like one"))
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.allclose(tensor, b[name], rtol=0, atol=1e-10), name
    _, line = finished(there / "like one")
    assert line.config["processes"] == 2


def test_two_processes_agree_on_checkpoints_and_on_when_to_stop(two_processes):
    """With batch norm, whose statistics differ between processes, and clocks that do too."""
    there, said = two_processes
    _, line = finished(there / "with batch norm")
    assert line.config["processes"] == 2
    assert said.count("exact_match") == 2  # by one process for each of the runs


def test_parameters_that_are_not_finite_are_no_result(tmp_path):
    """Though a validation that does not look at them may be finite."""
    task = Regression()
    task.validate = lambda model: {"error": 1.0}
    with torch.no_grad():
        task.model.layers[1].running_mean.fill_(torch.inf)  # no loss in training sees it
    with pytest.raises(Diverged, match=r"before step 4: a parameter .* Lower --lr"):
        trainer(tmp_path, task=task).run("blind")


def test_diverging_says_what_to_try(tmp_path):
    with pytest.raises(Diverged, match=r"diverged at step \d+.*Lower --lr"):
        trainer(tmp_path, plan=replace(PLAN, lr=1e30, optimizer="sgd")).run("too fast")
