"""Record what surrounds a step of a rank: autocast, collectives and modes in the forward pass, model averagers of
torch, the random streams of the process, and the optimizer's hyper-parameters.
"""

from __future__ import annotations

import json
import operator
import random
import sys
from collections.abc import Callable, Container, Iterable
from typing import Any

import torch
import xxhash
from torch import nn

from trueline.capture.dropout import dropping_parts
from trueline.capture.job.environment import PLAIN, autocast_of, num_params, plain_value
from trueline.capture.model import patches
from trueline.capture.model.layout import Layout, clean_name, unwrap
from trueline.capture.model.patches import PatchedCall
from trueline.capture.model.untraced import in_backward
from trueline.capture.model.world import collectives_started
from trueline.capture.probes.base import FactProbe, Moment, Step
from trueline.capture.step.passes import Contributions, Pass
from trueline.schema.columns.evaluating_parts import EvaluatingPart, parts_text

MOST_KINDS = 64
"""Parameter groups of other settings, or of other types, whose settings are not made anew at every step."""

LOOKS = 3
"""Forward passes at the start of training in which collectives are looked for."""


class SurroundingsProbe(FactProbe):
    """The facts ``autocast`` and ``repeated``; where the user's own code reduces (``by_hand``), ``talks_in_forward``;
    and where ``goes_round`` can tell, ``forward_outside``.
    """

    name = "surroundings"
    moments = ("forward", "output")

    def __init__(self, *, by_hand: bool, goes_round: Callable[[], bool | None] | None = None) -> None:
        self._looks_left = LOOKS if by_hand else 0
        self._goes_round = goes_round
        self._before = 0

    @property
    def between(self) -> tuple[Moment, ...]:
        """Moments that may show in any step that a call goes around the wrapper; the rest is known of sampled steps."""
        return self.moments if self._looks_left > 0 else () if self._goes_round is None else ("forward",)

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        if moment == "forward":
            step.facts["autocast"] = autocast_of(step.module)
            if step.module is not None and "repeated" not in step.facts:
                step.facts["repeated"] = repeated_layers(step.module)
            outside = None if self._goes_round is None else self._goes_round()
            if outside is not None:
                step.facts["forward_outside"] = outside or step.facts.get("forward_outside", False)
        if self._looks_left > 0:
            started = collectives_started()
            if moment == "forward":
                self._before = started
            else:
                self._looks_left -= 1
                step.facts["talks_in_forward"] = step.facts.get("talks_in_forward", False) or started > self._before
        return {}


def repeated_layers(model: nn.Module) -> list[list[str]]:
    """Names in each Sequential or ModuleList of ``model`` that stand for one module of several weights.

    A head that stands in the list once for each layer, as detectors have, is left out: the first weight of a module
    that is applied to its own output takes as many features as the last one gives.
    """
    repeated: list[list[str]] = []
    for name, container in model.named_modules():
        if not isinstance(container, (nn.Sequential, nn.ModuleList)):
            continue
        names_by_module: dict[int, list[str]] = {}
        for key, module in container._modules.items():
            params = [] if module is None else list(module.parameters())
            if sum(param.dim() > 1 for param in params) > 1:
                first = next(param for param in params if param.dim() > 1)
                # a layer that is applied to its own output; a shared head takes other features than it gives
                if first.shape[1] == params[-1].shape[0]:
                    names_by_module.setdefault(id(module), []).append(f"{name}.{key}" if name else key)
        repeated += [names for names in names_by_module.values() if len(names) > 1]
    return repeated


_NORMS = nn.modules.batchnorm._NormBase
_MODE_DEPENDENT = (nn.modules.dropout._DropoutNd, _NORMS)
"""Modules that compute something else in evaluation mode."""
_EVALUATES = (
    "the model trains in evaluation mode (model.eval()): its dropout is off, and its batch normalisation uses running "
    "statistics. If that is not meant, call model.train() before training."
)


FIRST_LOOK, LOOK_FACTOR = 2, 4
"""Age of the first step at which parts in evaluation mode are named, and how many times as old the next is."""


class ModeProbe(FactProbe):
    """The columns ``eval_modules`` and ``evaluates``, on sampled steps, and on a few of them ``evaluating_parts`` and
    ``dropouts``: of the last forward pass that the step descends. A model that is in evaluation mode as a whole at the
    first of these, and computes otherwise there, is said in ``notes``; checks tell of one that comes to be, and of
    parts.
    """

    name = "mode"
    moments = ("forward", "gradients")
    between = None

    def __init__(self, notes: list[str], passes: Contributions) -> None:
        self._notes = notes
        self._passes = passes
        self._counts: list[tuple[Pass, int]] = []
        self._parts: tuple[EvaluatingPart, ...] | None = None
        self._dropouts = ""
        self._has_noted = False
        self._next_age = FIRST_LOOK
        self._modules: tuple[nn.Module, ...] = ()
        self._layout: Layout | None = None

    def begin(self, step: Step) -> bool:
        self._counts = []
        self._parts = None
        return step.sampled

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """The columns, when gradients are there; absent where no forward pass was seen."""
        if moment == "forward" and step.module is not None:
            if step.layout is not self._layout:
                self._modules, self._layout = tuple(step.module.modules()), step.layout
            self._counts.append((self._passes.now(), sum(not module.training for module in self._modules)))
            if step.age >= self._next_age:
                self._parts = _evaluating_parts(step.module) if self._counts[-1][1] else ()
                self._dropouts = _dropouts(step.module)
        if moment == "forward":
            return {}
        descended = [count for forward_pass, count in self._counts if step.counted.counts(forward_pass)]
        if not descended:
            return {}
        # frozen parts in evaluation mode are meant so; a whole model hardly is
        whole = descended[-1] == len(self._modules) and any(isinstance(part, _MODE_DEPENDENT) for part in self._modules)
        if whole and not self._has_noted:
            self._notes.append(_EVALUATES)
        self._has_noted = True
        columns: dict[str, Any] = {"eval_modules": descended[-1], "evaluates": int(whole)}
        # Not where another pass came behind the last that counts: its modes may be others.
        if self._parts is not None and step.counted.counts(self._counts[-1][0]):
            self._next_age = LOOK_FACTOR * step.age
            columns |= {"evaluating_parts": parts_text(self._parts), "dropouts": self._dropouts}
        return columns


def _evaluating_parts(model: nn.Module) -> tuple[EvaluatingPart, ...]:
    """The outermost parts in evaluation mode that have trained parameters of their own in it."""
    evaluates = {name: part for name, part in unwrap(model).named_modules() if not part.training}
    inside: dict[str, list[nn.Module]] = {}
    for name, part in evaluates.items():
        outermost = next((outer for outer in _names_around(name) if outer in evaluates), name)
        inside.setdefault(outermost, []).append(part)
    parts: list[EvaluatingPart] = []
    for outermost, modules in inside.items():
        params = [param for module in modules for param in module._parameters.values() if param is not None]
        num_trained = sum(param.requires_grad for param in params)
        # Frozen parts, as a backbone, are meant to stay in this mode.
        if not num_trained:
            continue
        drops = [p for _, part, p in dropping_parts(evaluates[outermost]) if not part.training]
        num_statistics = sum(isinstance(part, _NORMS) and bool(part._buffers) for part in modules)
        is_norm = isinstance(evaluates[outermost], _NORMS)
        name, largest = clean_name(outermost) if outermost else "", max(drops, default=0.0)
        parts.append(EvaluatingPart(name, len(modules), len(drops), largest, num_statistics, num_trained, is_norm))
    return tuple(parts)


def _dropouts(model: nn.Module) -> str:
    """JSON of [probability, parts that drop, parts that are in evaluation mode], by probability."""
    numbers: dict[float, list[int]] = {}
    for _, part, p in dropping_parts(unwrap(model)):
        numbers.setdefault(p, [0, 0])[not part.training] += 1
    return json.dumps([[p, *counts] for p, counts in sorted(numbers.items())])


def _names_around(name: str) -> list[str]:
    """Of ``a.b.c``: '', ``a`` and ``a.b``."""
    path = name.split(".") if name else []
    return [".".join(path[:length]) for length in range(len(path))]


_AVERAGERS = (
    ("torch.distributed.algorithms.model_averaging.averagers", "PeriodicModelAverager", "average_parameters"),
    (
        "torch.distributed.algorithms.model_averaging.hierarchical_model_averager",
        "HierarchicalModelAverager",
        "average_parameters",
    ),
    # `step` is called where it is disabled, too.
    ("accelerate.local_sgd", "LocalSGD", "_sync_and_avg_model_params"),
)
"""Module, class and method that averages the weights of replicas which update by themselves."""
_patched: dict[str, PatchedCall] = {}


class AveragingProbe(FactProbe):
    """The fact ``local_updates``: the class of the averager of torch or of Accelerate that was called, of those modules
    that the script has imported by now, or that the Plan declares it; '' while neither.
    """

    name = "averaging"
    moments = ("update",)

    def __init__(self) -> None:
        self._averager = ""
        for module, name, method in _AVERAGERS:
            averager = getattr(sys.modules.get(module), name, None)
            if hasattr(averager, method):
                _patched.setdefault(name, PatchedCall(averager, method)).add(self._at_average)

    @property
    def between(self) -> tuple[Moment, ...]:
        """All, where there is an averager to be called."""
        return self.moments if any(module in sys.modules for module, *_ in _AVERAGERS) else ()

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        step.facts["local_updates"] = self._averager or ("the plan" if step.plan.local_updates else "")
        return {}

    def detach(self) -> None:
        for patched in _patched.values():
            patched.remove(self._at_average)

    def _at_average(self, averager: Any, *args: Any, **kwargs: Any) -> None:
        self._averager = type(averager).__name__


class StreamProbe(FactProbe):
    """The column ``rng_drawn``, of sampled steps and of those in which somebody seeds, and those of ``rng_digests`` in
    steps before which replicas are digested.
    """

    name = "random streams"
    moments = ("forward", "update")
    between = ("update",)

    def __init__(self) -> None:
        self._first_states: list[int] = []
        self._seeded: list[int] = [0, 0]
        self._looks = False
        self._device = torch.device("cpu")
        patches.seed.add(self._at_seed, after=True)
        patches.rng_set.add(self._at_set, after=True)

    def begin(self, step: Step) -> bool:
        self._first_states, self._seeded = [], [0, 0]
        self._looks, self._device = step.sampled, step.layout.device
        return step.watched

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """The columns, just before the update; states of the begin are those of the first forward pass."""
        if moment != "update":
            self._first_states = self._first_states or (self._states() if self._looks else [])
            return {}
        columns: dict[str, Any] = rng_digests(step.layout.device) if step.digests else {}
        if self._first_states or any(self._seeded):
            # once for the states at the first forward pass, once for those as somebody seeded
            ended = self._states() * 2
            from_ = zip((*(self._first_states or (0, 0)), *self._seeded), ended, strict=True)
            # 0 where nothing was drawn: the state at the update would be that of the begin
            columns["rng_drawn"] = [state if state != end else 0 for state, end in from_]
        return columns

    def detach(self) -> None:
        patches.seed.remove(self._at_seed)
        patches.rng_set.remove(self._at_set)

    def _states(self) -> list[int]:
        return torch_states(self._device)

    def _at_seed(self, *args: Any, **kwargs: Any) -> None:
        self._seeded = self._states()

    def _at_set(self, *args: Any, **kwargs: Any) -> None:
        """Another state was put in place, as where ``fork_rng`` ends: of what was seen before nothing is left. Where
        checkpoints do so in the backward pass, they put back what it was.
        """
        if not in_backward():
            self._first_states, self._seeded = [], [0, 0]


def torch_states(device: torch.device) -> list[int]:
    """Digests of the states of torch's generators, of the host and of ``device``; 0 where that has none."""
    return [_hash(torch.get_rng_state().numpy().data), _device(device) or 0]


_WORDS = 624
"""Of the state of an MT19937. One that was seeded is at its end, NumPy's own at import one before it, and makes the
next ones with the first draw (randomkit, CPython's ``_random``). torch counts from 0.
"""
_NEXT = slice(16, 24)
"""Bytes of the state of torch's generator of the host (``CPUGeneratorImplStateLegacy``) that hold its place."""
_OFFSET = slice(8, 16)
"""Bytes of the state of its Philox of a device that hold the offset, 0 as it was seeded."""


def rng_digests(device: torch.device) -> dict[str, int | None]:
    """uint64 digest of each stream's state, keyed by its workers column; None for a stream that does not exist here.
    And ``rng_used``.
    """
    numpy: Any = sys.modules.get("numpy")
    python, host, on_device = random.getstate(), torch.get_rng_state().numpy().tobytes(), _device_state(device)
    digest, numpy_used = None, False
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        digest = _hash(keys.tobytes() + repr((name, position, has_gauss, cached)).encode())
        numpy_used = position < _WORDS - 1 or bool(has_gauss)
    used_streams = (
        python[1][-1] != _WORDS,
        numpy_used,
        any(host[_NEXT]),
        on_device is not None and any(on_device[_OFFSET]),
    )
    return {
        "rng_python": _hash(repr(python).encode()),
        "rng_numpy": digest,
        "rng_torch": _hash(host),
        "rng_device": None if on_device is None else _hash(on_device),
        "rng_used": sum(1 << bit for bit, is_used in enumerate(used_streams) if is_used),
    }


def _device(device: torch.device) -> int | None:
    state = _device_state(device)
    return None if state is None else _hash(state)


def _device_state(device: torch.device) -> bytes | None:
    module = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(module, "get_rng_state"):
        return None
    return module.get_rng_state(device).numpy().tobytes()  # type: ignore[union-attr]


def _hash(content: bytes | memoryview) -> int:
    return xxhash.xxh3_64_intdigest(content)


class OptimizerProbe(FactProbe):
    """The columns ``lr`` and ``optimizer_digest``."""

    name = "optimizer"
    moments = ("update",)
    between = moments

    def __init__(self) -> None:
        self._settings = Settings()

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        optimizer = step.optimizer
        return {} if optimizer is None else hyper_parameters(optimizer, step.layout.index_of, self._settings)


class Settings:
    """The settings of parameter groups as JSON can hold them. Those that cannot be another value without being another
    object are made once, by the key and types that a group has: nearly all stay as they are from step to step.
    """

    def __init__(self) -> None:
        self._odd: dict[tuple[Any, ...], dict[str, tuple[Any, Any]]] = {}

    def of_group(self, group: dict[str, Any]) -> dict[str, Any]:
        """All of a group but its parameters."""
        # a group that gets another key, or a tensor for a number, is learnt anew
        kinds = (*group, *map(type, group.values()))
        odd = self._odd.get(kinds)
        if odd is None:
            return self._learn(kinds, group)
        plain = dict(group)
        del plain["params"]
        for key, (value, plain_setting) in odd.items():
            if plain[key] is not value:
                return self._learn(kinds, group)
            plain[key] = plain_setting
        return plain

    def _learn(self, kinds: tuple[Any, ...], group: dict[str, Any]) -> dict[str, Any]:
        values = {key: value for key, value in group.items() if key != "params"}
        odd = {key: (value, plain_value(value)) for key, value in values.items() if type(value) not in PLAIN}
        if "params" in group and len(self._odd) < MOST_KINDS and all(_is_fixed(value) for value, _ in odd.values()):
            self._odd[kinds] = odd
        else:
            self._odd.pop(kinds, None)
        return values | {key: plain_setting for key, (_, plain_setting) in odd.items()}


def _is_fixed(value: Any) -> bool:
    return type(value) is tuple and all(type(part) in PLAIN for part in value)


def hyper_parameters(
    optimizer: torch.optim.Optimizer, param_ids: Container[int], settings: Settings | None = None
) -> dict[str, Any]:
    """Columns ``lr`` (one float a parameter group) and ``optimizer_digest`` (uint64). Tensor values on a device count
    as not measured: reading them would synchronise.
    """
    settings = settings or Settings()
    rates: list[float] = []
    facts: list[object] = [type(optimizer).__name__]
    for group in optimizer.param_groups:
        plain = settings.of_group(group)
        rate = plain.get("lr")
        rates.append(float(rate) if isinstance(rate, (int, float)) else float("nan"))
        facts.append((num_params(group, param_ids), sorted(plain.items(), key=_key)))
    return {"lr": rates, "optimizer_digest": xxhash.xxh3_64_intdigest(repr(facts).encode())}


_key = operator.itemgetter(0)

_COUNTING = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.RMSprop, torch.optim.Rprop, torch.optim.Adadelta, torch.optim.ASGD, torch.optim.SparseAdam),
)
"""Optimizers of torch whose state counts the updates of each parameter from the first on; that of SGD does not."""


def updates_made(optimizers: Iterable[torch.optim.Optimizer | None]) -> int | None:
    """Number of updates that the state of the optimizers counts, with that of a checkpoint if it was loaded; None where
    none of them counts. Reads a number from the device.
    """
    counts: list[int] = []
    for optimizer in optimizers:
        if optimizer is None:
            continue
        steps = [state.get("step") for state in optimizer.state.values() if isinstance(state, dict)]
        numbers = [int(step) for step in steps if isinstance(step, (int, float)) or _is_scalar(step)]
        if numbers:
            counts.append(max(numbers))
        elif not optimizer.state and isinstance(optimizer, _COUNTING):
            counts.append(0)
    return max(counts, default=None)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1
