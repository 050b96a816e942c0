"""The example of conformal training: coverage as promised, smaller sets."""

from examples import conformal_digits as example


def test_the_example_covers_and_prints_its_table(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["conformal_digits", "--steps", "60", "--seeds", "1"])
    example.main()
    rows = [line.split("|") for line in capsys.readouterr().out.splitlines() if "| 0 |" in line]
    assert [row[2].strip() for row in rows] == ["cross-entropy", "small sets"]
    for row in rows:
        assert abs(float(row[3]) - 0.98) < 0.015  # a mean over a hundred splits
