"""Each module of a model given what it was given in another run, so that it is judged by itself.

At one step, what a module returns is replaced by what it returned in that run once it was recorded, and the gradient
that arrives at it by the one there; so what one module makes wrong reaches no other. Parameters get the values of that
run, and what arrives at a module and differs all the same (the batch; code between modules makes something else) is
replaced, too. Bits that are equal are left alone, and with them the graph: where all are, the step is what it was.
Stored values are in ``rank-R.pt`` of ``folder``, a dict of tensors by ``MICRO/NAME#CALL:SLOT``, with ``bwd/`` in front
for the gradient of an output, and by ``param/NAME``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trueline.capture.model import patches
from trueline.capture.model.layout import clean_name, unwrap
from trueline.capture.model.untraced import Hook
from trueline.capture.model.world import own_rank
from trueline.capture.record import arguments
from trueline.capture.record.hooks import eager_modules

UNLIKE, WEIGHTS, ARRIVES, MODULE_FED = "modules:unlike", "modules:weights", "modules:arrives", "modules:fed"
"""Words for a module whose values have other shapes or dtypes than those stored, for a parameter that had other
values (and how far off, relative), for what arrived at a module with other bits (likewise), and for a fed module.
"""


class FedModules:
    """Feeds the modules of the model that trains at ``step`` (zero-based, by updates); ``tell`` is given words."""

    def __init__(self, *, folder: str, step: int, tell: Callable[[str], None]) -> None:
        self._folder, self._step, self._tell = folder, step, tell
        self._values: Mapping[str, Tensor] = {}
        self._calls: Counter[str] = Counter()
        self._micro = -1
        self._now = 0

    def install(self) -> None:
        """Wait for the step."""
        patches.module_call.add(self._at_call, keep=True)

    def next_step(self) -> None:
        """An update was made."""
        self._now += 1

    def _at_call(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        if self._now != self._step or not torch.is_grad_enabled() or not unwrap(model).training:
            return
        patches.module_call.remove(self._at_call)
        path = Path(self._folder, f"rank-{own_rank()}.pt")
        if not path.exists():
            return
        self._values = torch.load(path, weights_only=True)
        self._hold_weights(unwrap(model))
        for position, (name, module) in enumerate(eager_modules(model, [])):
            enter = Hook(self._entering(name, is_root=position == 0), num_args=3)
            module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)  # so that what is fed is recorded

    def _hold_weights(self, model: nn.Module) -> None:
        with torch.no_grad():
            for name, param in model.named_parameters():
                stored = self._values.get(f"param/{clean_name(name)}")
                if stored is None or type(param) is not nn.Parameter or stored.shape != param.shape:
                    continue
                stored = stored.to(param.device, param.dtype)
                if not torch.equal(param, stored):
                    self._tell(f"{WEIGHTS} {clean_name(name)} {_relative_distance(param, stored):.3g}")
                    param.copy_(stored)

    def _entering(self, name: str, *, is_root: bool) -> Callable[..., Any]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if self._now != self._step or not torch.is_grad_enabled():
                return None
            if is_root:
                self._micro += 1
                self._calls.clear()
            call = f"{max(self._micro, 0)}/{name}#{self._calls[name]}"
            self._calls[name] += 1
            handle: Any = None

            def leave(module: nn.Module, args: Any, output: Any) -> Any:
                handle.remove()
                return self._returned(name, call, output)

            handle = module.register_forward_hook(Hook(leave))  # the last one: what the module made is recorded
            replaced = self._replaced(name, call, arguments.inputs(args, kwargs))
            for x, stored in replaced.values():
                self._tell(f"{ARRIVES} {name} {_relative_distance(x, stored):.3g}")
            return _with(replaced, (args, kwargs)) if replaced else None

        return enter

    def _returned(self, name: str, call: str, output: Any) -> Any:
        """The output of the module in the other run, with the gradient there."""
        slots = arguments.outputs(output)
        replaced = self._replaced(name, call, slots)
        fed_output = _with(replaced, output) if replaced else output
        for slot, x in arguments.outputs(fed_output):
            stored = self._stored(f"bwd/{call}:{slot}", x, name) if x.requires_grad else None
            if stored is not None:
                x.register_hook(lambda gradient, stored=stored: stored.to(gradient.dtype))
        self._tell(f"{MODULE_FED} {name}")
        return fed_output

    def _replaced(self, name: str, call: str, slots: arguments.Slots) -> dict[int, tuple[Tensor, Tensor]]:
        """(tensor, stored tensor) of the tensors whose bits differ, by their id."""
        replacements: dict[int, tuple[Tensor, Tensor]] = {}
        for slot, x in slots:
            stored = self._stored(f"{call}:{slot}", x, name)
            if stored is not None and not torch.equal(x, stored):
                replacements[id(x)] = (x, stored)
        return replacements

    def _stored(self, key: str, x: Tensor, name: str) -> Tensor | None:
        stored = self._values.get(key)
        if stored is None or type(x) is not Tensor:
            return None
        if stored.shape != x.shape or stored.dtype != x.dtype:
            self._tell(f"{UNLIKE} {name}")
            return None
        return stored.to(x.device)


class _Replace(torch.autograd.Function):
    """``stored`` in the place of ``x``, whose gradient goes to ``x``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stored: Tensor) -> Tensor:
        return stored.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def _with(replaced: Mapping[int, tuple[Tensor, Tensor]], tree: Any) -> Any:
    """``tree`` with stored tensors in the place of those ``replaced``."""

    def replacement(x: Any) -> Any:
        if not isinstance(x, Tensor) or id(x) not in replaced:
            return x
        stored = replaced[id(x)][1]
        return _Replace.apply(x, stored) if x.is_floating_point() else stored.clone()

    return pytree.tree_map(replacement, tree)


def _relative_distance(x: Tensor, stored: Tensor) -> float:
    """|x - stored| / |stored|."""
    wide, reference = x.detach().double(), stored.double()
    norm = float(reference.norm())
    return float((wide - reference).norm()) / norm if norm else float(wide.norm())
