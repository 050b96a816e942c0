"""The same lesson in three frameworks: each example learns to sort, within a few seconds."""

import importlib

import pytest

FRAMEWORKS = {"train_torch": "torch", "train_jax": "jax", "train_tf": "tensorflow"}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_example_learns(name, monkeypatch, capsys):
    pytest.importorskip(FRAMEWORKS[name])
    example = importlib.import_module(f"examples.{name}")
    monkeypatch.setattr("sys.argv", [name, "--steps", "120", "--lists", "32"])
    example.main()
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("items in the right place:")
    assert float(line.split(":")[1].split("%")[0]) > 60  # by chance 20
