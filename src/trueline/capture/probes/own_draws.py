"""Random numbers that a step draws from generators of the program's own, as a VAE, a sampler of noise or a collator."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
import xxhash

from trueline.capture.adapters.base import Guard
from trueline.capture.model.untraced import script_line
from trueline.capture.probes.around_update.sampling import NowAndThen
from trueline.capture.probes.base import FactProbe, Moment, Step
from trueline.capture.probes.batch import tensors_inside
from trueline.capture.record.functions import is_tracing
from trueline.schema.columns.own_draws import OwnDraw, draws_text
from trueline.schema.safe_logger import SafeLogger

_log = SafeLogger()

MAX_DRAWS = 32
"""Draws of a step that are kept."""
OPERATIONS = (
    *("normal_", "uniform_", "random_", "random_.to", "random_.from", "bernoulli_.float", "bernoulli_.Tensor"),
    *("exponential_", "log_normal_", "cauchy_", "geometric_", "bernoulli", "multinomial", "native_dropout"),
    *("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor"),
)
"""What torch draws by, whatever function a script calls (``randn`` fills by ``normal_``), but for permutations: those
of samplers go by the epoch.
"""
_KEY = "BackendSelect"
"""The dispatch key that is enabled in every thread, and comes after autograd, modes and ``__torch_dispatch__`` and
directly before the backend (as in ``record/dispatched.py``)."""


class DrawListener(Protocol):
    """Is told of draws."""

    def listens_to(self, generator: torch.Generator | None) -> bool:
        """True if draws from this one are meant; None is torch's own of the device."""
        ...

    def state_of(self, generator: torch.Generator | None) -> int | None:
        """State that ``drawn`` is told of, as it is before the draw."""
        ...

    def drawn(self, operation: str, shape: tuple[int, ...], state: int | None) -> None:
        """Numbers were drawn from a generator that was in ``state``."""
        ...


class _Draws:
    """Lets torch pass draws through kernels of ours as long as somebody listens: once, however many there are."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[DrawListener]] = []  # what belongs to a model ends with it
        self._library: torch.library.Library | None = None
        self._under_way: list[None] = []

    def add(self, listener: DrawListener) -> None:
        """Call ``listener`` from now on."""
        if listener not in self._listeners():
            self._refs.append(weakref.ref(listener))
        if self._library is None:
            self._library = torch.library.Library("aten", "IMPL")
            for name in OPERATIONS:
                self._library.impl(name, self._kernel(name), _KEY, with_keyset=True)

    def remove(self, listener: DrawListener) -> None:
        """Stop calling it. The kernels go with the last one, unless a thread is inside of one just now."""
        self._refs = [ref for ref in self._refs if ref() not in (None, listener)]
        if self._library is not None and not self._refs and not self._under_way:
            self._library._destroy()
            self._library = None

    def _listeners(self) -> list[DrawListener]:
        return [listener for ref in self._refs if (listener := ref()) is not None]

    def _kernel(self, name: str) -> Callable[..., Any]:
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, _KEY))  # type: ignore[attr-defined]

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            generator = kwargs.get("generator")
            listeners = [listener for listener in self._listeners() if listener.listens_to(generator)]
            if not listeners or is_tracing():
                return op.redispatch(keyset & below, *args, **kwargs)
            self._under_way.append(None)
            try:
                states = [(listener, listener.state_of(generator)) for listener in listeners]
                result = op.redispatch(keyset & below, *args, **kwargs)
                shape = tuple(result.shape) if isinstance(result, torch.Tensor) else ()
                for listener, state in states:
                    listener.drawn(base, shape, state)
                return result
            finally:
                self._under_way.pop()

        return kernel


draws = _Draws()


class OwnDrawProbe(FactProbe):
    """At the first sampled steps, then now and then, the column ``own_draws``: from the end of the step before to the
    update, whoever draws. While it looks, torch passes draws through kernels of ours, which read the state of a
    generator that is not torch's own, and nothing else; at other steps there are none.
    """

    name = "own draws"
    moments = ("output", "update")
    between = None

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._times = NowAndThen()
        self._failed = False
        self._forget()

    def begin(self, step: Step) -> bool:
        self._forget()
        due = step.watched and step.sampled and not self._failed and self._times.due(step)
        (draws.add if due else draws.remove)(self)
        return due

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        if moment == "output":
            first = next((x for _, x in tensors_inside("", (*step.args, dict(step.kwargs))) if x.dim() > 0), None)
            self._rows |= set() if first is None else {first.shape[0]}
            return {}
        own_draws = [
            OwnDraw(operation, shape, line, state, len(shape) > 0 and shape[0] > 1 and shape[0] in self._rows)
            for operation, shape, line, state in self._draws
        ]
        self._forget()
        return {"own_draws": draws_text(own_draws)}

    def detach(self) -> None:
        draws.remove(self)

    def listens_to(self, generator: torch.Generator | None) -> bool:
        """To those of the program's own."""
        return generator is not None

    def state_of(self, generator: torch.Generator | None) -> int | None:
        """A digest of the state; None where it cannot be read, as while a CUDA graph is captured: then no more are."""
        if self._failed or generator is None:
            return None
        with self._guard(self.name):
            try:
                return digest_of(generator)
            except Exception:
                _log.warning("trueline: the state of a generator cannot be read; own draws are not seen", exc_info=True)
                self._failed = True
        return None

    def drawn(self, operation: str, shape: tuple[int, ...], state: int | None) -> None:
        with self._guard(self.name):
            if state is not None and len(self._draws) < MAX_DRAWS and (at := script_line()):
                self._draws.append((operation, shape, at, state))

    def _forget(self) -> None:
        self._draws: list[tuple[str, tuple[int, ...], str, int]] = []
        self._rows: set[int] = set()


def digest_of(generator: torch.Generator) -> int:
    """uint64 digest of its state."""
    return xxhash.xxh3_64_intdigest(generator.get_state().numpy().data)
