"""Dataclasses that are frozen for the type checker alone: for facts that are made by the ten thousand.

A frozen dataclass takes several times as long to make as another one, as Python sets each of its fields through
``object.__setattr__``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

Class = TypeVar("Class")


@dataclass_transform(frozen_default=True)
def fact(*, eq: bool = True, order: bool = False) -> Callable[[type[Class]], type[Class]]:
    """A dataclass with slots that nobody changes: pyright, as `make check` runs it, names whoever does.

    With ``eq`` it is equal, and hashed, by its fields; else it is equal to itself alone. ``order`` as of a dataclass.
    """

    def decorate(cls: type[Class]) -> type[Class]:
        return dataclass(slots=True, eq=eq, order=order, unsafe_hash=eq)(cls)

    return decorate
