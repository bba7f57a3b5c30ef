"""Collectives that Python code starts, whichever way ``torch.distributed`` was imported: every one of them calls a
method of its ProcessGroup. Those that DDP's reducer starts in C++ do not, and show in the gradients of phases ``bwd``
(local) and ``grad`` (reduced).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist

from trueline.capture.record.arguments import Slots, inputs
from trueline.capture.seams import Patch
from trueline.capture.world import is_initialised

_SILENT = frozenset(
    {"abort", "shutdown", "size", "rank", "name", "boxed", "unbox", "barrier", "monitored_barrier", "set_timeout"}
    | {"split_group", "merge_remote_group", "get_group_store"}
)


class _Pending(NamedTuple):
    work: Any
    token: Any
    results: Slots


class Collectives:
    """Wraps the methods of ``ProcessGroup`` while attached. ``begin(name, args, inputs)`` is called before a
    collective and returns a token, or None where it is not recorded; ``end(token, outputs)`` when its result is there.
    """

    def __init__(self, *, begin: Callable[[str, str, Slots], Any], end: Callable[[Any, Slots], None]) -> None:
        self._begin = begin
        self._end = end
        self._patches: list[Patch] = []
        self._pending: list[_Pending] = []

    def attach(self) -> None:
        """Wrap; nothing where torch was built without ``torch.distributed``."""
        if not is_initialised():
            return
        for name in dir(dist.ProcessGroup):
            method = dist.ProcessGroup.__dict__.get(name)
            tells = not name.startswith("__") and name not in _SILENT and callable(method)
            if tells and (not name.startswith("_") or name.endswith("_base")):
                self._patches.append(Patch(dist.ProcessGroup, name, functools.partial(self._called, name)))
        self._patches.append(Patch(dist.Work, "wait", self._waited))
        for patch in self._patches:
            patch.put()

    def detach(self) -> None:
        """Put the originals back."""
        for patch in self._patches:
            patch.remove()
        self._patches.clear()
        self._pending.clear()

    def finish(self) -> None:
        """Take the results of what has been completed without anyone having waited for it in Python."""
        for pending in tuple(self._pending):
            if pending.work.is_completed():
                self._pending.remove(pending)
                self._end(pending.token, pending.results)

    def _called(self, name: str, original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        given = [arg for arg in args if inputs((arg,), {})]
        if not given:
            return original(group, *args, **kwargs)
        token = self._begin(name, _described(group, args), _numbered("in", given[-1]))
        work = original(group, *args, **kwargs)
        if token is not None and hasattr(work, "is_completed"):
            self._pending.append(_Pending(work, token, _numbered("out", given[0])))
        return work

    def _waited(self, original: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(work, *args, **kwargs)
        for pending in tuple(self._pending):
            if pending.work is work:
                self._pending.remove(pending)
                self._end(pending.token, pending.results)
        return result


def _numbered(side: str, value: Any) -> Slots:
    """The tensors in an argument, numbered however they are nested."""
    return [(f"{side}{index}", tensor) for index, (_, tensor) in enumerate(inputs((value,), {}))]


def _described(group: Any, args: tuple[Any, ...]) -> str:
    reduce_op = next((str(arg.reduceOp) for arg in args if hasattr(arg, "reduceOp")), None)
    ranks = dist.get_process_group_ranks(group)
    return json.dumps({"group": ranks, "op": reduce_op}, separators=(",", ":"))
