"""The studies by name. A new one is a file with a `Study`, and a row here."""

from .knn import KNNStudy
from .median import MedianStudy
from .ranking import RankStudy
from .sorting import SortStudy
from .study import Study

STUDIES: dict[str, Study] = {
    one.name: one for one in (SortStudy(), MedianStudy(), KNNStudy(), RankStudy())
}
