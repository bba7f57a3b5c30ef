"""Calls that go through Trueline, made by frames that pass for those of the caller.

Whoever warns is told by frames: the file, the line and the registry of what was warned of before are those of the frame
that calls, or of one so many frames above. Filters of warnings go by them, and may make an error of one. So a function
of torch is called by a frame that has the file, the line and the globals of the frame that called it without Trueline.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

DEPTH = 4
"""Frames above a function written in Python that pass for the caller's: `stacklevel` counts from inside of it."""

MAX_KNOWN = 4_096
"""Places of calls that are kept; all are dropped when there are more."""

STANDS_IN = "<trueline stands in>"
"""Qualified name of such frames."""

_call: FunctionType = lambda func, args, kwargs: func(*args, **kwargs)  # type: ignore[assignment]  # noqa: E731
_stand_ins: dict[tuple[int, int], tuple[CodeType, CodeType]] = {}


def called_by(frame: FrameType, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns ``func(*args, **kwargs)``, called as if by ``frame``."""
    return FunctionType(_code_at(frame), frame.f_globals)(func, args, kwargs)


def called_below(frame: FrameType, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns ``func(*args, **kwargs)``, called as if by ``frame`` below the frames that it has above it."""
    above: FrameType | None = frame
    for _ in range(DEPTH):
        if above is None:
            break
        func, args, kwargs = FunctionType(_code_at(above), above.f_globals), (func, args, kwargs), {}
        above = above.f_back
    return func(*args, **kwargs)


def _code_at(frame: FrameType) -> CodeType:
    """The code of a frame that is where ``frame`` is now."""
    code = frame.f_code
    entry = _stand_ins.get((id(code), frame.f_lasti))
    if entry is None:
        if len(_stand_ins) >= MAX_KNOWN:
            _stand_ins.clear()
        stand_in = _call.__code__.replace(
            co_filename=code.co_filename,
            co_name=code.co_name,
            co_qualname=STANDS_IN,
            co_firstlineno=frame.f_lineno or code.co_firstlineno,
        )
        entry = _stand_ins[id(code), frame.f_lasti] = (stand_in, code)  # kept, so that no other has its id
    return entry[0]
