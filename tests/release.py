"""`python -m tests.release`: builds the package and tries the wheel alone, one extra at a time.

Every trial has a new virtual environment with the wheel, the extra and nothing else of this
repository. What cannot be installed here, such as a framework without a build for this Python, is
told and left out; what installs must work. Run it with `make release-check`.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BARE = """
import neuralsort, neuralsort.play
assert neuralsort.play.PAGE.is_file(), neuralsort.play.PAGE
for room in ("torch", "jax", "tf"):
    try:
        __import__(f"neuralsort.{room}")
    except ImportError as error:
        assert "pip install" in str(error), error
    else:
        raise AssertionError(f"neuralsort.{room} came from somewhere else")
"""

TORCH = """
import torch, neuralsort.torch as ns
scores = torch.tensor([2.0, 5.0, 3.0, 3.2], requires_grad=True)
P = ns.neuralsort(scores, tau=0.5)
assert P.permutation().tolist() == [1, 3, 2, 0]
P.sort(scores)[1].backward()
assert scores.grad.isfinite().all() and scores.grad[3] > 0.5
long = torch.randn(2, 5000, requires_grad=True)
ns.soft_rank(long, tau=0.01).square().sum().backward()
assert long.grad.isfinite().all()
"""

JAX = """
import jax, jax.numpy as jnp, neuralsort.jax as ns
scores = jnp.array([2.0, 5.0, 3.0, 3.2])
P = jax.jit(ns.neuralsort)(scores, tau=0.5)
assert P.permutation().tolist() == [1, 3, 2, 0]
gradient = jax.grad(lambda s: ns.neuralsort(s, tau=0.5).sort(s)[1])(scores)
assert jnp.isfinite(gradient).all() and gradient[3] > 0.5
"""

TF = """
import tensorflow as tf, neuralsort.tf as ns
scores = tf.constant([[2.0, 5.0, 3.0, 3.2]])
assert ns.permutation(scores).numpy().tolist() == [[1, 3, 2, 0]]
assert ns.NeuralSort(tau=0.5)(scores).shape == (1, 4, 4)
"""

NEIGHBORS = """
from sklearn.datasets import load_iris
from neuralsort.neighbors import DifferentiableKNeighborsClassifier
X, y = load_iris(return_X_y=True)
model = DifferentiableKNeighborsClassifier(epochs=2, random_state=0).fit(X, y)
assert model.score(X, y) > 0.9
"""

EXPERIMENTS = """
import json, pathlib, subprocess, sysconfig, tempfile
command = str(pathlib.Path(sysconfig.get_path("scripts")) / "neuralsort")
with tempfile.TemporaryDirectory() as folder:
    sizes = "--n 3 --places 2 --steps 2 --batch 4 --test-lists 8 --validation-lists 8".split()
    subprocess.run([command, "train", "sort", *sizes], cwd=folder, check=True)
    line = json.loads((pathlib.Path(folder) / "results" / "sort.jsonl").read_text())
    assert line["study"] == "sort"
    subprocess.run([command, "report"], cwd=folder, check=True)
    assert (pathlib.Path(folder) / "report" / "index.html").is_file()
"""

RAY = """
import ray, neuralsort.experiments.reproduction.ray_tasks
"""


@dataclass(frozen=True)
class Trial:
    """One environment, and what has to work in it."""

    extra: str
    script: str
    oldest: tuple[str, ...] = ()
    """The oldest versions that `pyproject.toml` allows, for a second environment."""
    everywhere: bool = False
    """Also in the other Pythons that are found."""


PINNED_TORCH = re.findall(r"(?m)^torch==.*$", (ROOT / "constraints.txt").read_text())[0]
OLD_NUMBERS = ("scipy==1.11.2", "numpy==1.26.0", "joblib==1.3.0")

TRIALS = (
    Trial("", BARE, everywhere=True),
    Trial("jax", JAX, ("jax==0.5.0", "jaxlib==0.5.0", "numpy==1.26.0"), everywhere=True),
    # Only a build for CPUs: the usual one of Linux comes with gigabytes of CUDA.
    Trial("torch", TORCH, ("torch==2.7.0+cpu", "scipy==1.11.2", "numpy==1.26.0")),
    # With the torch that is pinned, so that it can be tried wherever the pinned one installs.
    Trial("neighbors", NEIGHBORS, (PINNED_TORCH, "scikit-learn==1.6.0", *OLD_NUMBERS)),
    Trial("experiments", EXPERIMENTS),
    Trial("ray", RAY),
    Trial("tf", TF, ("tensorflow==2.16.1", "keras==3.0.5")),
)


def run(*command: object, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs a command away from the repository, so that only what is installed can be imported."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=tempfile.gettempdir(),
        capture_output=quiet,
        text=True,
        check=False,
    )


def build(folder: Path) -> Path:
    """Builds sdist and wheel, and checks what they say about themselves."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT).check_returncode()
    run(sys.executable, "-m", "twine", "check", "--strict", *folder.iterdir()).check_returncode()
    return next(folder.glob("*.whl"))


def attempt(wheel: Path, trial: Trial, python: str, versions: tuple[str, ...]) -> str:
    """One trial in a new environment: `works`, `failed`, or why it could not be installed."""
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", folder).check_returncode()
        inside = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        target = f"{wheel}[{trial.extra}]" if trial.extra else str(wheel)
        install = [inside, "-m", "pip", "install", "--quiet", target, *versions]
        if not versions:
            install += ["--constraint", ROOT / "constraints.txt"]
        installed = run(*install, quiet=True)
        if installed.returncode:
            error = re.findall(r"ERROR: (.*)", installed.stderr) or [installed.stderr[-300:]]
            return f"cannot be installed here: {error[-1]}"
        done = run(inside, "-c", trial.script)
        return "failed" if done.returncode else "works"


def pythons() -> list[str]:
    """The Pythons that are found and answer, this one first."""
    names = (f"python3.{minor}" for minor in (10, 11, 12, 13, 14))
    here = f"python3.{sys.version_info.minor}"
    others = [found for name in names if name != here and (found := shutil.which(name))]
    # A version manager may have a command for a Python that is not switched on.
    answer = [path for path in others if run(path, "-c", "", quiet=True).returncode == 0]
    return [sys.executable, *answer]


def main() -> int:
    """Builds, then tries."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="extras to try; not given: all")
    only = parser.parse_args().only
    needed = 0  # failures, and what must install and does not: the pinned versions on this Python
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        results = []
        for trial in TRIALS:
            if only and trial.extra not in only:
                continue
            plans = [(python, ()) for python in (pythons() if trial.everywhere else pythons()[:1])]
            plans += [(sys.executable, trial.oldest)] if trial.oldest else []
            for python, versions in plans:
                what = f"[{trial.extra}] {Path(python).name} {' '.join(versions) or 'as pinned'}"
                result = attempt(wheel, trial, python, versions)
                must = python == sys.executable and not versions
                needed += result == "failed" or (must and result != "works")
                results.append(result)
                print(what, result, sep=": ", flush=True)
    works, failed = results.count("works"), results.count("failed")
    left = len(results) - works - failed
    print(f"{works} work, {failed} failed, {left} could not be installed here.")
    return bool(needed)


if __name__ == "__main__":
    sys.exit(main())
