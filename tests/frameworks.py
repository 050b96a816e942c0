"""The three packages side by side, for tests that compare them. Skips where one is missing."""

import functools
import os
from typing import Any

import numpy as np
import pytest
import torch

import neuralsort.torch as nt

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
jax = pytest.importorskip("jax")
tf = pytest.importorskip("tensorflow")

import jax.numpy as jnp  # noqa: E402

import neuralsort.jax as nj  # noqa: E402
import neuralsort.tf as ntf  # noqa: E402

TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
"""Of weights and values in [0, 1], and of gradients over their largest entry."""

PACKAGES = {"torch": nt, "jax": nj, "tf": ntf}
MAKERS = {nt: torch.tensor, nj: jnp.asarray, ntf: tf.constant}


# Compiling takes nearly all the time of these tests, running nearly none.
quick_jit = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)


def of(ns: Any, x: Any) -> Any:
    """A tensor of the framework, of its working precision."""
    return MAKERS[ns](x)


def numpy_of(x: Any) -> np.ndarray:
    return np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, np.float64)


def assert_same(found: np.ndarray, wanted: np.ndarray, tolerance: float, what: str) -> None:
    """Within a tolerance, over the largest entry where that is above 1; NaN where NaN is wanted."""
    assert found.shape == wanted.shape, what
    known = ~np.isnan(wanted)
    assert (np.isnan(found) == ~known).all(), what
    if known.any():
        error = np.abs(found[known] - wanted[known]).max()
        bound = tolerance * max(1.0, np.abs(wanted[known]).max())
        assert error <= bound, f"{what}: error {error:.3g} is above {bound:.3g}"
