"""The studies by name."""

from typing import NamedTuple

from .knn import KNNConfig, KNNStudy
from .median import MedianConfig, MedianStudy
from .options import StudyConfig
from .sorting import SortConfig, SortStudy
from .study import Study


class Entry(NamedTuple):
    """A study and the class of its options."""

    study: Study
    config: type[StudyConfig]


STUDIES = {
    "sort": Entry(SortStudy(), SortConfig),
    "median": Entry(MedianStudy(), MedianConfig),
    "knn": Entry(KNNStudy(), KNNConfig),
}
