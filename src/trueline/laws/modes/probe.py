"""Models beside the watched one, and parts of it that nothing trains, which are called without gradients and drop
values: a teacher, a reference or a reward model that was left in training mode.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.adapters.base import Guard
from trueline.capture.model.layout import compiled_inside, local, unwrap
from trueline.capture.model.outputs import differentiable
from trueline.capture.model.untraced import Hook, compiled_in_place, in_backward, script_line
from trueline.capture.probes.around_update.sampling import NowAndThen
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.batch import tensors_inside
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.probes.surroundings import torch_states
from trueline.schema.columns.other_models import OtherModel, models_text
from trueline.tensor.digest import digest_each

SEARCHED_AT = 1
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
"""What computes by another kernel in evaluation mode if one of its parts has a hook."""

Inputs = list["weakref.ref[Tensor]"]


@dataclass
class _Called:
    """A model's calls of a step that drop: of the first, which parts, and from where; what each was given. ``behind``:
    what it returned may have been given to a part that is trained.
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
        self._found: list[tuple[str, weakref.ref[nn.Module]]] | None = None
        self._parts: set[int] = set()
        self._learns: set[int] = set()
        self._handles: list[Any] = []
        self._forget(due=False)

    def begin(self, step: Step) -> bool:
        """In the first steps, then now and then."""
        taken = step.watched and step.sampled
        self._forget(due=taken and self._found is not None and self._times.due(step))
        return self._due or (taken and self._found is None and step.age >= SEARCHED_AT)

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """``other_models`` and, int64 [K], ``other_weights``, of those that this step has called so."""
        if moment == "gradients" and self._found is None:
            self._search()
        if not self._due:
            return {}
        if moment == "batch":
            self._known.append(_inputs(step.args, step.kwargs))
        if moment == "output":
            self._given.append(_inputs(step.args, step.kwargs))
            self._share(self._given[-1], self._called.keys() - self._parts)
        return self._taken(step) if moment == "update" else {}

    def _taken(self, step: Step) -> dict[str, Any]:
        found, weights = list[OtherModel](), list[Tensor]()
        groups = [] if step.optimizer is None else step.optimizer.param_groups
        held = {id(param) for group in groups for param in group["params"]}
        for key, called in sorted(self._called.items()):
            name, model = (self._found or [])[key][0], (self._found or [])[key][1]()
            inside = key in self._parts  # an optimizer may hold all of the watched model, which trains nothing of it
            if model is not None and (not inside or (called.shared and not called.behind)):
                params = list(model.parameters())
                trained = any(param.grad is not None or (id(param) in held and not inside) for param in params)
                more = (called.shared, called.again, trained)
                found.append(OtherModel(key, name, called.drops, called.p, called.at, *more))
                weights.append(_weights(params))
        self._forget(due=False)
        return {"other_models": models_text(found)} | ({"other_weights": torch.stack(weights)} if weights else {})

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """``other_weights``."""
        return {"other_weights": host["other_weights"].tolist()} if "other_weights" in host else {}

    def detach(self) -> None:
        """Take all hooks off."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._found = [], []
        self._forget(due=False)

    def _forget(self, *, due: bool) -> None:
        self._due = due
        self._open: tuple[nn.Module, list[int], Inputs] | None = None
        self._given: list[Inputs] = []
        self._known: deque[Inputs] = deque(maxlen=2 * MAX_KNOWN)
        self._learned: deque[Inputs] = deque(maxlen=MAX_KNOWN)
        self._called: dict[int, _Called] = {}

    def _search(self) -> None:
        frozen, trained = parts_beside_trained(self._model)
        models = [(type(each).__name__, each) for each in models_beside(self._model)]
        self._parts = set(range(len(models), len(models) + len(frozen)))
        self._found = []
        for key, (name, model) in enumerate([*models, *frozen]):
            self._found.append((name, weakref.ref(model)))
            for part in called_parts(model, DEPTH):
                self._hook(part, key)
        for part in trained:
            self._hook(part, None)

    def _hook(self, part: nn.Module, key: int | None) -> None:
        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if self._open is not None and self._open[0] is module:
                with self._guard(self.name):
                    if key is None:
                        self._trained_returns(output)
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
                self._learns.add(key)
                self._called.pop(key, None)
            return
        if key in self._learns or torch_states(_device(module)) == states:
            return
        dropping = [(name, p) for name, part, p in dropping_parts(module) if part.training]
        if not dropping:
            return
        called = self._called.get(key)
        if called is None:
            names = tuple(f"{type(module).__name__}.{name}".rstrip(".") for name, _ in dropping[:MAX_NAMES])
            called = self._called[key] = _Called(names, max(p for _, p in dropping), script_line(), [])
        called.again = called.again or any(_in_common(each, inputs) for each in called.inputs)
        called.inputs = [*called.inputs, inputs][-MAX_CALLS:]
        given = self._learned if key in self._parts else self._given
        called.shared = called.shared or any(_in_common(each, inputs) for each in given)

    def _trained_returns(self, output: Any) -> None:
        """Of a part that is trained, outermost: what it was given, and what it returns, is known from now on."""
        assert self._open is not None
        (_, _, inputs), self._open = self._open, None
        made = list(differentiable(output))
        if not made:
            return
        self._share(inputs, self._parts)
        called = [each for key, each in self._called.items() if key in self._parts]
        known = [*self._known, *(given for each in called for given in each.inputs)]
        if any(_may_be_made(x) and not any(_in_common([x], each) for each in known) for x in inputs):
            for each in called:
                each.behind = True
        self._learned.append(inputs)
        self._known.extend((inputs, _refs(made)))

    def _share(self, inputs: Inputs, keys: Iterable[int]) -> None:
        for called in (self._called[key] for key in keys if key in self._called):
            called.shared = called.shared or any(_in_common(each, inputs) for each in called.inputs)


def parts_beside_trained(model: nn.Module) -> tuple[list[tuple[str, nn.Module]], list[nn.Module]]:
    """Parts of ``model`` that may drop values and have parameters, none of which has a gradient, with their names; and
    those that are trained beside them, with what is directly inside, as the script may call that by itself. Both are
    empty without the first, or where any of it is compiled.
    """
    params = list(model.parameters())
    has = {id(param) for param in params if param.grad is not None}
    trains = has or {id(param) for param in params if param.requires_grad}
    parts = _side_by_side(unwrap(model), "", DEPTH, trains)
    frozen = [(name, part) for name, part, learns in parts if not learns][:MAX_PARTS]
    own = {id(param) for param in params} if frozen else set[int]()
    compiled = (param for each in (_alive() if frozen else ()) if _is_compiled(each) for param in each.parameters())
    if not frozen or any(id(param) in own for param in compiled):
        return [], []
    trained = [each for _, part, learns in parts if learns for each in (part, *part.children())]
    return frozen, [
        each for each in trained if not isinstance(each, _UNHOOKED) and next(each.parameters(), None) is not None
    ]


def _side_by_side(module: nn.Module, name: str, depth: int, trains: set[int]) -> list[tuple[str, nn.Module, bool]]:
    """Parts that are not inside each other, with whether they train; what does both is taken apart, down to ``depth``,
    if it holds one that does not.
    """
    found: list[tuple[str, nn.Module, bool]] = []
    for key, part in module.named_children():
        path, params = f"{name}.{key}".lstrip("."), {id(param) for param in part.parameters()}
        inside = _side_by_side(part, path, depth - 1, trains) if depth > 0 and params & trains else []
        if any(not learns for _, _, learns in inside):
            found += inside
        elif params & trains or (params and any(dropping_parts(part))):
            found.append((path, part, bool(params & trains)))
    return found


def models_beside(model: nn.Module) -> list[nn.Module]:
    """Modules that are alive and inside of no other, share no parameter with ``model``, and have parameters and a part
    that may drop values; of one that shares some, what is inside of it. Those with compiled parts are left out.
    """
    alive = _alive()
    inside = {id(part) for each in alive for part in each._modules.values()}
    own = {id(param) for param in model.parameters()}
    found: list[nn.Module] = []

    def look(module: nn.Module) -> None:
        params = {id(param) for param in module.parameters()}
        if params & own:
            for part in module.children():
                look(part)
        elif params and not any(_is_compiled(part) for part in module.modules()) and any(dropping_parts(module)):
            found.append(module)

    for each in alive:
        if id(each) not in inside and isinstance(getattr(each, "_parameters", None), dict):
            look(each)
    return found[:MAX_MODELS]


def dropping_parts(module: nn.Module) -> Iterator[tuple[str, nn.Module, float]]:
    """Name, module and probability of each part that drops values in training mode, as far as its class or its numbers
    are called so (``dropout``, ``drop_prob``, ``layerdrop``).
    """
    for name, part in module.named_modules():
        if isinstance(part, nn.RNNBase) and part.num_layers == 1:
            continue
        kind = type(part).__name__.lower()
        named = ("p", "prob") if "drop" in kind or kind == "stochasticdepth" else ()
        numbers = (value for key, value in vars(part).items() if "drop" in key.lower() or key in named)
        p = max((value for value in numbers if isinstance(value, float) and 0 < value <= 1), default=0.0)
        if p > 0:
            yield name, part, p


def _alive() -> list[nn.Module]:
    kinds = set(_kinds(nn.Module))
    return [each for each in gc.get_objects() if type(each) in kinds]  # no isinstance: a proxy would answer


def _kinds(kind: type[nn.Module]) -> Iterator[type[nn.Module]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


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
    """What views are of counts as what they are. Not parameters: torch swaps none that has a weak reference."""
    bases = [x._base if x._is_view() and x._base is not None else x for x in tensors[:MAX_INPUTS]]
    return [weakref.ref(x) for x in bases if not (isinstance(x, nn.Parameter) or (x.is_leaf and x.requires_grad))]


def _may_be_made(ref: weakref.ref[Tensor]) -> bool:
    """Whether a tensor may be made of what a model returned: numbers, and no parameter."""
    x = ref()
    return x is not None and x.is_floating_point() and not (x.is_leaf and x.requires_grad)


def _in_common(some: Inputs, others: Inputs) -> bool:
    alive = [x for x in (ref() for ref in some) if x is not None]
    return any(x is y for x in alive for y in (ref() for ref in others))


def _weights(params: list[nn.Parameter]) -> Tensor:
    """int64 [] digest of some elements, on their device."""
    few = params[:: max(1, len(params) // NUM_WEIGHTS)][:NUM_WEIGHTS]
    parts = [local(param.detach()).flatten()[:NUM_ELEMENTS] for param in few]
    return digest_each(parts, parts[0].device).mul(torch.arange(1, 2 * len(parts), 2, device=parts[0].device)).sum()


def make_probe(parts: ProbeParts) -> OtherModelProbe:
    """The probe of this law for one watched model."""
    return OtherModelProbe(parts.guard, parts.model)
