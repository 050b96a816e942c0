"""Sorting inside gradient-based learning, for TensorFlow: `import neuralsort.tf as ns`."""

try:
    import keras as _keras  # noqa: F401 - here to say what to do where it is missing
    import tensorflow as _tensorflow  # noqa: F401
except ImportError as missing:
    raise ImportError(
        "neuralsort.tf needs TensorFlow and Keras, which are not installed: run "
        'pip install "neuralsort[tf]" (in a clone: pip install ".[tf]")'
    ) from missing

from .._blur import Blur
from .distributions import PlackettLuce, stochastic_neuralsort
from .gradients import straight_through
from .layers import NeuralSort
from .noise import sample_gumbel
from .relaxations import neuralsort, permutation

__all__ = [
    "Blur",
    "NeuralSort",
    "PlackettLuce",
    "neuralsort",
    "permutation",
    "sample_gumbel",
    "stochastic_neuralsort",
    "straight_through",
]
