"""Adapters: the recorder's view of a training framework."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch.distributed as dist
from torch import nn

from trueline.capture.model.layout import compiled_inside
from trueline.capture.model.mesh import Mesh

if TYPE_CHECKING:
    from trueline.capture.probes.gradients import GradientProbe

Guard = Callable[[str], AbstractContextManager[None]]
"""Opens a block whose exceptions become a Finding and whose time counts as Trueline's own."""


@dataclass(frozen=True)
class Reduction:
    """Average of gradients over workers: the user's hook by name ('' for the framework's own), whether what it does is
    known, whether it is known to be lossy, the dtype in which sums are formed, and how many roundings one element
    goes through at most. ``seen`` is False where only what the optimizer receives is ever looked at, not what the
    reduction returned; ``local`` where replicas update by themselves, on purpose; ``in_parts`` where a worker keeps
    only a part of what was reduced. ``returned`` is False where nothing of what the reduction returned is seen, and
    ``received`` where what the optimizer receives is not.
    """

    hook: str = ""
    known: bool = True
    lossy: bool = False
    dtype: str = "torch.float32"
    roundings: int = 0
    seen: bool = True
    local: bool = False
    in_parts: bool = False
    returned: bool = True
    received: bool = True


class Adapter(Protocol):
    """One training framework, watched at one model. ``mesh`` says who reduces with whom; ``notes`` are lines for the
    manifest, of what cannot be seen. Members with a default may be left out (``with_defaults``).
    """

    name: str
    mesh: Mesh
    notes: list[str]
    own: frozenset[str] = frozenset()
    """Names of parameters that ranks hold alike in name and shape only: experts. They are left out."""
    reduces_by_hand: bool = False
    """True if the user's own code reduces gradients, or some of them."""
    goes_round: Callable[[], bool | None] | None = None
    """Tells of the forward pass that begins whether it was not called by the framework's wrapper, None where that is
    not seen. The default is no function, so that a forward pass calls none.
    """

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Let ``probe`` see gradients from now on; called again when the layout changes."""
        ...

    def reduction(self) -> Reduction:
        """The ``Reduction``, as far as it is known now."""
        ...

    def follow(self, before: Callable[[Any], None], after: Callable[[], None]) -> Any:
        """A handle where the framework itself says when it updates: ``before(optimizer)`` and ``after()`` are then
        called around each update. None where that is the ``step`` of an optimizer of torch.
        """
        return None

    def detach(self) -> None:
        """Leave the model as it was, as far as the framework allows."""
        ...


OPTIONAL = ("own", "reduces_by_hand", "goes_round", "follow")
"""Members of ``Adapter`` that have a default."""


def with_defaults(adapter: Any) -> Adapter:
    """``adapter``, which may be of another package and of no class of ours, with the members that it leaves out."""
    return adapter if all(hasattr(adapter, name) for name in OPTIONAL) else cast("Adapter", _Completed(adapter))


class _Completed:
    """An adapter of another package beside the defaults of what it lacks. The object stays as it is: it may have slots,
    or be shared.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        if name not in OPTIONAL or hasattr(self._adapter, name):
            return getattr(self._adapter, name)
        default = getattr(Adapter, name)
        return MethodType(default, self) if callable(default) else default


class HookingAdapter(Adapter):
    """Base of our own adapters. ``handles`` are of the hooks that ``attach`` registers."""

    def __init__(self, mesh: Mesh, *notes: str) -> None:
        self.mesh = mesh
        self.notes = list(notes)
        self.handles: list[Any] = []

    def attach(self, probe: GradientProbe, guard: Guard) -> None:
        """Nothing to hook."""

    def reduction(self) -> Reduction:
        """None of which anything is seen."""
        return Reduction()

    def detach(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []


class AdapterModule(Protocol):
    """Module that an entry point of the group ``trueline.adapters`` names. A higher precedence is asked first:
    ours are DeepSpeed 40, Megatron-core 35, DDP 30, FSDP2 20, tensor parallelism 15, several workers whose code reduces
    by itself 10, and one process 0, which fits anything.
    """

    __name__: str
    PRECEDENCE: int

    def adapter_for(self, model: nn.Module, process_group: dist.ProcessGroup | None) -> Adapter | None:
        """The adapter for ``model``, which is what the training script calls; None if it does not fit."""
        ...


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that ``torch.compile`` was given: the DDP or FSDP2 module inside an outer compiled one."""
    while (inside := compiled_inside(model)) is not None and not isinstance(model, nn.parallel.DistributedDataParallel):
        model = inside
    return model


def reduces_itself(model: nn.Module) -> bool:
    """True if the framework will reduce in the coming backward pass, which all workers then make together: DDP but for
    ``no_sync``, FSDP2 always, as its forward pass is one. False where the user's own code reduces: that is not seen.
    """
    wrapped = uncompiled(model)
    synced = wrapped.__dict__.get("require_backward_grad_sync")
    return bool(synced) if synced is not None else hasattr(type(wrapped), "set_requires_gradient_sync")
