"""LETOR's MQ2008: lists of documents with graded relevance, in five folds."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .downloads import DataError, data_directories
from .images import SPLITS

FOLDS = 5
FEATURES = 46


@dataclass(frozen=True)
class Queries:
    """Padded lists of documents.

    Attributes:
        features: `(queries, longest, FEATURES)`.
        relevance: `(queries, longest)`: 0, 1 or 2.
        mask: `(queries, longest)`. True where there is a document.
    """

    features: Tensor
    relevance: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return len(self.relevance)

    def __getitem__(self, chosen: Tensor) -> "Queries":
        """Some queries, as long as the longest of them."""
        mask = self.mask[chosen]
        longest = int(mask.sum(-1).max())
        return Queries(
            self.features[chosen, :longest], self.relevance[chosen, :longest], mask[:, :longest]
        )

    @classmethod
    def padded(cls, lists: list[tuple[Tensor, Tensor]]) -> "Queries":
        """Lists of (features, relevance), one pair per query."""
        features, relevance = (
            pad_sequence(list(part), batch_first=True) for part in zip(*lists, strict=True)
        )
        counts = torch.tensor([len(part) for _, part in lists])
        return cls(features, relevance, torch.arange(relevance.shape[1]) < counts.unsqueeze(-1))


def parts_of_fold(fold: int) -> tuple[tuple[int, ...], int, int]:
    """Which of the parts 1 to 5 train, choose and test: fold 1 is (1, 2, 3), 4, 5."""
    turned = [(fold - 1 + i) % FOLDS + 1 for i in range(FOLDS)]
    return tuple(turned[:3]), turned[3], turned[4]


def load_fold(fold: int, data_dir: Path | None = None) -> dict[str, Queries]:
    """The queries of the three splits, features standardised by the training documents.

    Raises:
        DataError: If a part is not to be found.
    """
    train, validation, test = parts_of_fold(fold)
    folder = _folder(data_dir)
    pieces = [
        Queries.padded([pair for part in parts for pair in read_letor(folder / f"S{part}.txt")])
        for parts in (train, (validation,), (test,))
    ]
    documents = pieces[0].features[pieces[0].mask]
    mean, sd = documents.mean(0), documents.std(0).clamp(min=1e-6)
    scaled = (Queries((one.features - mean) / sd, one.relevance, one.mask) for one in pieces)
    return dict(zip(SPLITS, scaled, strict=True))


def read_letor(path: Path) -> Iterator[tuple[Tensor, Tensor]]:
    """Features and relevance of each query of a file in LETOR's format, which is SVMlight's.

    Raises:
        DataError: If it is in another.
    """
    from sklearn import datasets

    load: Any = datasets.load_svmlight_file  # whose stubs know its defaults only
    try:
        found: Any = load(str(path), query_id=True, zero_based=False, dtype=np.float32)
    except ValueError as error:
        raise DataError(f"{path} is not in LETOR's format ({error}). Get it again.") from None
    features, relevance, queries = found
    starts = np.flatnonzero(np.diff(queries)) + 1  # the documents of a query are together
    rows = np.split(features.toarray(), starts)
    for documents, grades in zip(rows, np.split(relevance, starts), strict=True):
        yield torch.from_numpy(documents), torch.from_numpy(grades).float()


def _folder(data_dir: Path | None) -> Path:
    places = [one / "letor" / "MQ2008" for one in data_directories(data_dir)]
    for place in places:
        if all((place / f"S{part}.txt").is_file() for part in range(1, FOLDS + 1)):
            return place
    looked = ", ".join(map(str, places)) or "no folder (none was named)"
    raise DataError(
        f"MQ2008 is missing: looked for S1.txt to S5.txt in {looked}. Get LETOR 4.0 from its "
        "authors, put the five parts into `letor/MQ2008`, and name the folder above with "
        "--data-dir or NEURALSORT_DATA."
    )
