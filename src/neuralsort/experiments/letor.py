"""LETOR's MQ2008: lists of documents with graded relevance, in five folds."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .sources import DataError, data_directories

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


def load_fold(fold: int, data_dir: Path | None = None) -> tuple[Queries, Queries, Queries]:
    """Training, validation and test queries, features standardised by the training documents.

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
    return tuple(  # pyright: ignore
        Queries((piece.features - mean) / sd, piece.relevance, piece.mask) for piece in pieces
    )


def read_letor(path: Path) -> Iterator[tuple[Tensor, Tensor]]:
    """Features and relevance of each query of a file in LETOR's format.

    A line is `relevance qid:number 1:value 2:value ... # comment`; the lines of a query are
    together.
    """
    before, rows = None, []
    for line in path.read_text().splitlines():
        relevance, query, *values = line.split("#")[0].split()
        if query != before and rows:
            yield _documents(rows)
            rows = []
        before = query
        rows.append([float(relevance), *(float(value.split(":")[1]) for value in values)])
    if rows:
        yield _documents(rows)


def _documents(rows: list[list[float]]) -> tuple[Tensor, Tensor]:
    table = torch.tensor(rows)
    return table[:, 1:], table[:, 0]


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
