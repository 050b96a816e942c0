"""The example that fits strengths to rankings, against another solver on the same data."""

import pytest

from examples import fit_rankings as example


@pytest.mark.parametrize("places", [20, 5])
def test_fit_is_the_maximum_likelihood_solution(places):
    pytest.importorskip("choix")
    strengths, rankings = example.simulate(5000, 20, seed=0)
    ours = example.fit(rankings[:, :places], 20)
    assert (ours - example.fit_by_choix(rankings[:, :places], 20)).abs().max() < 1e-3
    assert (ours - strengths).abs().max() < 0.1


def test_the_example_prints_its_table(monkeypatch, capsys):
    pytest.importorskip("choix")
    monkeypatch.setattr(
        "sys.argv", ["fit_rankings", "--rankings", "200", "--items", "5", "--top", "2"]
    )
    example.main()
    printed = capsys.readouterr().out
    assert "200 rankings of 5 items" in printed
    assert "distance from choix" in printed
