"""How to train: optimiser, schedule, when to validate and when to stop."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from neuralsort.neighbors import training


class ConfigError(Exception):
    """An option that cannot be; the message says which, and what to give instead."""


@dataclass(frozen=True)
class Plan:
    """How to train.

    Attributes:
        steps: Updates of the parameters.
        batch: Lists or images in a batch, over all processes.
        lr: Learning rate, or the peak of it.
        optimizer: `"adam"`, `"adamw"` or `"sgd"` (momentum 0.9).
        weight_decay: Of the optimiser.
        schedule: `"constant"`, or `"one_cycle"`: up for a fifth of the steps, then down to 0.
        clip: Largest norm of the gradient; 0 for any.
        average: Decay of the moving average of the parameters, which is what is evaluated;
            0 for the parameters themselves.
        validate_every: Steps between validations.
        patience: Validations without a better one before stopping early; 0 for never.
        threads: Of the arithmetic: another number of them rounds otherwise.
        overlap: Lists that are made of the images of one: 1 for lists that share none. Images are
            read once, so more lists cost little.
    """

    steps: int
    batch: int
    lr: float
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    weight_decay: float = 0.0
    schedule: Literal["constant", "one_cycle"] = "constant"
    clip: float = 0.0
    average: float = 0.0
    validate_every: int = 500
    patience: int = 0
    threads: int = 1
    overlap: int = 1

    def lr_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0; a function, so there is no state to keep."""
        if self.schedule == "constant":
            return self.lr
        rise = max(1, self.steps // 5)
        if step < rise:
            return self.lr * (0.04 + 0.96 * (0.5 - 0.5 * math.cos(math.pi * step / rise)))
        return self.lr * (0.5 + 0.5 * math.cos(math.pi * (step - rise) / (self.steps - rise)))

    def make_optimizer(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser of that name."""
        kind = training.OPTIMIZERS[self.optimizer]
        # All parameters in one operation: there are many, and each is small.
        return kind(parameters, lr=self.lr, weight_decay=self.weight_decay, fused=True)
