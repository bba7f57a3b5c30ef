"""Models beside the watched one, and parts of it that nothing trains, which are called without gradients and drop
values: a teacher, a reference or a reward model that was left in training mode.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.adapters.base import Guard
from trueline.capture.dropout import dropping_parts
from trueline.capture.model.layout import compiled_inside, local, unwrap
from trueline.capture.model.live_objects import instances_of
from trueline.capture.model.outputs import differentiable
from trueline.capture.model.untraced import Hook, compiled_in_place, in_backward, script_line
from trueline.capture.probes.around_update.sampling import NowAndThen
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.batch import tensors_inside
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.probes.surroundings import torch_states
from trueline.laws.modes.columns import OtherModel, models_text
from trueline.tensor.digest import digest_each

SEARCH_AGE = 1
"""Watched steps before the one at the end of which models are sought, once: a teacher is made before the loop."""
MAX_MODELS, MAX_PARTS, DEPTH = 256, 16, 2
"""Models that are followed, many, as those that nobody holds any more may be among them; parts of the watched one; how
deep inside of one a part may be that is called by itself, as what a wrapper holds."""
MAX_CALLS, MAX_INPUTS, MAX_NAMES, MAX_KNOWN = 16, 8, 3, 64
"""Calls of a step that are compared, inputs of each, names of parts that are kept, and calls of parts that are trained
of which inputs and outputs are known."""
NUM_WEIGHTS, NUM_ELEMENTS = 4, 4096
"""Parameters of a model, and first elements of each, that show whether it moves."""
_UNHOOKED = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
"""Modules that compute by another kernel in evaluation mode if one of its parts has a hook."""

Inputs = list["weakref.ref[Tensor]"]


@dataclass
class _ModelCalls:
    """A model's calls of a step that drop: parts and script line of the first, inputs of each. ``behind``: its
    output may have been given to a part that is trained.
    """

    drops: tuple[str, ...]
    p: float
    at: str
    inputs: list[Inputs]
    shared: bool = False
    again: bool = False
    behind: bool = False


class OtherModelProbe:
    """At the first sampled steps, then now and then, the columns ``other_models`` and ``other_weights``.

    The models are those that live beside the watched one two steps after watching began, and have parameters of their
    own and a part that may drop values. Their calls are hooked, not those of what is inside: whether a call drew random
    numbers, and returned nothing that has a gradient.

    A part of the watched model that nothing trains is such a model if a part that is trained was given the same tensor,
    and none of those was then given what may have been made of its output (the layers in front of a head that is
    trained are no teacher), and it never returns what has a gradient. Where there is such a part, what trained parts
    are given and return is known, too.
    """

    name = "other models"
    moments = ("batch", "output", "update", "gradients")
    between = None

    def __init__(self, guard: Guard, model: nn.Module) -> None:
        self._guard, self._model = guard, model
        self._times = NowAndThen()
        self._models: list[tuple[str, weakref.ref[nn.Module]]] | None = None
        self._parts: set[int] = set()
        self._learns: set[int] = set()
        self._handles: list[Any] = []
        self._forget(due=False)

    def begin(self, step: Step) -> bool:
        is_sampled = step.watched and step.sampled
        self._forget(due=is_sampled and self._models is not None and self._times.due(step))
        return self._due or (is_sampled and self._models is None and step.age >= SEARCH_AGE)

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """``other_models`` and, int64 [K], ``other_weights``, of those that this step has called so."""
        if moment == "gradients" and self._models is None:
            self._search()
        if not self._due:
            return {}
        if moment == "batch":
            self._trained_tensors.append(_inputs(step.args, step.kwargs))
        if moment == "output":
            self._given_inputs.append(_inputs(step.args, step.kwargs))
            self._share(self._given_inputs[-1], self._calls_by_key.keys() - self._parts)
        return self._columns_of(step) if moment == "update" else {}

    def _columns_of(self, step: Step) -> dict[str, Any]:
        models, weights = list[OtherModel](), list[Tensor]()
        groups = [] if step.optimizer is None else step.optimizer.param_groups
        held_ids = {id(param) for group in groups for param in group["params"]}
        for key, calls in sorted(self._calls_by_key.items()):
            name, model = (self._models or [])[key][0], (self._models or [])[key][1]()
            inside = key in self._parts  # an optimizer may hold all of the watched model, which trains nothing of it
            if model is not None and (not inside or (calls.shared and not calls.behind)):
                params = list(model.parameters())
                trained = any(param.grad is not None or (id(param) in held_ids and not inside) for param in params)
                more = (calls.shared, calls.again, trained)
                models.append(OtherModel(key, name, calls.drops, calls.p, calls.at, *more))
                weights.append(_weights(params))
        self._forget(due=False)
        return {"other_models": models_text(models)} | ({"other_weights": torch.stack(weights)} if weights else {})

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"other_weights": host["other_weights"].tolist()} if "other_weights" in host else {}

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._models = [], []
        self._forget(due=False)

    def _forget(self, *, due: bool) -> None:
        self._due = due
        self._open: tuple[nn.Module, list[int], Inputs] | None = None
        self._given_inputs: list[Inputs] = []
        self._trained_tensors: deque[Inputs] = deque(maxlen=2 * MAX_KNOWN)
        self._learned: deque[Inputs] = deque(maxlen=MAX_KNOWN)
        self._calls_by_key: dict[int, _ModelCalls] = {}

    def _search(self) -> None:
        frozen, trained = parts_beside_trained(self._model)
        models = [(type(model).__name__, model) for model in models_beside(self._model)]
        self._parts = set(range(len(models), len(models) + len(frozen)))
        self._models = []
        # the key is the place in the list of all, so that names stay valid where a model has gone
        for key, (name, model) in enumerate([*models, *frozen]):
            self._models.append((name, weakref.ref(model)))
            for part in called_parts(model, DEPTH):
                self._hook(part, key)
        for part in trained:
            self._hook(part, None)

    def _hook(self, part: nn.Module, key: int | None) -> None:
        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self._open is not None and self._open[0] is module:
                with self._guard(self.name):
                    if key is None:
                        self._at_trained_return(output)
                    else:
                        self._at_return(key, module, output)

        self._handles.append(part.register_forward_pre_hook(Hook(self._before), with_kwargs=True))
        self._handles.append(part.register_forward_hook(Hook(after), with_kwargs=True))

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self._due and self._open is None and not in_backward():
            with self._guard(self.name):
                self._open = module, torch_states(_device(module)), _inputs(args, kwargs)

    def _at_return(self, key: int, module: nn.Module, output: Any) -> None:
        assert self._open is not None
        (_, states, inputs), self._open = self._open, None
        if next(differentiable(output), None) is not None:
            if key in self._parts:
                # for good: what returns a gradient once is trained, whatever it does at other steps
                self._learns.add(key)
                self._calls_by_key.pop(key, None)
            return
        if key in self._learns or torch_states(_device(module)) == states:
            return
        dropping = [(name, p) for name, part, p in dropping_parts(module) if part.training]
        if not dropping:
            return
        calls = self._calls_by_key.get(key)
        if calls is None:
            names = tuple(f"{type(module).__name__}.{name}".rstrip(".") for name, _ in dropping[:MAX_NAMES])
            calls = self._calls_by_key[key] = _ModelCalls(names, max(p for _, p in dropping), script_line(), [])
        calls.again = calls.again or any(_in_common(call_inputs, inputs) for call_inputs in calls.inputs)
        calls.inputs = [*calls.inputs, inputs][-MAX_CALLS:]
        known_inputs = self._learned if key in self._parts else self._given_inputs
        calls.shared = calls.shared or any(_in_common(call_inputs, inputs) for call_inputs in known_inputs)

    def _at_trained_return(self, output: Any) -> None:
        """Of a part that is trained, outermost: what it was given, and what it returns, is known from now on."""
        assert self._open is not None
        (_, _, inputs), self._open = self._open, None
        outputs = list(differentiable(output))
        if not outputs:
            return
        self._share(inputs, self._parts)
        frozen_calls = [calls for key, calls in self._calls_by_key.items() if key in self._parts]
        known_inputs = [
            *self._trained_tensors,
            *(call_inputs for calls in frozen_calls for call_inputs in calls.inputs),
        ]
        if any(_may_be_made(x) and not any(_in_common([x], tensors) for tensors in known_inputs) for x in inputs):
            for calls in frozen_calls:
                calls.behind = True
        self._learned.append(inputs)
        self._trained_tensors.extend((inputs, _refs(outputs)))

    def _share(self, inputs: Inputs, keys: Iterable[int]) -> None:
        for calls in (self._calls_by_key[key] for key in keys if key in self._calls_by_key):
            calls.shared = calls.shared or any(_in_common(call_inputs, inputs) for call_inputs in calls.inputs)


def parts_beside_trained(model: nn.Module) -> tuple[list[tuple[str, nn.Module]], list[nn.Module]]:
    """Parts of ``model`` that may drop values and have parameters, none of which has a gradient, with their names; and
    those that are trained beside them, with what is directly inside, as the script may call that by itself. Both are
    empty without the first, or where any of it is compiled.
    """
    params = list(model.parameters())
    has = {id(param) for param in params if param.grad is not None}
    trains = has or {id(param) for param in params if param.requires_grad}
    parts = _disjoint_parts(unwrap(model), "", DEPTH, trains)
    frozen = [(name, part) for name, part, learns in parts if not learns][:MAX_PARTS]
    own_ids = {id(param) for param in params} if frozen else set[int]()
    compiled = (module for module in (instances_of(nn.Module) if frozen else ()) if _is_compiled(module))
    if not frozen or any(id(param) in own_ids for module in compiled for param in module.parameters()):
        return [], []
    trained = [module for _, part, learns in parts if learns for module in (part, *part.children())]
    hookable = [module for module in trained if not isinstance(module, _UNHOOKED)]
    return frozen, [module for module in hookable if next(module.parameters(), None) is not None]


def _disjoint_parts(module: nn.Module, name: str, depth: int, trains: set[int]) -> list[tuple[str, nn.Module, bool]]:
    """Parts that are not inside each other, with whether they train; what does both is taken apart, down to ``depth``,
    if it holds one that does not.
    """
    parts: list[tuple[str, nn.Module, bool]] = []
    for key, part in module.named_children():
        path, params = f"{name}.{key}".lstrip("."), {id(param) for param in part.parameters()}
        inner_parts = _disjoint_parts(part, path, depth - 1, trains) if depth > 0 and params & trains else []
        if any(not learns for _, _, learns in inner_parts):
            parts += inner_parts
        elif params & trains or (params and any(dropping_parts(part))):
            parts.append((path, part, bool(params & trains)))
    return parts


def models_beside(model: nn.Module) -> list[nn.Module]:
    """Modules that are alive and inside of no other, share no parameter with ``model``, and have parameters and a part
    that may drop values; of one that shares some, what is inside of it. Those with compiled parts are left out.
    """
    alive = instances_of(nn.Module)
    inner_ids = {id(part) for candidate in alive for part in candidate._modules.values()}
    own_ids = {id(param) for param in model.parameters()}
    models: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        params = {id(param) for param in module.parameters()}
        if params & own_ids:
            for part in module.children():
                visit(part)
        elif params and not any(_is_compiled(part) for part in module.modules()) and any(dropping_parts(module)):
            models.append(module)

    for candidate in alive:
        if id(candidate) not in inner_ids and isinstance(getattr(candidate, "_parameters", None), dict):
            visit(candidate)
    return models[:MAX_MODELS]


def called_parts(module: nn.Module, depth: int) -> Iterator[nn.Module]:
    """``module`` and parts of it that drop and that the script may call by themselves."""
    if isinstance(module, _UNHOOKED) or not any(dropping_parts(module)):
        return
    yield module
    if depth > 0:
        for part in module.children():
            if next(part.children(), None) is not None:
                yield from called_parts(part, depth - 1)


def _is_compiled(module: nn.Module) -> bool:
    return compiled_inside(module) is not None or compiled_in_place(module)


def _device(module: nn.Module) -> torch.device:
    param = next(module.parameters(), None)
    return torch.device("cpu") if param is None else param.device


def _inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
    return _refs([x for _, x in tensors_inside("", (*args, dict(kwargs)))])


def _refs(tensors: list[Tensor]) -> Inputs:
    """Weak references to tensors, of views to their bases; not to parameters, which torch does not swap then."""
    bases = [x._base if x._is_view() and x._base is not None else x for x in tensors[:MAX_INPUTS]]
    return [weakref.ref(x) for x in bases if not (isinstance(x, nn.Parameter) or (x.is_leaf and x.requires_grad))]


def _may_be_made(ref: weakref.ref[Tensor]) -> bool:
    """True if a tensor may be made of what a model returned: numbers, and no parameter."""
    x = ref()
    return x is not None and x.is_floating_point() and not (x.is_leaf and x.requires_grad)


def _in_common(inputs: Inputs, other_inputs: Inputs) -> bool:
    alive = [x for x in (ref() for ref in inputs) if x is not None]
    return any(x is y for x in alive for y in (ref() for ref in other_inputs))


def _weights(params: list[nn.Parameter]) -> Tensor:
    """int64 [] digest of some elements, on their device."""
    few = params[:: max(1, len(params) // NUM_WEIGHTS)][:NUM_WEIGHTS]
    parts = [local(param.detach()).flatten()[:NUM_ELEMENTS] for param in few]
    return digest_each(parts, parts[0].device).mul(torch.arange(1, 2 * len(parts), 2, device=parts[0].device)).sum()


def make_probe(parts: ProbeParts) -> OtherModelProbe:
    """The probe of this law for one watched model."""
    return OtherModelProbe(parts.guard, parts.model)
