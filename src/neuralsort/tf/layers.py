"""NeuralSort as a Keras layer: it stores options and calls the function, which explains them."""

from typing import Any

import keras
import tensorflow as tf

from .. import _options
from .relaxations import neuralsort


@keras.saving.register_keras_serializable(package="neuralsort")
class NeuralSort(keras.layers.Layer):
    """`neuralsort` as a layer: scores `(batch, ..., n)` to relaxed permutations, largest first.

    Args:
        tau: Temperature, a number.
        **options: Of every Keras layer, such as `name`.

    Raises:
        ValueError: If `tau` is negative.
        RuntimeError: If Keras runs on another backend than TensorFlow.

    Example:
        >>> NeuralSort(tau=0.1)(tf.constant([[1.0, 3.0, 2.0]])).shape
        TensorShape([1, 3, 3])
    """

    def __init__(self, tau: float = 1.0, **options: Any) -> None:
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(
                f"`neuralsort.tf` runs on TensorFlow, but Keras runs on {keras.backend.backend()}. "
                "Set KERAS_BACKEND=tensorflow before Keras is imported."
            )
        super().__init__(**options)
        self.tau = _options.temperature(tau)

    def call(self, scores: tf.Tensor) -> tf.Tensor:
        """The matrices `(batch, ..., n, n)`."""
        return neuralsort(scores, tau=self.tau)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """One more dimension, as long as the last."""
        return (*input_shape, input_shape[-1])

    def get_config(self) -> dict[str, Any]:
        """The options, for saving."""
        return {**super().get_config(), "tau": self.tau}
