"""Memoizes by object identity: results live as long as the object that they were computed from."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

Source = TypeVar("Source")
Params = ParamSpec("Params")
Result = TypeVar("Result")


def memoized(compute: Callable[Concatenate[Source, Params], Result]) -> Callable[Concatenate[Source, Params], Result]:
    """``compute``, done once for each object (its first argument, by identity) and other arguments (by equality).

    The object must not change, and the result must not refer to it, or neither would ever be freed. An error is
    raised anew each time.
    """
    results_by_source: WeakKeyDictionary[Source, dict[object, Result]] = WeakKeyDictionary()

    @wraps(compute)
    def once(source: Source, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        # Weak keys compare by equality: sources must not define it, as a Run does not.
        results = results_by_source.setdefault(source, {})
        key = (args, tuple(sorted(kwargs.items())))
        if key not in results:
            results[key] = compute(source, *args, **kwargs)
        return results[key]

    return once
