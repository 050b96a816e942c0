"""One list must not touch another in JAX and TensorFlow: `test_isolation.py` asks it of torch."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.frameworks import jax, jnp, nj, ntf, quick_jit, tf
from tests.hostile import HOSTILE, Lists, lists_of
from tests.portions import some_of

ROUNDING = 2e-5  # float32, over the largest magnitude of what is compared

METHODS: dict[str, Callable[..., Any]] = {
    "neuralsort": nj.neuralsort,
    "softsort": nj.softsort,
    "softsort_squared": functools.partial(nj.softsort, power=2.0),
    "lapsum": nj.lapsum,
    "sinkhorn_sort": functools.partial(nj.sinkhorn_sort, iterations=3),
    "bitonic_network": functools.partial(nj.sorting_network, kind="bitonic"),
}
SHORT = ("lapsum", "sinkhorn_sort", "bitonic_network")  # whose long lists take the matrix
ALONE, COPIES = "alone", "among copies"
SORT = "sort"  # the smallest part


def cases() -> list:
    """Short lists alone, long ones among copies of themselves: one program instead of two.

    Every run asks a part of long lists, where the program that has all takes half a minute, and of
    what is much like another. NeuralSort is asked the rest by `softsort_squared`: the same code.
    """
    others = [name for name in METHODS if name != "neuralsort"]
    every_run = [
        ("neuralsort", 5, COPIES, True),
        *((name, 5, COPIES, name != "lapsum") for name in others),
        ("neuralsort", 600, COPIES, SORT),
        ("softsort_squared", 600, COPIES, True),  # the two powers differ in one line
    ]
    long = [
        ("neuralsort", 5, ALONE, True),
        *((name, 5, where, False) for name in METHODS for where in (ALONE, COPIES)),
        ("neuralsort", 600, COPIES, True),
        *((name, 600, COPIES, False) for name in ("neuralsort", "softsort", "softsort_squared")),
    ]
    return some_of([*every_run, *(case for case in long if case not in every_run)], *every_run)


def program_of(name: str, part: bool | str) -> Callable[[Lists], list[np.ndarray]]:
    """What P answers about the first list, and gradients to its scores and payload."""

    def ask(scores: Any, payload: Any, tau: Any, mask: Any, perm: Any) -> dict[str, Any]:
        padded = METHODS[name](scores, tau=tau, mask=mask)
        if part == SORT:
            return {"sort": padded.sort(payload)}
        found = {
            "sort": padded.sort(payload),
            "log_prob": padded.log_prob(perm) if name not in SHORT else padded.rank(),
        }
        if part:
            return found
        whole = METHODS[name](scores, tau=tau)
        return found | {
            "transpose": padded.mT @ payload[..., None],
            "sort of the scores": whole.sort(scores),
            "product": whole @ payload[..., None],
            "rank": padded.rank(),
            "entropy": padded.entropy(),
            "soft_quantile": nj.soft_quantile(scores, 1.0, tau=tau, relax=METHODS[name])[..., None],
        }

    def total(*inputs: Any) -> tuple[Any, dict[str, Any]]:
        found = ask(*inputs)
        # A weight of 0 has no finite logarithm: those of present items alone.
        return sum(jnp.where(jnp.isfinite(v), v, 0.0).sum() for v in found.values()), found

    program = quick_jit(jax.grad(total, argnums=(0, 1), has_aux=True))

    def answers(lists: Lists) -> list[np.ndarray]:
        fields = (getattr(lists, field.name).numpy() for field in dataclasses.fields(lists))
        grads, found = program(*map(jnp.asarray, fields))
        return [np.asarray(x[0]) for x in (*found.values(), *grads)]

    return answers


def among_copies(lists: Lists) -> Lists:
    """The first list in place of all its neighbours."""
    fields = (getattr(lists, field.name) for field in dataclasses.fields(lists))
    return Lists(*(x[:1].expand_as(x).clone() for x in fields))


def assert_untouched(found: list[np.ndarray], alone: list[np.ndarray]) -> None:
    for one, other in zip(found, alone, strict=True):
        known = np.isfinite(other)
        assert known.any()
        np.testing.assert_array_equal(np.isfinite(one), known)
        scale = max(np.abs(other[known]).max(), 1e-3)
        assert np.abs(one[known] - other[known]).max() <= ROUNDING * scale


@pytest.mark.parametrize(("name", "n", "where", "part"), cases())
def test_a_list_does_not_know_its_neighbours(name, n, where, part):
    lists, answers = lists_of(n, HOSTILE, torch.float32), program_of(name, part)
    assert_untouched(
        answers(lists), answers(lists.alone() if where == ALONE else among_copies(lists))
    )


@pytest.mark.parametrize("n", [5, 40, 600])
def test_a_list_does_not_know_its_neighbours_in_tensorflow(n):
    def ask(lists: Lists) -> list[np.ndarray]:
        scores = tf.constant(lists.scores.numpy())
        with tf.GradientTape() as tape:
            tape.watch(scores)
            P = ntf.neuralsort(
                scores, tau=tf.constant(lists.tau.numpy()), mask=tf.constant(lists.mask.numpy())
            )
            loss = tf.reduce_sum(P * tf.linspace(0.5, 1.5, n)[None, None, :])
        return [P[0].numpy(), tape.gradient(loss, scores)[0].numpy()]

    lists = lists_of(n, HOSTILE, torch.float32)
    assert_untouched(ask(lists), ask(lists.alone()))
