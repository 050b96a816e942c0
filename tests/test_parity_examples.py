"""The same lesson in JAX and TensorFlow: each example learns to sort, as that in PyTorch does."""

import pytest

from tests.test_train_examples import learns

FRAMEWORKS = {"train_jax": "jax", "train_tf": "tensorflow"}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_example_learns(name, monkeypatch, capsys):
    pytest.importorskip(FRAMEWORKS[name])
    learns(name, monkeypatch, capsys)
