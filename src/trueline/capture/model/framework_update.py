"""The update that a framework makes around that of its optimizer: what ends a process waits until it is over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

_waiting: list[list[Callable[[], None]]] = []


@contextlib.contextmanager
def framework_update() -> Iterator[None]:
    """A block in which a framework updates; what is to follow the update is called at its end."""
    _waiting.append([])
    try:
        yield
    finally:
        actions = _waiting.pop()
    for action in actions:
        after_update(action)


def after_update(action: Callable[[], None]) -> None:
    """Call ``action`` now, or, where a framework updates, once it has."""
    if _waiting:
        _waiting[-1].append(action)
    else:
        action()
