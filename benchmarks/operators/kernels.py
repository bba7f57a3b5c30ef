"""The kernels that torch calls, forward and backward, each with the numbers that it was given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trueline.trials.op.recalled import laid_out


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel of torch: its overload and what it was given, before it changed any of that."""

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        """``native_layer_norm_backward``."""
        return self.kernel.overloadpacket.__name__

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among its arguments."""
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor)]

    @property
    def form(self) -> str:
        """What it has in common with calls of other numbers: overload, shapes, dtypes and other arguments."""
        return f"{self.kernel} {pytree.tree_map(_form, (self.args, self.kwargs))}"

    @property
    def shapes(self) -> str:
        """``4096x8, 8``: shapes of its tensors."""
        return ", ".join("x".join(map(str, x.shape)) or "0-d" for x in self.tensors)

    def results(self, change: Any = None, *, detached: bool = True) -> list[Tensor]:
        """The tensors that it returns and changes, called with what ``change`` makes of each argument; ``detached``
        False: with just that, and not with copies of it.
        """
        copy = _copy if detached else lambda leaf: leaf
        copied = pytree.tree_map(lambda leaf: copy(change(leaf) if change else leaf), (self.args, self.kwargs))
        returned = self.kernel(*copied[0], **copied[1])
        written = [
            leaf
            for argument, value in zip(self.kernel._schema.arguments, copied[0], strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
            for leaf in pytree.tree_leaves(value)
        ]
        out = [leaf for leaf in [*pytree.tree_leaves(returned), *written] if isinstance(leaf, Tensor)]
        return list({id(x): x for x in out}.values())


class Kernels(TorchDispatchMode):
    """Keeps the calls of kernels while it is on, one of each form."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[str, KernelCall] = {}

    def __iter__(self) -> Iterator[KernelCall]:
        return iter(self._calls.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` returns."""
        if _computes(func):
            call = KernelCall(func, args, kwargs or {})
            if call.form not in self._calls and any(x.is_floating_point() for x in call.tensors):
                self._calls[call.form] = KernelCall(func, *pytree.tree_map(_copy, (args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def _computes(kernel: Any) -> bool:
    """Whether what it returns hangs on the numbers that it is given alone, and is more than a view of them."""
    if torch.Tag.nondeterministic_seeded in kernel.tags or "empty" in kernel._schema.name:
        return False
    returns = kernel._schema.returns
    views = all(value.alias_info is not None and not value.alias_info.is_write for value in returns)
    return (bool(returns) and not views) or kernel._schema.is_mutable


def _form(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype, leaf.stride()) if isinstance(leaf, Tensor) else str(leaf)


def _copy(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
        return leaf
    return laid_out(leaf.detach(), None if leaf.is_contiguous() else leaf.stride())
