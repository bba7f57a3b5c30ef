"""Objects that are alive, by their class: modules do not know who holds them, and frameworks keep no list of them."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any

_FEW = 32
"""Classes up to which asking who refers to them is faster: 0.07 s among 500,000 objects, 0.14 s by each one's class."""


def instances_of(*kinds: type[Any]) -> list[Any]:
    """The objects whose class is one of ``kinds`` or a subclass, as far as the garbage collector tracks them.

    By the class itself and not by ``isinstance``, which a proxy could answer, and run code of the user's.
    """
    classes = {subclass for kind in kinds for subclass in _subclasses(kind)}
    # An object refers to its class.
    objects = gc.get_referrers(*classes) if len(classes) <= _FEW else gc.get_objects()
    # In C: of half a million objects a loop of Python takes 0.1 s.
    return list(itertools.compress(objects, map(classes.__contains__, map(type, objects))))


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for subclass in type.__subclasses__(kind):
        yield from _subclasses(subclass)
