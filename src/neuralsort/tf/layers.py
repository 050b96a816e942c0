"""NeuralSort as a Keras layer: it stores options and calls the function, which explains them."""

from typing import Any

import keras
import tensorflow as tf

from .._blur import Blur
from . import _checks
from .relaxations import neuralsort


@keras.saving.register_keras_serializable(package="neuralsort")
class NeuralSort(keras.layers.Layer):
    """`neuralsort` as a layer: scores `(batch, ..., n)` to relaxed permutations, largest first.

    It computes in the dtype of its input, whatever the policy of the model: in float16, scores of
    1e5 and more would all be infinite.

    Args:
        tau: Temperature, a number or a `Blur`, which is saved as the dictionary of its ranks.
        **options: Of every Keras layer, such as `name`.

    Raises:
        TypeError: If `tau` is not a number.
        ValueError: If `tau` is negative.
        RuntimeError: If Keras runs on another backend than TensorFlow.

    Example:
        >>> NeuralSort(tau=0.1)(tf.constant([[1.0, 3.0, 2.0]])).shape
        TensorShape([1, 3, 3])
    """

    def __init__(self, tau: float | Blur | dict = 1.0, **options: Any) -> None:
        if keras.backend.backend() != "tensorflow":
            raise RuntimeError(
                f"`neuralsort.tf` runs on TensorFlow, but Keras runs on {keras.backend.backend()}. "
                "Set KERAS_BACKEND=tensorflow before Keras is imported."
            )
        super().__init__(autocast=False, **options)
        self.tau = _checks.saved_tau(Blur(**tau) if isinstance(tau, dict) else tau)
        self.supports_masking = True

    def call(self, scores: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
        """The matrices `(batch, ..., n, n)`.

        Args:
            scores: `(batch, ..., n)`.
            mask: `(batch, ..., n)` boolean, True where the item exists. Where it is not given, the
                one that Keras hands down from layers such as `Masking`.
        """
        return neuralsort(scores, tau=self.tau, mask=mask)

    def compute_mask(self, scores: Any, previous_mask: Any = None) -> Any:
        """Which rows place an item that exists: the first m, for m items present."""
        if previous_mask is None:
            return None
        absent = keras.ops.logical_not(previous_mask)
        return keras.ops.equal(keras.ops.sort(keras.ops.cast(absent, "int32"), -1), 0)

    def compute_output_spec(self, scores: Any, mask: Any = None) -> keras.KerasTensor:
        """Shape and dtype of the matrices."""
        return keras.KerasTensor(self.compute_output_shape(scores.shape), dtype=scores.dtype)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """One more dimension, as long as the last."""
        return (*input_shape, input_shape[-1])

    def get_config(self) -> dict[str, Any]:
        """The options, for saving."""
        tau = {"ranks": self.tau.ranks} if isinstance(self.tau, Blur) else self.tau
        return {**super().get_config(), "tau": tau}
