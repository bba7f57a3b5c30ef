"""Memoizes by object identity: results live as long as the object that they were computed from."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

Of = TypeVar("Of")
More = ParamSpec("More")
Found = TypeVar("Found")


def memoized(work: Callable[Concatenate[Of, More], Found]) -> Callable[Concatenate[Of, More], Found]:
    """``work``, done once for each object (its first argument, by identity) and other arguments (by equality).

    The object must not change, and the result must not refer to it, or neither would ever be freed. An error is
    raised anew each time.
    """
    known: WeakKeyDictionary[Of, dict[object, Found]] = WeakKeyDictionary()

    @wraps(work)
    def once(of: Of, *more: More.args, **named: More.kwargs) -> Found:
        results = known.setdefault(of, {})
        key = (more, tuple(sorted(named.items())))
        if key not in results:
            results[key] = work(of, *more, **named)
        return results[key]

    return once
