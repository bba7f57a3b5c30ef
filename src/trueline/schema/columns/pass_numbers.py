"""Columns whose row holds so many whole numbers of each forward pass of a step, one pass after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any, Self, cast

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class PassNumbers:
    """Base of a dataclass that holds the numbers of one pass, in the order of its fields."""

    __slots__ = ()

    def to_row(self) -> list[int]:
        """The numbers of one pass."""
        return list(astuple(cast("DataclassInstance", self)))

    @classmethod
    def from_row(cls, row: Sequence[int]) -> tuple[Self, ...]:
        """From the numbers of all passes of a step; none where they are not of this version."""
        kind: Any = cls
        width = len(fields(kind))
        if len(row) % width:
            return ()
        return tuple(kind(*(int(n) for n in row[at : at + width])) for at in range(0, len(row), width))
