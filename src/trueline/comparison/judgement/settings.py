"""Settings of the optimizers of two runs, and of their clipping, that differ: by name, and since which update.

A Run has the settings of its optimizer once, as they were when its environment was written, and the learning rates of
every step. A setting can only have caused what follows the first update that uses it. What else a schedule changes
(betas, a momentum) shows in the arguments of the calls of the update, from which ``setting_of`` tells the setting.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.comparison.judgement.values.argument_differences import Argument, Arguments
from trueline.judge.series.clip_calls import calls_at
from trueline.schema.text.words import named_some
from trueline.store.reader import Run

WAYS = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings that choose the kernels of an update and not its result."""

CLASS = "class"
"""The name of the optimizer's class, which is no setting: another class may compute the same."""

_COUNT, _RATE, _CLIP = "num_params", "lr", "max_norm of clip_grad_norm_"
_BETAS = {"betas.0": "betas[0] (beta1)", "betas.1": "betas[1] (beta2)"}


@dataclass(frozen=True, slots=True)
class SettingsDifference:
    """Settings that both optimizers have and that differ: the text of each in the run and in the reference, by its
    path in ``param_groups``. ``first_step`` is the first one whose update they may change; ``rates_since`` that at
    which the learning rates part, None where they were always apart or never. ``num_groups``: parameter groups of
    the run.
    """

    settings: Mapping[str, tuple[str, str]]
    first_step: int
    rates_since: int | None
    num_groups: int

    @property
    def only_class(self) -> bool:
        """True where nothing but the class differs."""
        return set(self.settings) == {CLASS}

    @property
    def only_clipping(self) -> bool:
        """True where nothing but the norm differs by which gradients are clipped."""
        return set(self.settings) == {_CLIP}

    @property
    def of_count(self) -> bool:
        """True where the numbers of parameters differ."""
        return any(name.endswith(f".{_COUNT}") for name in self.settings)

    def may_have_caused(self, step: int, phase: str) -> bool:
        """True where a value of a ``phase`` of ``step`` comes after the first update that uses these settings."""
        phases = ("opt", "grad") if _CLIP in self.settings else ("opt",)
        return step > self.first_step or (step == self.first_step and phase in phases)

    def in_words(self) -> str:
        """``betas[1] (beta2) is 0.999 and not 0.95; lr is 0.055 and not 0.05``; groups only where they do not agree."""
        groups: dict[tuple[str, str, str], list[str]] = {}
        for path, (setting, ref_setting) in self.settings.items():
            group, name = _group_and_name(path)
            groups.setdefault((name, setting, ref_setting), []).append(group)
        texts = [
            f"{name} is {setting} and not {ref_setting}{self._of_groups(group_names)}{self._of_step(name)}"
            for (name, setting, ref_setting), group_names in groups.items()
        ]
        return "; ".join([*texts[:4], *([f"and {len(texts) - 4} more"] if len(texts) > 4 else [])])

    def _of_groups(self, groups: Sequence[str]) -> str:
        numbered = [group for group in groups if group]
        if not numbered or len(numbered) == self.num_groups:
            return ""
        return f" in parameter group{'' if len(numbered) == 1 else 's'} {named_some(numbered)}"

    def _of_step(self, name: str) -> str:
        return f" from step {self.rates_since} on" if name == _RATE and self.rates_since is not None else ""


def differing_settings(run: Run, ref: Run) -> SettingsDifference | None:
    """Settings of the optimizers of the lowest ranks that both have and that differ; None where none does."""
    if not run.env or not ref.env:
        return None
    settings_by_name, ref_settings = (_flat(side.env[min(side.env)].optimizer) for side in (run, ref))
    begin, rates_since, rates = _rates(run, ref)
    followed = begin is not None
    # Learning rates of every step say more than the one in the environment, where both have them.
    settings = {
        name: (setting, ref_settings[name])
        for name, setting in settings_by_name.items()
        if name in ref_settings and not _agree(setting, ref_settings[name]) and name.rpartition(".")[2] not in WAYS
        if not (name.endswith(f".{_COUNT}") and all(map(_has_all_parameters, (run, ref))))
        if not all(_is_idle(name, side) for side in (settings_by_name, ref_settings))
        if not (followed and name.endswith(f".{_RATE}"))
    }
    clips = _clips(run, ref)
    # Settings hold from the first update on; rates and clipping from where they part.
    starts = [begin or 0] if settings else [step for step in (rates_since, clips[0]) if step is not None]
    differing = {**settings, **rates, **clips[1]}
    later = rates_since if rates_since != begin else None
    groups = run.env[min(run.env)].optimizer.get("groups", [])
    return SettingsDifference(differing, min(starts, default=0), later, len(groups)) if differing else None


def _rates(run: Run, ref: Run) -> tuple[int | None, int | None, Mapping[str, tuple[str, str]]]:
    """The first step of which both have learning rates, the first at which these differ, and how; None: no such step.

    Runs whose optimizers have different numbers of parameter groups have no learning rates in common.
    """
    lists, ref_lists = (side.lists(_RATE, ranks=side.ranks[:1]) if len(side.steps) else {} for side in (run, ref))
    ref_rates = {step: rates for (step, _), rates in ref_lists.items()}
    rates_of_step = {step: rates for (step, _), rates in lists.items()}
    shared = rates_of_step.keys() & ref_rates.keys()
    common = sorted(step for step in shared if len(rates_of_step[step]) == len(ref_rates[step]))
    for step in common:
        pairs = enumerate(zip(rates_of_step[step].tolist(), ref_rates[step].tolist(), strict=True))
        differing = {f"groups.{at}.{_RATE}": (f"{a:.6g}", f"{b:.6g}") for at, (a, b) in pairs if not _close(a, b)}
        if differing:
            return common[0], step, differing
    return (common[0] if common else None), None, {}


def _clips(run: Run, ref: Run) -> tuple[int | None, Mapping[str, tuple[str, str]]]:
    """The first step at which both clip by another norm, to an effect, and how; None: no such step."""
    for step in map(int, run.steps):
        for clip, ref_clip in zip(calls_at(run, step, None), calls_at(ref, step, None), strict=False):
            if not _close(clip.max_norm, ref_clip.max_norm) and not _close(clip.factor, ref_clip.factor):
                return step, {_CLIP: (f"{clip.max_norm:.6g}", f"{ref_clip.max_norm:.6g}")}
    return None, {}


def _close(number: float, ref_number: float) -> bool:
    """True where float32, in which an optimizer may hold a setting, does not tell two numbers apart; NaN: not
    measured.
    """
    if math.isnan(number) or math.isnan(ref_number):
        return True
    return math.isclose(number, ref_number, rel_tol=2 * UNIT_ROUNDOFF["float32"])


def _agree(setting: str, ref_setting: str) -> bool:
    """True where two settings, as JSON, are the same."""
    a, b = json.loads(setting), json.loads(ref_setting)
    numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in (a, b))
    return _close(a, b) if numbers else bool(a == b)


def _is_idle(name: str, settings: Mapping[str, str]) -> bool:
    """True where a setting has no effect, since that by which it works is zero."""
    group, _, setting = name.rpartition(".")
    needs = _IDLE_WITHOUT.get(setting)
    return needs is not None and json.loads(settings.get(f"{group}.{needs}", "null")) == 0


_IDLE_WITHOUT = {"decoupled_weight_decay": "weight_decay", "nesterov": "momentum", "dampening": "momentum"}
"""Settings that only say how another one works (``torch/optim/adam.py``, ``sgd.py``), and that one."""


def _group_and_name(path: str) -> tuple[str, str]:
    """``("0", "betas[1] (beta2)")`` of ``groups.0.betas.1``."""
    parts = path.split(".", 2)
    if parts[0] != "groups" or len(parts) < 3:
        return "", path
    return parts[1], _BETAS.get(parts[2], parts[2])


def _has_all_parameters(run: Run) -> bool:
    """True where an optimizer works on as many parameters as were recorded: how many the model has is not its
    setting.
    """
    groups = run.env[min(run.env)].optimizer.get("groups", [])
    if not run.has_records or not groups:
        return False
    first = [int(run.record_steps[0])]
    table = cast(Any, run).records(steps=first, ranks=[run.record_ranks[0]], columns=["phase", "name"], resolve=False)
    rows = zip(table["phase"].to_pylist(), table["name"].to_pylist(), strict=True)
    return len({name for phase, name in rows if phase == "param"}) == sum(group.get(_COUNT) or 0 for group in groups)


def _flat(document: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(document, dict):
        items = list(cast(dict[str, Any], document).items())
    elif isinstance(document, list):
        items = list(enumerate(cast(list[Any], document)))
    else:
        return {prefix: json.dumps(document)}
    flat: dict[str, str] = {}
    for name, value in items:
        flat |= _flat(value, f"{prefix}.{name}" if prefix else str(name))
    return flat


@dataclass(frozen=True, slots=True)
class _Use:
    """The use of a setting in an update of torch's optimizers: an argument of a ``function``, on a parameter or (False)
    on the optimizer's state or a gradient. ``formula``: what is passed; ``inverse`` gives the setting, None where it
    takes more than the argument.
    """

    function: str
    on_param: bool
    setting: str
    formula: str
    inverse: Callable[[float], float] | None = None

    @property
    def counts_updates(self) -> bool:
        """True where the argument also depends on how many updates there were."""
        return "step" in self.formula


def _identity(x: float) -> float:
    return x


def _negated(x: float) -> float:
    return -x


def _rest(x: float) -> float:
    return 1 - x


_DECAYED = _Use("mul", True, "weight_decay or lr", "1 - lr * weight_decay")
_L2 = _Use("add", True, "weight_decay", "weight_decay", _identity)
_EPS = _Use("add", False, "eps", "eps", _identity)
_ADAM = (
    _DECAYED,
    _L2,
    _EPS,
    _Use("lerp", False, "betas[0] (beta1)", "1 - beta1", _rest),
    _Use("mul", False, "betas[1] (beta2)", "beta2", _identity),
    _Use("addcmul", False, "betas[1] (beta2)", "1 - beta2", _rest),
    _Use("addcdiv", True, "lr", "-lr / (1 - beta1 ** step)"),
    _Use("div", False, "betas[1] (beta2)", "sqrt(1 - beta2 ** step)"),
)
_USES: Mapping[str, Sequence[_Use]] = {
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "NAdam": _ADAM,
    "RAdam": _ADAM,
    "Adamax": (
        *(_DECAYED, _L2, _Use("lerp", False, "betas[0] (beta1)", "1 - beta1", _rest)),
        *(
            _Use("mul", False, "betas[1] (beta2)", "beta2", _identity),
            _Use("addcdiv", True, "lr", "-lr / (1 - beta1 ** step)"),
        ),
    ),
    "SGD": (
        _Use("add_", True, "lr", "-lr", _negated),
        _L2,
        _Use("mul", False, "momentum", "momentum", _identity),
        _Use("add_", False, "dampening", "1 - dampening", _rest),
        _Use("add", False, "momentum", "momentum", _identity),
    ),
    "RMSprop": (
        *(_DECAYED, _L2, _EPS, _Use("addcdiv", True, "lr", "-lr", _negated)),
        _Use("mul", False, "alpha", "alpha", _identity),
        _Use("addcmul", False, "alpha", "1 - alpha", _rest),
    ),
    "Adagrad": (_L2, _EPS, _Use("addcdiv", True, "lr or lr_decay", "-lr / (1 + (step - 1) * lr_decay)")),
    "Adadelta": (_L2, _Use("mul", False, "rho", "rho", _identity), _Use("addcmul", False, "rho", "1 - rho", _rest)),
    "Adafactor": (_DECAYED, _Use("lerp", False, "beta2_decay", "step ** beta2_decay")),
}
"""By optimizer; as torch 2.13 computes an update tensor by tensor (``torch/optim``, the ``_single_tensor`` functions),
which its lists of tensors follow."""


def setting_of(
    name: str, arguments: Arguments, *, on_param: bool, differing: Mapping[str, tuple[str, str]] | None = None
) -> str:
    """The setting that makes the ``arguments`` of a call of an update differ, as a text; '' where that is not known.

    ``name`` is that of the call (``AdamW.addcmul_``), ``on_param`` whether it takes a parameter first. ``differing``
    settings are known to differ: where those of the argument do not, it is the number of updates in it.
    """
    optimizer, _, function = name.rpartition(".")
    numbers = [pair for pair in map(_numbers, arguments.values()) if pair is not None]
    # Two arguments that differ have no single setting as their cause.
    if len(arguments) != 1 or not numbers:
        return ""
    use = next((use for use in _USES.get(optimizer, ()) if _is_at(use, function, on_param)), None)
    if use is None:
        return ""
    # Bias corrections differ also where one optimizer has made more updates than the other.
    if use.counts_updates and not any(_group_and_name(path)[1] in use.setting for path in differing or {}):
        return f"the number of updates so far, as the settings agree (the argument is {use.formula})"
    text = f"the setting {use.setting}"
    if use.inverse is not None:
        number, ref_number = (f"{use.inverse(argument):.6g}" for argument in numbers[0])
        text += f", which is {number} and not {ref_number}"
    return f"{text} (the argument is {use.formula})" if use.formula not in use.setting else text


def _is_at(use: _Use, function: str, on_param: bool) -> bool:
    plain = function.removeprefix("_foreach_")
    return plain in (use.function, f"{use.function}_") and use.on_param == on_param


def _numbers(pair: tuple[Argument, Argument]) -> tuple[float, float] | None:
    """Two JSON texts as numbers; None where one is none."""
    numbers = [json.loads(argument) for argument in pair if argument is not None]
    if len(numbers) != 2 or not all(isinstance(number, int | float) for number in numbers):
        return None
    return float(numbers[0]), float(numbers[1])
