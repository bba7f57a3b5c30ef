"""Facts of faults by the ids of entries: which are independent, another mistake, not the same one on another rank, in
another wrapper, at another time or of another size; their families, and the causes that are right for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gallery.entry import Fault, all_entries


@cache
def _faults() -> Mapping[str, Fault]:
    return {entry.id: entry for entry in all_entries() if isinstance(entry, Fault)}


def placed() -> frozenset[str]:
    """The ids of the faults whose family is known."""
    return frozenset(id for id, fault in _faults().items() if fault.family)


def independent_fault(id: str) -> str:
    """The id of the fault that the entry ``id`` is a variant of, which may be itself."""
    return id if id not in _faults() else _faults()[id].variant_of or id


def family_of(id: str) -> str:
    """The family of mistakes that the entry ``id`` belongs to; itself where nobody said."""
    return id if id not in _faults() else _faults()[id].family or id


def true_causes(id: str) -> tuple[str, ...]:
    """The slugs that are right for the fault ``id``; none where nobody said."""
    return _faults()[id].causes if id in _faults() else ()
