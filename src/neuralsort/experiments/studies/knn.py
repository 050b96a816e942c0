"""The study of nearest neighbours: embed images so that neighbours have the same label."""

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neuralsort.neighbors import voting

from ..data.augmentation import Augmentation
from ..data.images import Images, load_images
from ..data.randomness import generator_for, seed_for
from ..networks import embeddings
from ..networks.orderings import NEURALSORT, Tau
from ..training.plan import ConfigError, Plan
from .intervals import wilson
from .objectives import Classification, Fixed, NeighbourLoss, Reconstruction
from .study import StudyConfig, Tested
from .votes import KS, Votes, embed, pictures, project

UNTRAINED = ("pixels", "pca")

SAMPLES = {"paper": 5, "fast": 2}
"""Of Plackett-Luce for every query."""

PAPER_TAUS = (1.0, 16.0, 64.0)
FAST_TAU = 1.0
VALIDATION_INDEX = 10_000
"""Training images that neighbours are looked for among while training; in tests it is all."""

WHITENING = 1_000
"""Training images, or somewhat fewer, that tell the first layer how patches vary."""

PROJECTED = 1_000
"""Points of the projection that a line keeps for a figure."""


@dataclass(frozen=True)
class KNNConfig(StudyConfig):
    """Learn an embedding of images in which the nearest neighbours have the same label."""

    data: Literal["digits", "mnist", "fashion-mnist", "cifar10"] = "digits"
    """Source of the images; the first ships with scikit-learn and needs no download."""
    method: Literal[
        "neuralsort", "stochastic_neuralsort", "pixels", "pca", "autoencoder", "cross_entropy"
    ] = "neuralsort"
    """What neighbours are looked for in; `cross_entropy` classifies without neighbours."""
    recipe: Literal["fast", "paper"] = "fast"
    """`fast`: ours, for a CPU; `paper`: the paper's network and optimisation."""
    k: int = 9
    """Neighbours that the loss counts."""
    scale: float = 1.0
    """What the loss multiplies points by, beside noise that stays as it is."""

    sizes: ClassVar[tuple[str, ...]] = ("k",)
    rare: ClassVar[tuple[str, ...]] = ("scale",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ConfigError(f"--scale must be a positive number, got {self.scale}.")
        if self.scale != 1 and self.method not in NEURALSORT:
            raise ConfigError(
                "--scale is for methods that train with a loss of neighbours, and "
                f"{self.method} does not. Leave it out."
            )


class ImageTask:
    """Batches of distinct training images, and the share of validation images that are right.

    Args:
        model: `model(images, labels)` is the loss.
        config: Method and seed.
        images: The splits.
        batch: Images at a time.
    """

    metric = "accuracy"
    larger_is_better = True

    def __init__(
        self, model: nn.Module, config: KNNConfig, images: dict[str, Images], batch: int
    ) -> None:
        self.model, self.config, self.size = model, config, batch
        self.train, self.validation = images["train"], images["validation"]
        self.epoch, self.order = -1, torch.empty(0)
        # Some splits are in the order of their classes.
        generator = generator_for("index", len(self.train))
        some = torch.randperm(len(self.train), generator=generator)[:VALIDATION_INDEX]
        self.index = self.train[some]

    def batch(self, step: int, part: slice) -> tuple[Tensor, ...]:
        """Images and labels of a part of the batch of that step; an epoch sees every image once."""
        steps = max(1, len(self.train) // self.size)
        epoch, place = divmod(step, steps)
        if epoch != self.epoch:
            generator = generator_for(self.config.seed, "epoch", epoch)
            self.epoch, self.order = epoch, torch.randperm(len(self.train), generator=generator)
        chosen = self.train[self.order[place * self.size : (place + 1) * self.size][part]]
        return chosen.floats(), chosen.labels

    def validate(self, model: Any) -> dict[str, float]:
        """Accuracy on the validation set, with a part of the training set as the index."""
        asked = embed(model, self.validation)
        if self.config.method == "cross_entropy":
            return {"accuracy": _right(asked, self.validation)}
        points, k = embed(model, self.index), self.config.k
        votes = Votes.of(points, self.index, asked, self.validation, most=k)
        return {"accuracy": votes.accuracy(k, "uniform")}


PAPER_NETWORK = {
    "digits": embeddings.PaperEmbedding,
    "mnist": embeddings.PaperEmbedding,
    "fashion-mnist": embeddings.ResNet18,
    "cifar10": embeddings.ResNet18,
}
FAST_WIDTH = {"digits": 8, "mnist": 16, "fashion-mnist": 24, "cifar10": 32}
FAST_EPOCHS = {"digits": 80, "mnist": 11, "fashion-mnist": 20, "cifar10": 38}
FAST_AUGMENTATION = {
    "digits": Augmentation(turn=True),
    "mnist": Augmentation(turn=True),
    "fashion-mnist": Augmentation(flip=True, shift=2, cutout=8),
    "cifar10": Augmentation(flip=True, shift=4, cutout=8),
}
TRAIN_SIZE = {"digits": 1_252, "mnist": 50_000, "fashion-mnist": 50_000, "cifar10": 45_000}


class KNNStudy:
    """The study as the engine runs it."""

    name = "knn"
    config = KNNConfig

    def taus(self, config: KNNConfig) -> tuple[float, ...]:
        """The temperatures that the recipe tries; what does not sort has none."""
        if config.method not in NEURALSORT:
            return (1.0,)
        return PAPER_TAUS if config.recipe == "paper" else (FAST_TAU,)

    def plan(self, config: KNNConfig) -> Plan:
        """How the recipe trains."""
        count = TRAIN_SIZE[config.data]
        # Runs go side by side, with a thread each, where one thread is enough.
        threads = 2 if config.data == "cifar10" else 1
        if config.method == "autoencoder":
            epoch = count // 128
            steps, every = 30 * epoch, 3 * epoch
            return Plan(steps=steps, batch=128, lr=1e-3, validate_every=every, threads=threads)
        if config.recipe == "paper":
            # 100 queries and 100 candidates; the paper's code passes 200 times over the queries.
            epoch = count // 100
            return Plan(
                steps=200 * epoch,
                batch=200,
                lr=1e-4,
                optimizer="sgd",
                validate_every=epoch,
                threads=threads,
            )
        batch = 128 if config.data == "digits" else 256
        steps = FAST_EPOCHS[config.data] * (count // batch)
        return Plan(
            steps=steps,
            batch=batch,
            lr=4e-3,
            optimizer="adamw",
            weight_decay=0.05,
            schedule="one_cycle",
            clip=5.0,
            average=0.995,
            validate_every=-(-steps // 5),
            threads=threads,
        )

    def memory(self, config: KNNConfig, plan: Plan) -> int:
        """Bytes of the floats of a batch."""
        return 64 * 4 * 32 * 32 * plan.batch

    def load(self, config: KNNConfig) -> dict[str, Images]:
        """The images of the three splits."""
        return load_images(config.data, config.data_dir)

    def task(
        self, config: KNNConfig, splits: dict[str, Images], tau: float, plan: Plan
    ) -> ImageTask:
        """What is trained at one temperature.

        Raises:
            ConfigError: If there are not so many neighbours.
        """
        images = len(splits["train"])
        batch = min(plan.batch, images)
        most = batch - batch // 2 if config.recipe == "paper" else batch - 1
        if config.method in NEURALSORT and batch < 2:
            raise ConfigError(f"--batch must be at least 2 to have neighbours in it, got {batch}.")
        if config.method in NEURALSORT and config.k > most:
            raise ConfigError(
                f"--k must be at most {most}, the candidates of a query in a batch of {batch},"
                f" got {config.k}."
            )
        most = min(VALIDATION_INDEX, images)
        if config.method != "cross_entropy" and config.k > most:
            raise ConfigError(
                f"--k must be at most {most}, the images that validation looks at, got {config.k}."
            )
        model = self._model(config, splits["train"], config.tempered(tau, plan))
        return ImageTask(model, config, splits, plan.batch)

    def test(self, config: KNNConfig, model: Any, splits: dict[str, Images]) -> Tested:
        """Accuracy with the whole training set as the index; k and weights by validation."""
        model.eval()
        augment = self._augmentation(config)
        asked = embed(model, splits["test"], augment)
        if config.method == "cross_entropy":
            accuracy = _right(asked, splits["test"])
            return Tested(
                {"accuracy": accuracy}, {"accuracy": wilson(accuracy, len(asked))}, "images"
            )
        points = embed(model, splits["train"], augment)
        spare = embed(model, splits["validation"], augment)
        tried = Votes.of(points, splits["train"], spare, splits["validation"])
        choices = [(k, weights) for k in KS for weights in voting.WEIGHTS]
        k, weights = max(choices, key=lambda one: tried.accuracy(*one))
        found = Votes.of(points, splits["train"], asked, splits["test"])
        accuracy = found.accuracy(k, weights)
        metrics = {"accuracy": accuracy}
        metrics |= {f"accuracy_k{each}": found.accuracy(each, "uniform") for each in KS}
        extras: dict[str, Any] = {
            "chosen": {"k": k, "weights": weights, "validation": tried.accuracy(k, weights)}
        }
        if config.method in NEURALSORT:
            extras["queries"] = pictures(found, k, weights, splits)
            extras["projection"] = self._projection(config, model, splits, asked)
        return Tested(metrics, {"accuracy": wilson(accuracy, len(asked))}, "images", extras)

    def _projection(
        self, config: KNNConfig, model: nn.Module, splits: dict[str, Images], asked: np.ndarray
    ) -> dict[str, Any]:
        """Test images in the plane, embedded as before training and as after it."""
        torch.manual_seed(seed_for(config.seed, "parameters"))
        first = self._model(config, splits["train"], 1.0).eval().to(next(model.parameters()))
        step = max(1, len(asked) // PROJECTED)
        some = splits["test"][::step]
        return {
            "labels": some.labels.tolist(),
            "before": project(embed(first, some, self._augmentation(config))),
            "after": project(asked[::step]),
        }

    def facts(self, config: KNNConfig) -> dict[str, Any]:
        """Network, augmentation and loss."""
        augment = self._augmentation(config)
        fast = config.recipe == "fast"
        return {
            "network": self._network_name(config),
            "augmentation": asdict(augment),
            "views": "image and mirror image, averaged" if augment.flip else "image",
            "loss": ("minus log of the share" if fast else "minus the share")
            if config.method in NEURALSORT
            else config.method,
            "samples": self._samples(config),
            "index": "all training images",
            "scale": None if config.scale == 1 else config.scale,  # early versions knew no other
        }

    # -- networks ----------------------------------------------------------------------------------

    def _augmentation(self, config: KNNConfig) -> Augmentation:
        learns = config.method in (*NEURALSORT, "cross_entropy")
        if config.recipe == "paper" or not learns:
            return Augmentation()
        return FAST_AUGMENTATION[config.data]

    def _network_name(self, config: KNNConfig) -> str:
        if config.method in (*UNTRAINED, "autoencoder"):
            return config.method
        if config.recipe == "fast":
            return f"SmallNetwork of width {FAST_WIDTH[config.data]}"
        return PAPER_NETWORK[config.data].__name__

    def _samples(self, config: KNNConfig) -> int | None:
        return SAMPLES[config.recipe] if config.method == "stochastic_neuralsort" else None

    def _model(self, config: KNNConfig, train: Images, tau: Tau) -> nn.Module:
        _, channels, height, width = train.pixels.shape
        if config.method == "pixels":
            return Fixed(nn.Flatten())
        if config.method == "pca":
            whole = embeddings.PrincipalComponents(channels * height * width)
            return Fixed(whole.fit(train.floats()))
        if config.method == "autoencoder":
            if channels == 3:
                return Reconstruction(embeddings.ConvolutionalAutoencoder())
            return Reconstruction(embeddings.DenseAutoencoder(height * width))
        fast = config.recipe == "fast"
        if fast:
            network = embeddings.SmallNetwork(channels, height, FAST_WIDTH[config.data])
            # Some splits are in the order of their classes.
            network.white.fit(train[:: -(-len(train) // WHITENING)].floats())
        else:
            network = PAPER_NETWORK[config.data](channels, height)
        augment = self._augmentation(config)
        if config.method == "cross_entropy":
            scale = 8.0 if fast else 1.0
            return Classification(network, network.outputs, scale=scale, augment=augment)
        return NeighbourLoss(
            network,
            k=config.k,
            tau=tau,
            samples=self._samples(config),
            scale=config.scale,
            augment=augment,
            halves=not fast,
            logarithm=fast,
        )


def _right(logits: np.ndarray, images: Images) -> float:
    """The share of images whose label has the largest logit."""
    return float((logits.argmax(1) == images.labels.numpy()).mean())
