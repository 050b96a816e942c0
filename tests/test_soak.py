"""Some of the problems of `make soak`, in every run of the tests."""

import pytest

from tests import soak


@pytest.mark.parametrize("seed", range(60))
def test_rows_of_a_random_problem_are_those_of_the_equations(seed):
    problem = soak.check(soak.make(seed, items=100_000))
    assert not problem.faults, f"{problem.story}\n" + "\n".join(problem.faults)
