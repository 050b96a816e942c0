"""What a study is, to whatever runs it."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from ..training.plan import Plan
from ..training.trainer import Task
from .config import StudyConfig


@dataclass
class Tested:
    """What a model does on the test set.

    Attributes:
        metrics: Numbers by name.
        intervals: 95 % intervals of some of them.
        over: What the intervals think of as drawn at random.
        extras: What figures need besides.
    """

    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    over: str
    extras: dict[str, Any] = field(default_factory=dict)


class Study(Protocol):
    """A study: how to make its task, and how to test what was learnt."""

    @property
    def name(self) -> str:
        """In commands, lines and folders."""
        ...

    @property
    def config(self) -> type[StudyConfig]:
        """The options of its runs."""
        ...

    def taus(self, config: Any) -> tuple[float, ...]:
        """The temperatures that the recipe tries."""
        ...

    def plan(self, config: Any) -> Plan:
        """How the recipe trains."""
        ...

    def memory(self, config: Any, plan: Plan) -> int:
        """Bytes that a run needs at the very least; 0 where nothing in the options is too much."""
        ...

    def load(self, config: Any) -> dict[str, Any]:
        """The data, by split."""
        ...

    def task(self, config: Any, splits: Any, tau: float, plan: Plan, /) -> Task:
        """What is trained at one temperature."""
        ...

    def test(self, config: Any, model: Any, splits: Any, /) -> Tested:
        """Tests the best model, once."""
        ...

    def facts(self, config: Any) -> dict[str, Any]:
        """What the line says of the run besides options and plan."""
        ...

    def resized(self, config: Any, model: Any, n: int) -> Any:
        """The options for testing a model on lists of another length."""
        ...
