"""The part of a Run that a check needs for a further step, as its module says (``FOLLOWS``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from trueline.schema.finding import Finding
from trueline.store.reader import Run


@dataclass(frozen=True)
class ByStep:
    """Needs of a check for its verdict on a step: that step, and the ``reach`` steps before it at which one of
    ``columns`` was measured. ``alone`` says of a stretch of a Run whether that holds there (None: it always does).
    """

    reach: int = 0
    columns: tuple[str, ...] = ()
    alone: Callable[[Run], bool] | None = None


MARGIN_STEPS = 9
"""Steps on either side of a stretch that say what is usual there."""


@dataclass(frozen=True)
class Stretch:
    """Some steps of ``run``: ``part`` has these alone, ``around`` also the ``MARGIN_STEPS`` steps on either side of
    them, where there are so many.
    """

    run: Run
    part: Run
    around: Run


class Adding(Protocol):
    """What a check that adds up along time carries from step to step. Checks that share it are silent together."""

    @property
    def name(self) -> str:
        """Under which it is kept."""
        ...

    def advance(self, stretch: Stretch, carried: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]] | None:
        """What is carried past the steps of ``stretch``, which come right after those that ``carried`` is of (empty:
        there were none); None where these cannot be told from the whole Run.
        """
        ...

    def conclude(self, run: Run, carried: Mapping[str, NDArray[Any]]) -> list[Finding] | None:
        """What a check says of the whole ``run``, all of whose steps ``carried`` is of: mostly that it found nothing;
        None where only the whole Run tells. Raises ``CannotTell`` where the check raises the same. Of checks that share
        this it can only be that nothing was found.
        """
        ...
