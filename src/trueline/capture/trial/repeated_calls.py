"""Every operation of a job's first steps, called several times on copies of its inputs: does it return the same bits?

A ``TorchDispatchMode`` sees the operations that reach torch's dispatcher, those of the backward pass and of
``torch.library`` among them, but not what is inside of compiled code or launched past torch. Random streams are set
back before each call, so that dropout is no difference. What an operation writes into its arguments is compared like
what it returns; the job goes on with the last call, on its own tensors. Left out are operations that return views,
memory that nobody wrote (``empty``), collectives, and what takes no tensor.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trueline.capture.model import patches
from trueline.capture.model.world import own_rank

_UNWRITTEN = ("empty", "new_empty", "resize", "set_", "record_stream")
_HOME = str(Path(__file__).parents[2]) + os.sep
"""Folder of Trueline: what it computes in the process is not the job's."""
_HIDDEN = (f"{os.sep}torch{os.sep}", _HOME, "<")


@dataclass
class Pool:
    """Calls of one operation on tensors of one form: how many there were, in how many a repeat differed, by at most how
    much (|a - b| / |a|), and the step and place of the first that did.
    """

    op: str
    form: list[str]
    unit: float
    calls: int = 0
    differ: int = 0
    rel: float = 0.0
    step: int | None = None
    where: str = ""
    rank: int = 0


class RepeatedCalls(TorchDispatchMode):
    """Calls each operation ``times`` times, from the first training call of a module until ``end``, and writes what it
    counted into ``folder``.
    """

    def __init__(self, *, times: int, folder: str) -> None:
        super().__init__()
        self._times, self._folder = times, folder
        self._pools: dict[tuple[str, ...], Pool] = {}
        self._step = 0
        self._is_on = False

    def install(self) -> None:
        """Wait for the first training call."""
        patches.module_call.add(self._begin, keep=True)

    def _begin(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if torch.is_grad_enabled() and module.training and not torch.compiler.is_compiling():
            patches.module_call.remove(self._begin)
            self.__enter__()
            self._is_on = True

    def next_step(self) -> None:
        """An update was made."""
        self._step += 1

    def end(self) -> None:
        if not self._is_on:
            return
        self._is_on = False
        if torch._C._len_torch_dispatch_stack():  # a hook runs with modes off: what is not on cannot be taken off
            self.__exit__(None, None, None)
        for pool in self._pools.values():
            pool.rank = own_rank()
        path = Path(self._folder, f"repeated-{os.getpid()}.json")
        path.write_text(json.dumps([asdict(pool) for pool in self._pools.values()]), encoding="utf-8")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if not self._is_on or not _is_repeated(func, tensors) or _is_ours():
            return func(*args, **kwargs)
        pool = self._pool(func, tensors)
        pool.calls += 1
        streams, differs = _streams(tensors[0].device), False
        first: list[Tensor] | None = None
        for _ in range(self._times - 1):
            args_copy, kwargs_copy = pytree.tree_map(_copied, (args, kwargs))
            now = _written(func(*args_copy, **kwargs_copy), (args_copy, kwargs_copy))
            _set_streams(streams)
            differs |= first is not None and self._compare(pool, first, now)
            first = first or now
        result = func(*args, **kwargs)
        last = _written(result, (args, kwargs))
        differs |= first is not None and self._compare(pool, first, last)
        if differs:
            pool.differ += 1
            if pool.step is None:
                pool.step, pool.where = self._step, _where()
        return result

    def _pool(self, func: Any, tensors: Sequence[Tensor]) -> Pool:
        form = [
            f"{_name(x.dtype)}{[*x.shape]}{'' if x.is_contiguous() else f' strides {[*x.stride()]}'}" for x in tensors
        ]
        key = (str(func), *form)
        if key not in self._pools:
            units = [torch.finfo(x.dtype).eps / 2 for x in tensors if x.is_floating_point()]
            self._pools[key] = Pool(str(func), form, max(units, default=0.0))
        return self._pools[key]

    @staticmethod
    def _compare(pool: Pool, earlier: Sequence[Tensor], later: Sequence[Tensor]) -> bool:
        """True if bits differ; how much is kept."""
        differing = [(a, b) for a, b in zip(earlier, later, strict=True) if not _same_bits(a, b)]
        for a, b in differing:
            a, b = (x.double() if not x.is_complex() else torch.view_as_real(x).double() for x in (a, b))
            norm, gap = float(torch.linalg.vector_norm(a)), float(torch.linalg.vector_norm(a - b))
            rel = gap / norm if norm else math.inf
            pool.rel = max(pool.rel, rel if math.isfinite(rel) else 1e30)
        return bool(differing)


def _is_repeated(func: Any, tensors: Sequence[Tensor]) -> bool:
    schema = func._schema
    space, _, name = schema.name.partition("::")
    if not tensors or "c10d" in space or space in ("prim", "profiler") or name.startswith(_UNWRITTEN):
        return False
    if any(type(x) not in (Tensor, torch.nn.Parameter) or x.layout != torch.strided for x in tensors):
        return False
    return not any(returned.alias_info is not None and not returned.alias_info.is_write for returned in schema.returns)


def _is_ours() -> bool:
    """True if Trueline called the operation."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_HOME):
            return True
        frame = frame.f_back
    return False


def _written(result: Any, arguments: Any) -> list[Tensor]:
    """Copies of a call's results and of its arguments as it left them: the job may write over them."""
    tensors = [x for x in pytree.tree_leaves((result, arguments)) if isinstance(x, Tensor)]
    return [x.detach().clone() for x in tensors]


def _copied(x: Any) -> Any:
    """With the same strides, where its elements do not overlap."""
    return x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype in (torch.bool, torch.uint8) or not a.numel():
        return torch.equal(a, b)
    bytes_a, bytes_b = (x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8) for x in (a, b))
    return torch.equal(bytes_a, bytes_b)


def _streams(device: torch.device) -> Any:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None, device


def _set_streams(streams: Any) -> None:
    torch.set_rng_state(streams[0])
    if streams[1] is not None:
        torch.cuda.set_rng_state(streams[1], streams[2])


def _where() -> str:
    """The line of the user's code that is running; in the backward pass, the node of autograd."""
    node = torch._C._current_autograd_node()
    frame = sys._getframe()
    lines = [f"{os.path.basename(at.f_code.co_filename)}:{at.f_lineno} {at.f_code.co_name}" for at in _frames(frame)]
    line = next(iter(lines), "")
    return f"{node.name()} in the backward pass" if node is not None else line


def _frames(frame: Any) -> Iterator[Any]:
    while frame is not None:
        if not any(part in frame.f_code.co_filename for part in _HIDDEN):
            yield frame
        frame = frame.f_back


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
