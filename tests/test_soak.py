"""Some of the problems of `make soak`, in every run of the tests."""

import pytest

from tests import soak
from tests.portions import some_of


@pytest.mark.parametrize("seed", some_of(range(60), *range(16)))
def test_rows_of_a_random_problem_are_those_of_the_equations(seed):
    problem = soak.check(soak.make(seed, items=100_000))
    assert not problem.faults, f"{problem.story}\n" + "\n".join(problem.faults)


def test_every_kind_of_answer_is_looked_at(monkeypatch):
    """At a temperature that is off by a tenth, each of them is found wrong."""
    right = soak.Problem.relaxed
    monkeypatch.setattr(soak.Problem, "relaxed", lambda p, s, tau: right(p, s, 1.1 * tau))
    faults = [x for seed in range(6) for x in soak.check(soak.make(seed, items=5_000)).faults]
    found = {fault.split(" is off")[0].split(": ")[-1] for fault in faults}
    values = {"value", "top", "entropy", "transpose", "log_prob", "rank", "membership"}
    assert found >= values | {"gradient", "gradient to tau", "gradient to the payload"}
