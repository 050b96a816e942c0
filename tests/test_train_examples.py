"""The example in PyTorch learns to sort, within a few seconds; so must those beside it."""

import importlib


def learns(name, monkeypatch, capsys):
    """Runs an example for a few steps and compares what it prints with chance."""
    example = importlib.import_module(f"examples.{name}")
    monkeypatch.setattr("sys.argv", [name, "--steps", "120", "--lists", "32"])
    example.main()
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("items in the right place:")
    assert float(line.split(":")[1].split("%")[0]) > 60  # by chance 20


def test_the_example_learns(monkeypatch, capsys):
    learns("train_torch", monkeypatch, capsys)
