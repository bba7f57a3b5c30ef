"""The rows of collectives: the values that each rank sends, and those that it has when the collective has completed.

The result is complete when ``Work.wait`` or ``wait_tensor`` returns; where C++ waits, as DDP's reducer does, when the
backward pass ends. At the end of the step the results of all collectives that are known to be complete are recorded.

DDP reduces its parameters in buckets, each by one collective, in an order that its reducer knows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trueline.capture.adapters.base import uncompiled
from trueline.capture.model.layout import clean_name
from trueline.capture.model.patches import Patch, calling_of
from trueline.capture.model.untraced import in_backward
from trueline.capture.model.world import is_initialised
from trueline.capture.record.arguments import Slots, inputs
from trueline.capture.record.dispatched import dispatched
from trueline.capture.record.functions import ENGINE
from trueline.capture.record.guard import Fails, Guard
from trueline.schema.columns.records import Unmeasured

CHANGED = "changed before anybody waited for it where that is seen"

_DDP = nn.parallel.DistributedDataParallel.__module__

_ONE_SIDED = {"send": (True, False), "recv_": (False, True), "recv_any_source_": (False, True)}
"""Operators that either send a tensor or receive one: whether their tensor argument is sent, whether it is received."""

_RANKS = {"root_rank": "root", "dst": "to", "src": "from"}
"""Arguments that are ranks within the group, and their names in column ``args``."""


@dataclass(eq=False)
class _Pending:
    """A collective that may not be complete. ``versions`` are those of the result tensors, empty where their versions
    do not show later changes: a backend that copies its results in changes them too. ``by_ddp``: DDP waits, in C++.
    """

    token: Any
    results: Slots
    versions: tuple[int, ...]
    work: Any = None
    by_ddp: bool = False


class Collectives:
    """Observes all collectives while attached, including those of DDP for ``model``. ``begin(name, args, inputs,
    frame)`` is called before a collective and returns a token, None where it is not recorded; ``end(token, outputs,
    note)`` when its result is complete, or will not be measured (``note`` says why). An exception of Trueline's is
    passed to ``session``.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        begin: Callable[[str, str, Slots, FrameType | None], Any],
        end: Callable[[Any, Slots, str | None], None],
        session: Fails,
    ) -> None:
        self._begin = begin
        self._end = end
        self._buckets = Buckets(model)
        self._session = session
        self._wait = Patch(dist.Work, "wait", calling_of(self._waited)) if dist.is_available() else None
        self._pending: list[_Pending] = []
        self._texts: dict[Any, str] = {}
        self._thread = 0

    def attach(self) -> None:
        """Begin to observe; without an initialised process group, do nothing."""
        self._thread = threading.get_ident()
        if is_initialised() and self._wait is not None:
            dispatched.add(self)
            self._wait.install()

    def detach(self) -> None:
        dispatched.remove(self)
        if self._wait is not None:
            self._wait.remove()
        self._pending.clear()
        self._texts.clear()

    def begin_pass(self) -> None:
        """A forward pass of the model begins; DDP has waited for the broadcast of its buffers."""
        with Guard(self._session):
            self._end_pending(lambda pending: pending.by_ddp)
            self._buckets.begin()

    # -- while a collective runs -----------------------------------------------------------------------------------

    def begins(self, op: Any, args: tuple[Any, ...], frame: FrameType | None) -> _Pending | None:
        """See ``OperationListener``. What another thread does, such as saving a checkpoint, is not part of the step."""
        if threading.get_ident() != self._thread and not in_backward():
            return None
        with Guard(self._session):
            name = op._schema.name.removeprefix("c10d::")
            group_index = next(index for index, arg in enumerate(args) if isinstance(arg, torch.ScriptObject))
            group = dist.ProcessGroup.unbox(args[group_index])  # type: ignore[attr-defined]
            sent, received = _sides(name, args, group_index=group_index, rank=group.rank())
            if is_bookkeeping(frame, [x for _, x in sent or received]) or _sends_no_numbers(frame):
                return None
            bucket = self._buckets.bucket_of(group, sent) if in_backward() else None
            text = self._described(op, args, group_index, group, bucket)
            token = self._begin(name.removesuffix("_"), text, sent, frame)
            if token is not None:
                by_ddp = bucket is not None or (frame is not None and frame.f_globals.get("__name__") == _DDP)
                return _Pending(token, received, _versions(received) if group_index == 1 else (), by_ddp=by_ddp)
        return None

    def has_begun(self, token: _Pending | None, result: Any) -> None:
        if token is None:
            return
        with Guard(self._session):
            work = result[-1] if isinstance(result, tuple) else result
            token.work = None if work is None else dist.Work.unbox(work)  # type: ignore[attr-defined]
            self._pending.append(token)

    def has_ended(self, x: Tensor) -> None:
        if self._pending:
            with Guard(self._session):
                memory = x.untyped_storage()._cdata
                self._end_pending(lambda p: any(y.untyped_storage()._cdata == memory for _, y in p.results), now=True)

    def after_backward(self) -> None:
        """A backward pass has ended, and with it the collectives that DDP's reducer waits for."""
        with Guard(self._session):
            self._end_pending(lambda pending: pending.by_ddp)

    def finish(self) -> None:
        """The step ends: record the collectives that are complete though no Python code has waited for them."""
        with Guard(self._session):
            self._end_pending(_is_done)
            self._end_pending(lambda pending: True, note=Unmeasured.UNDER_WAY)

    def _waited(self, original: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(work, *args, **kwargs)
        if self._pending:
            with Guard(self._session):
                self._end_pending(lambda pending: pending.work is work, now=True)
        return result

    def _end_pending(self, is_due: Callable[[_Pending], bool], *, note: str | None = None, now: bool = False) -> None:
        """Record the results of pending collectives that are ``is_due``: complete since ``now``, or for some time."""
        for pending in tuple(self._pending):
            if is_due(pending):
                self._pending.remove(pending)
                changed = not now and pending.versions != _versions(pending.results)[: len(pending.versions)]
                self._end(pending.token, pending.results, note or (CHANGED if changed else None))

    # -- how a collective is described ---------------------------------------------------------------------------------

    def _described(self, op: Any, args: tuple[Any, ...], group_index: int, group: Any, bucket: Any) -> str:
        """Column ``args``: the group's global ranks, the reduction, the global ranks that arguments name, and for a
        bucket of DDP its index and parameters.
        """
        names = [argument.name for argument in op._schema.arguments[group_index + 1 : len(args)]]
        reduce_op = next((arg.op() for arg in args[group_index + 1 :] if isinstance(arg, torch.ScriptObject)), None)
        named_ranks = tuple(
            (_RANKS[n], arg) for n, arg in zip(names, args[group_index + 1 :], strict=True) if n in _RANKS
        )
        key = (group, reduce_op, named_ranks, None if bucket is None else bucket.index)
        text = self._texts.get(key)
        if text is None:
            ranks = dist.get_process_group_ranks(group)
            facts: dict[str, Any] = {"group": ranks, "op": _reduction(reduce_op)}
            facts |= {name: ranks[rank] if 0 <= rank < len(ranks) else None for name, rank in named_ranks}
            if bucket is not None:
                facts |= {"bucket": bucket.index, "parameters": bucket.names}
            text = self._texts[key] = json.dumps(facts, separators=(",", ":"))
        return text


def _sides(name: str, args: tuple[Any, ...], *, group_index: int, rank: int) -> tuple[Slots, Slots]:
    """The tensors that this rank sends and those that it receives: the argument before the group, which is at index
    ``group_index``, and the first one; one of them only for ranks that only send or only receive. ``rank`` is the rank
    within the group.
    """
    sends, receives = _ONE_SIDED.get(name, (True, True))
    if name == "broadcast_":
        sends = rank == args[group_index + 1]
    if name == "reduce_":
        receives = rank == args[group_index + 2]
    sent = _numbered("in", args[group_index - 1]) if sends else []
    received = _numbered("out", args[0]) if receives else []
    return sent, received


def _numbered(side: str, value: Any) -> Slots:
    """The tensors in an argument, numbered in order, nested ones too."""
    return [(f"{side}{index}", tensor) for index, (_, tensor) in enumerate(inputs((value,), {}))]


def _reduction(op: int | None) -> str | None:
    return None if op is None else dist.ReduceOp.RedOpType(op).name


def _versions(slots: Slots) -> tuple[int, ...]:
    return tuple(0 if x.is_inference() else x._version for _, x in slots)


def _is_done(pending: _Pending) -> bool:
    return pending.work is not None and pending.work.is_completed()


_PADS = frozenset({"deepspeed.runtime.zero.partition_parameters", "deepspeed.runtime.comm.coalesced_collectives"})
_C10D = "torch.distributed.distributed_c10d"
_OF_OBJECTS = frozenset(
    (
        *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
        *("send_object_list", "recv_object_list"),
    )
)
"""Functions of torch that send pickled objects: first their sizes, then their bytes."""
_PRE_FORWARD = getattr(getattr(nn.parallel.DistributedDataParallel, "_pre_forward", None), "__code__", None)
"""The function of DDP in which it cuts its buckets anew."""


class Bucket(NamedTuple):
    """One bucket: its index in the order of reduction, its number of elements, and the names of its parameters."""

    index: int
    numel: int
    names: list[str]


class Buckets:
    """The buckets of the DDP module in ``model``; none where there is no such module."""

    def __init__(self, model: nn.Module) -> None:
        inner = uncompiled(model)
        self._ddp: Any = inner if isinstance(inner, nn.parallel.DistributedDataParallel) else None
        self._buckets: list[Bucket] = []
        self._next = 0

    def begin(self) -> None:
        """A forward pass begins: until the end of backward DDP does not rebuild its buckets."""
        reducer = None if self._ddp is None else getattr(self._ddp, "reducer", None)
        if reducer is None or torch._C._len_torch_dispatch_stack():  # type: ignore[attr-defined]
            return
        names = {id(param): clean_name(name) for name, param in self._ddp.module.named_parameters()}
        with _NoMemory():
            grad_buckets = reducer._get_zeros_like_grad_buckets()
        self._buckets = [
            Bucket(bucket.index(), bucket.buffer().numel(), [names.get(id(p), "") for p in bucket.parameters()])
            for bucket in grad_buckets
        ]
        self._next = 0

    def bucket_of(self, group: Any, sent: Slots) -> Bucket | None:
        """The bucket that a collective with these inputs reduces, None where it reduces none: DDP starts them in their
        order, and a comm hook may pass them in another dtype.
        """
        if not self._buckets or len(sent) != 1 or group != self._ddp.process_group:
            return None
        x = sent[0][1]
        bucket = self._buckets[self._next % len(self._buckets)]
        if x.numel() != bucket.numel or not (x.is_floating_point() or x.is_complex()):
            return None
        self._next += 1
        return bucket


def is_bookkeeping(frame: FrameType | None, sent: list[Tensor]) -> bool:
    """True if DDP's reducer, called by ``frame``, exchanges with the other ranks the layout of its buckets, or which
    parameters were used: its own bookkeeping, which is no part of the training.
    """
    if any(x.dtype is not torch.int32 for x in sent):
        return False
    return frame is None or frame.f_code is ENGINE or frame.f_code is _PRE_FORWARD


def _sends_no_numbers(frame: FrameType | None) -> bool:
    """True if what is sent is no value of the training: pickles of Python objects, which hold times, ids and hashes in
    the order of sets, or parameters and gradients that ZeRO 3 pads with memory that nothing has filled.
    """
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module in _PADS or (module == _C10D and frame.f_code.co_name in _OF_OBJECTS):
            return True
        frame = frame.f_back
    return False


class _NoMemory(TorchDispatchMode):
    """Answers ``zeros_like``, which the reducer calls for every bucket, without allocating a copy of all gradients."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.zeros_like.default:
            x: Tensor = args[0]
            return torch.empty(1, dtype=x.dtype).expand(x.shape)
        return func(*args, **(kwargs or {}))
