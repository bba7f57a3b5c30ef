"""Owner of an exception that arrives in our code: ours ends a part of watching, the user's ends what the user wants."""

from __future__ import annotations

import signal
from types import CodeType

from trueline.schema.errors import TrainingStopped


def is_users(error: BaseException | None) -> bool:
    """True if training is to see ``error``: what a handler of a signal raised, which Python runs between any two lines
    of ours (a limit of time, a job that is preempted), or the stop that the Plan asks for.
    """
    if not isinstance(error, Exception) or isinstance(error, TrainingStopped):
        return True
    codes = {code for number in signal.valid_signals() if (code := _code_of(signal.getsignal(number))) is not None}
    trace = error.__traceback__
    while codes and trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: object) -> CodeType | None:
    """The code of a function, a method, a part of one, or of an object that is called; None of what is not Python's."""
    inner = getattr(handler, "func", handler)
    call = inner if hasattr(inner, "__code__") else getattr(type(inner), "__call__", None)  # noqa: B004
    code = getattr(call, "__code__", None)
    return code if isinstance(code, CodeType) else None
