"""What the corpus is made of: families of small models, faults that are planted into them, and healthy ways to compute
the same.

A family builds one training; a fault or a healthy way changes it. Each is a function of a few lines, registered by a
decorator: ``@family("gpt")``, ``@fault("gpt", "mask off by one", ...)``, ``@healthy("gpt", "fused attention")``.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from gallery.changed_kernel import ChangedKernel
from torch import Tensor, nn

Batch = dict[str, Any]
Half = Literal["dev", "held"]

FIRST, STRUCTURE, WEIGHT = "first-divergence", "structure-differs", "weight-differs"
OPTIMIZER, INPUT, DTYPE = "optimizer-differs", "input-differs", "dtype-differs"


def nothing(*_: Any) -> None:
    """Nothing is done."""


@dataclass
class Training:
    """What one run consists of; faults and healthy ways change it before it starts.

    A step is ``loss(model, prepare(batch(generator)))``, ``backward``, ``before_update``, the update, and the
    schedule, inside ``around()``. ``prepare`` is what scripts do between the batch and the model: noise, masks,
    normalisation.
    """

    model: nn.Module
    batch: Callable[[torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    prepare: Callable[[Batch], Batch] = lambda batch: batch
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    settings: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-3, "foreach": False})
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None
    before_update: Callable[[torch.optim.Optimizer], None] = nothing
    after_update: Callable[[int], None] = nothing
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    num_micro: int = 1
    loss_scale: float = 1.0
    dtype: torch.dtype | None = None
    """Parameters and floating-point batches are of this one; None: of the one that the command line asks for."""
    autocast: bool | None = None
    compiled: bool | None = None


@dataclass(frozen=True)
class Family:
    """How to build one architecture. ``micro``: a batch can be cut into parts whose mean loss is that of the whole."""

    name: str
    build: Callable[[], Training]
    micro: bool = True


@dataclass(frozen=True)
class Truth:
    """Where a fault is, from what was changed, never from what a tool says.

    ``at`` are names of the same innermost place: ``module:op|op`` for ops called by a module, ``module`` for a whole
    module or ``module.parameter``; ``@`` is the model itself, and ``~`` what is outside of it (``~:mul``). ``codes``
    are those of findings that may lead. ``word``: of a setting, what the finding must name. ``phases``: where it shows.
    """

    at: tuple[str, ...]
    phases: tuple[str, ...]
    codes: tuple[str, ...]
    word: str = ""


@dataclass(frozen=True)
class Fault:
    """``plant`` makes a training wrong; ``kind`` is the mechanism by which it does."""

    family: str
    name: str
    kind: str
    truth: Truth
    plant: Callable[[Training], object]
    needs: frozenset[str] = frozenset()
    """As of ``Healthy``."""

    @property
    def key(self) -> str:
        """``gpt/mask off by one``."""
        return f"{self.family}/{self.name}"


@dataclass(frozen=True)
class Healthy:
    """``change`` makes a training compute the same in another way. ``names`` is the map that compare is given.
    ``undecided``: other random numbers are drawn, so that what is right is not to blame it, and to say so (exit 3).
    """

    family: str
    name: str
    change: Callable[[Training], object]
    names: str = ""
    needs: frozenset[str] = frozenset()
    """``fp32``, ``bf16``, ``autocast``: only where the corpus is recorded so; ``compiled`` or ``eager`` likewise, and
    ``wide`` where parameters are float32.
    """
    undecided: bool = False

    @property
    def key(self) -> str:
        """``gpt/=two threads``."""
        return f"{self.family}/={self.name}"


FAMILIES: dict[str, Family] = {}
FAULTS: dict[str, Fault] = {}
HEALTHY: dict[str, Healthy] = {}


_IN_BACKWARD = "~:neg|mul|zeros_like"
"""What a planted backward calls: the engine calls it outside of all modules."""


def family(name: str, *, micro: bool = True) -> Callable[[Callable[[], Training]], Callable[[], Training]]:
    """Registers a function that builds a training."""

    def register(build: Callable[[], Training]) -> Callable[[], Training]:
        FAMILIES[name] = Family(name, build, micro)
        return build

    return register


def fault(
    family: str,
    name: str,
    kind: str,
    at: str | tuple[str, ...],
    *,
    phase: str | tuple[str, ...] = "fwd",
    codes: str | tuple[str, ...] = FIRST,
    word: str = "",
    needs: str = "",
) -> Callable[[Callable[[Training], object]], Callable[[Training], object]]:
    """Registers a function that makes a training wrong; see ``Truth``."""

    def register(plant: Callable[[Training], object]) -> Callable[[Training], object]:
        places = (*_several(at), *((_IN_BACKWARD,) if kind == "gradient" else ()))
        truth = Truth(places, _several(phase), _several(codes), word)
        one = Fault(family, name, kind, truth, plant, frozenset(needs.split()))
        if one.key in FAULTS:
            raise ValueError(f"There are two faults '{one.key}'.")
        FAULTS[one.key] = one
        return plant

    return register


def healthy(
    family: str, name: str, *, names: str = "", needs: str = "", undecided: bool = False
) -> Callable[[Callable[[Training], object]], Callable[[Training], object]]:
    """Registers a function that changes how a training computes, and not what."""

    def register(change: Callable[[Training], object]) -> Callable[[Training], object]:
        one = Healthy(family, name, change, names, frozenset(needs.split()), undecided)
        HEALTHY[one.key] = one
        return change

    return register


def half_of(key: str) -> Half:
    """Which half of the corpus a case is in: by a hash of its name, so that no other case has a say in it. 65 is
    a number by which each kind of the first 142 faults has about half of its cases in either.
    """
    return "dev" if hashlib.sha256(f"65 {key}".encode()).digest()[0] % 2 == 0 else "held"


def _several(one: str | tuple[str, ...]) -> tuple[str, ...]:
    return (one,) if isinstance(one, str) else one


# Ways to plant


def after(module: nn.Module, change: Callable[[Any], Any], method: str = "forward") -> None:
    """What a method of ``module`` returns goes through ``change``, inside of the module."""
    original = getattr(module, method)
    setattr(module, method, lambda *args, **kwargs: change(original(*args, **kwargs)))


def before(module: nn.Module, change: Callable[[Any], Any], method: str = "forward") -> None:
    """What a method of ``module`` is given first goes through ``change``, inside of the module."""
    original = getattr(module, method)
    setattr(module, method, lambda first, *args, **kwargs: original(change(first), *args, **kwargs))


class _Backward(torch.autograd.Function):
    """The same forwards, another gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradients[0]), None


def gradient(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function that returns its tensor and makes its gradient what ``change`` says: a custom autograd function."""
    return lambda x: _Backward.apply(x, change)


def hooked(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same by ``Tensor.register_hook``."""

    def put(x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(change)
        return x

    return put


class Hidden(ChangedKernel):
    """The ``nth`` forward call of a ``kernel`` in each step is given what ``change`` makes of its arguments, below what
    is recorded.
    """

    def __init__(self, kernel: str, nth: int, change: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        super().__init__(kernel)
        self._nth, self._change = nth, change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What ``func`` returns, with other arguments where it is the kernel's turn."""
        kwargs = dict(kwargs or {})
        if self._kernel in str(func) and "backward" not in str(func):
            if self._calls == self._nth:
                args, kwargs = self._change(args, kwargs)
            self._calls += 1
        return func(*args, **kwargs)


def hide(t: Training, kernel: str, nth: int, **changed: Any) -> None:
    """Plant a ``Hidden`` kernel whose keyword arguments are ``changed``."""
    around = t.around

    @contextlib.contextmanager
    def both() -> Iterator[None]:
        with around(), Hidden(kernel, nth, lambda args, kwargs: (args, kwargs | changed)):
            yield

    t.around = both


def loss_with(t: Training, change: Callable[[Batch], Mapping[str, Any]]) -> None:
    """The loss is given a batch with what ``change`` makes of it."""
    loss = t.loss
    t.loss = lambda model, batch: loss(model, {**batch, **change(batch)})
