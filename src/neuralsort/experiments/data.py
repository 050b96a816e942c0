"""Digit images, where they come from, and the sequences of large numbers made of them."""

import gzip
import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .randomness import generator_for

SPLITS = ("train", "validation", "test")
SOURCES = ("digits", "mnist")
TEST_SEQUENCES = 10_000
VALIDATION_SEQUENCES = 2_000

_MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_MNIST_FILES = {
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}


class DataError(Exception):
    """Data that is missing or not what it should be; the message says what to do."""


# -- files -----------------------------------------------------------------------------------------


def data_directories(data_dir: Path | None) -> list[Path]:
    """Where files are looked for before anything is downloaded: the option, then the variable."""
    named = [data_dir, os.environ.get("NEURALSORT_DATA")]
    return [Path(one).expanduser() for one in named if one]


def mnist_files(data_dir: Path | None = None, *, download: bool = True) -> dict[str, Path]:
    """The four files of MNIST, checked; downloaded into the user's cache where none are given.

    Args:
        data_dir: A folder that holds `mnist/`, or the files themselves.
        download: Whether to fetch what is not there.

    Raises:
        DataError: If a file is corrupt, or missing and not to be had.
    """
    found = {}
    for name, digest in _MNIST_FILES.items():
        places = [
            folder / part / name for folder in data_directories(data_dir) for part in ("mnist", "")
        ]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            path = _download(name, digest, places) if download else _cached(name, digest, places)
        found[name] = _checked(path, digest)
    return found


def _checked(path: Path, digest: str) -> Path:
    came = hashlib.sha256(path.read_bytes()).hexdigest()
    if came != digest:
        raise DataError(
            f"{path} is not the file it should be: SHA-256 {came[:12]}..., expected "
            f"{digest[:12]}... It is corrupt or something else; delete it and run "
            "`neuralsort data fetch`, or point --data-dir to a good copy."
        )
    return path


def _missing(name: str, places: list[Path], why: str) -> DataError:
    looked = ", ".join(str(place.parent) for place in places) or "no folder (none was named)"
    return DataError(
        f"{name} is missing: looked in {looked}; {why} Put the four MNIST files into a folder "
        "`mnist` and name its parent with --data-dir or NEURALSORT_DATA; `--data digits` needs no "
        "download."
    )


def _cache() -> Path:
    import pooch

    return Path(pooch.os_cache("neuralsort")) / "mnist"


def _cached(name: str, digest: str, places: list[Path]) -> Path:
    path = _cache() / name
    if not path.is_file():
        raise _missing(name, [*places, path], "it was not downloaded before.")
    return path


def _download(name: str, digest: str, places: list[Path]) -> Path:
    import pooch

    failures = []
    for mirror in _MNIST_MIRRORS:
        try:
            return Path(
                pooch.retrieve(mirror + name, f"sha256:{digest}", fname=name, path=_cache())
            )
        except Exception as error:  # whatever a mirror does, the next may be better
            failures.append(f"{mirror}: {error}")
    raise _missing(name, places, f"the download failed ({'; '.join(failures)}).")


def read_idx(path: Path) -> Tensor:
    """Reads one gzipped IDX file of bytes, MNIST's format: a magic number, sizes, values."""
    raw = gzip.decompress(path.read_bytes())
    zero, kind, rank = struct.unpack(">HBB", raw[:4])
    if zero or kind != 8:
        raise DataError(f"{path} is not an IDX file of bytes. Fetch it again.")
    shape = struct.unpack(f">{rank}I", raw[4 : 4 + 4 * rank])
    return torch.frombuffer(bytearray(raw[4 + 4 * rank :]), dtype=torch.uint8).view(shape)


# -- digits ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Digits:
    """The images of one split, in the order of their classes.

    Attributes:
        images: `(N, height, width)` bytes.
        starts: `(10,)`. Where each class begins.
        counts: `(10,)`. How many images each class has.
    """

    images: Tensor
    starts: Tensor
    counts: Tensor

    @classmethod
    def of(cls, images: Tensor, labels: Tensor) -> "Digits":
        """Arranges images by class."""
        counts = torch.bincount(labels, minlength=10)
        return cls(images[labels.argsort(stable=True)], counts.cumsum(0) - counts, counts)


def load(source: str, data_dir: Path | None = None) -> dict[str, Digits]:
    """The three splits of a source of digits; no image is in two of them.

    Args:
        source: `"mnist"`, 50,000 / 10,000 / 10,000 images of 28 x 28, or `"digits"`, the 1,797
            images of 8 x 8 that ship with scikit-learn, split 70 : 10 : 20 within each class.
        data_dir: Where to look for files first.
    """
    if source == "mnist":
        images = mnist_files(data_dir)
        x, y, test_x, test_y = (read_idx(images[name]) for name in _MNIST_FILES)
        parts = ((x[:50_000], y[:50_000]), (x[50_000:], y[50_000:]), (test_x, test_y))
        return {name: Digits.of(*part) for name, part in zip(SPLITS, parts, strict=True)}
    if source == "digits":
        return _embedded_digits()
    raise DataError(f"There is no data {source!r}. Choose one of: {', '.join(SOURCES)}.")


def _embedded_digits() -> dict[str, Digits]:
    from sklearn.datasets import load_digits

    pixels, target = load_digits(return_X_y=True)
    images = torch.as_tensor(pixels * (255 / 16)).round().to(torch.uint8).view(-1, 8, 8)
    labels = torch.as_tensor(target)
    shuffled = torch.randperm(len(labels), generator=generator_for("digits", "split"))
    chosen: dict[str, list[Tensor]] = {name: [] for name in SPLITS}
    for label in range(10):
        members = shuffled[labels[shuffled] == label]
        edges = [int(share * len(members)) for share in (0.7, 0.8)]
        for name, part in zip(SPLITS, members.tensor_split(edges), strict=True):
            chosen[name].append(part)
    return {
        name: Digits.of(images[torch.cat(parts)], labels[torch.cat(parts)])
        for name, parts in chosen.items()
    }


# -- sequences of large numbers --------------------------------------------------------------------


@dataclass(frozen=True)
class Sequences:
    """Lists of large numbers, kept as indices of digit images until somebody looks at them.

    Attributes:
        digits: Where the images are.
        index: `(lists, n, l)`. The image of each decimal digit, leading zeros included.
        values: `(lists, n)`. The numbers.
    """

    digits: Digits
    index: Tensor
    values: Tensor

    @classmethod
    def draw(
        cls, digits: Digits, lists: int, n: int, places: int, generator: torch.Generator
    ) -> "Sequences":
        """Numbers uniform in [0, 10^l - 1], each decimal digit a uniform image of its class."""
        values = torch.randint(10**places, (lists, n), generator=generator)
        powers = 10 ** torch.arange(places - 1, -1, -1)
        decimals = values.unsqueeze(-1) // powers % 10  # (lists, n, l)
        chance = torch.rand(decimals.shape, generator=generator, dtype=torch.float64)
        within = (chance * digits.counts[decimals]).long()
        return cls(digits, digits.starts[decimals] + within, values)

    @classmethod
    def fixed(cls, digits: Digits, split: str, lists: int, n: int, places: int) -> "Sequences":
        """The same sequences for everybody: they depend on the split and the sizes alone."""
        return cls.draw(digits, lists, n, places, generator_for("fixed", split, n, places))

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> "Sequences":
        return replace(self, index=self.index[part], values=self.values[part])

    def chunks(self, lists: int) -> Iterator["Sequences"]:
        """Consecutive parts of at most so many lists."""
        return (self[start : start + lists] for start in range(0, len(self), lists))

    def images(self) -> Tensor:
        """`(lists, n, height, l * width)` in [0, 1]: the digits of a number side by side."""
        cells = self.digits.images[self.index]  # (lists, n, l, height, width)
        return cells.movedim(-3, -2).flatten(-2).float() / 255

    def order(self) -> Tensor:
        """`(lists, n)`. What sorts each list, largest first; equal numbers stay in place."""
        return self.values.argsort(dim=-1, descending=True, stable=True)
