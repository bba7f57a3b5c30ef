"""One pass of a batch: what it was called with and in which state, how it is run again, and digests of what it made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trueline.capture.model import patches
from trueline.capture.model.contents import is_tensor
from trueline.capture.model.layout import clean_name, local
from trueline.capture.model.random_streams import RandomStreams
from trueline.capture.model.untraced import CapturingHook, Hook, in_backward
from trueline.capture.probes.batch import tensors_inside
from trueline.laws.replays.probe.stored_state import NotStorable, StoredState
from trueline.tensor.digest import digest_each, digest_tensor

MAX_MODULES = 512
"""Modules without parts whose outputs are compared."""


@dataclass
class Pass:
    """Digests of what one forward pass made: ``outputs`` of modules without parts, by name in the order of their calls,
    and of what the model ``returned``; ``gradients`` of all parameters.
    """

    names: list[str] = field(default_factory=list[str])
    outputs: list[Tensor] = field(default_factory=list[Tensor])
    returned: Tensor | None = None
    gradients: Tensor | None = None

    def digests(self) -> Tensor:
        """int64 [M + 1]: of the outputs, then of what the model returned."""
        return torch.stack([*self.outputs, present(self.returned)])


@dataclass
class Origin:
    """What the forward pass of the training was called with, and in which state."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    state: StoredState
    streams: RandomStreams
    precision: tuple[bool, torch.dtype, bool]
    versions: list[int]
    training: Pass
    first: Pass | None = None
    weights: Tensor | None = None
    trained: Tensor | None = None
    num_outputs: int = 0


class _Listener(CapturingHook):
    """A hook that notes the digest of what a module returns."""

    __slots__ = ("_name", "_noted")

    def __init__(self, name: str, noted: Pass) -> None:
        self._name, self._noted = name, noted

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        if not in_backward():
            with torch.no_grad():
                self._noted.names.append(self._name)
                self._noted.outputs.append(digest_of(output))


def listen(module: nn.Module, noted: Pass, *, heard: bool = False) -> list[Any]:
    """Note the outputs of modules without parts; ``heard`` where other hooks of Trueline are not to be."""
    handles: list[Any] = []
    for name, part in module.named_modules():
        if next(part.children(), None) is None and len(handles) < MAX_MODULES:
            listener = _Listener(clean_name(name) if name else "the model", noted)
            handles.append(part.register_forward_hook(listener if heard else Hook(listener, num_args=3)))
    return handles


@contextlib.contextmanager
def quiet(module: nn.Module) -> Iterator[None]:
    """No hook of Trueline is called for ``module`` and its parts, nor a listener for calls of modules."""
    hooks: list[tuple[Hook, Any]] = []
    for part in module.modules():
        for table in (part._forward_pre_hooks, part._forward_hooks, part._backward_hooks, part._backward_pre_hooks):
            hooks += [(hook, hook.call) for hook in table.values() if type(hook) is Hook]
    for parameter in module.parameters():
        hooks += [(hook, hook.call) for hook in (parameter._backward_hooks or {}).values() if type(hook) is Hook]
    for hook, _ in hooks:
        hook.call = None
    try:
        with patches.module_call.unheard():
            yield
    finally:
        for hook, call in hooks:
            hook.call = call


def reshard(module: nn.Module) -> None:
    """As after a backward pass: what a forward pass without one leaves gathered would be stale after the update."""
    for part in module.modules():
        if hasattr(type(part), "set_reshard_after_forward"):
            cast("Any", part).reshard()


def precision_of(device: torch.device) -> tuple[bool, torch.dtype, bool]:
    """(whether autocast is on, its format, whether casts are cached)."""
    return (
        torch.is_autocast_enabled(device.type),
        torch.get_autocast_dtype(device.type),
        torch.is_autocast_cache_enabled(),
    )


def in_precision(origin: Origin) -> Any:
    """A block in the autocast that the training's own pass was in."""
    enabled, dtype, cached = origin.precision
    return torch.autocast(origin.streams.device.type, dtype=dtype, enabled=enabled, cache_enabled=cached)


def format_of(origin: Origin) -> torch.dtype | None:
    """What parameters are cast to before they are used; None where they are not."""
    enabled, dtype, _ = origin.precision
    return dtype if enabled else None


def digest_as(params: list[nn.Parameter], dtype: torch.dtype | None) -> Tensor:
    """int64 [P]: digests of the parameters, as ``dtype``."""
    shards = [local(x.detach()) for x in params]
    casts = [x if dtype is None or not x.is_floating_point() else x.to(dtype) for x in shards]
    return digest_each(casts, casts[0].device if casts else torch.device("cpu"))


def digest_of(output: Any) -> Tensor:
    """int64 []: of all tensors in ``output``."""
    tensors = [x for _, x in tensors_inside("", output) if type(x) in (Tensor, nn.Parameter)]
    if not tensors:
        return torch.zeros((), dtype=torch.int64)
    digests = [digest_tensor(x) for x in tensors]
    total = digests[0]
    for digest in digests[1:]:
        total = total * 31 + digest.to(total.device)
    return total


def present(x: Tensor | None) -> Tensor:
    """``x``, which a pass that came to its end has."""
    assert x is not None
    return x


def weights_for(x: Tensor) -> Tensor:
    """Fixed weights of the sum of ``x`` that is differentiated, in its shape and format."""
    return torch.arange(x.numel(), device=x.device, dtype=torch.float32).cos().reshape(x.shape).to(x.dtype)


def copied(value: Any) -> Any:
    """``value`` with copies of the tensors in it: a forward pass may write into what it is given."""
    return pytree.tree_map(_copied_leaf, value)


def _copied_leaf(leaf: Any) -> Any:
    if is_tensor(leaf):
        if type(leaf) is not Tensor:
            raise NotStorable(f"an argument is a {type(leaf).__name__}")
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)
    # of a class that torch does not know how to open
    if any(True for _ in tensors_inside("", leaf)):
        raise NotStorable(f"an argument is a {type(leaf).__name__} that holds tensors")
    return leaf
