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
from trueline.comparison.judgement.values.argument_differences import Arguments
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
    path in ``param_groups``. ``since`` is the first step whose update they may change; ``rates_since`` that at which
    the learning rates part, None where they were always apart or never. ``num_groups``: parameter groups of the run.
    """

    settings: Mapping[str, tuple[str, str]]
    since: int
    rates_since: int | None
    num_groups: int

    @property
    def only_class(self) -> bool:
        """Whether nothing but the class differs."""
        return set(self.settings) == {CLASS}

    @property
    def only_clipping(self) -> bool:
        """Whether nothing but the norm differs by which gradients are clipped."""
        return set(self.settings) == {_CLIP}

    @property
    def of_count(self) -> bool:
        """Whether the numbers of parameters differ."""
        return any(name.endswith(f".{_COUNT}") for name in self.settings)

    def may_have_caused(self, step: int, phase: str) -> bool:
        """Whether a value of a ``phase`` of ``step`` comes after the first update that uses these settings."""
        return step > self.since or (step == self.since and phase in ("opt", "grad" if _CLIP in self.settings else ""))

    def in_words(self) -> str:
        """``betas[1] (beta2) is 0.999 and not 0.95; lr is 0.055 and not 0.05``; groups only where they do not agree."""
        groups: dict[tuple[str, str, str], list[str]] = {}
        for path, (one, other) in self.settings.items():
            group, name = _group_and_name(path)
            groups.setdefault((name, one, other), []).append(group)
        texts = [
            f"{name} is {one} and not {other}{self._of_groups(found)}{self._of_step(name)}"
            for (name, one, other), found in groups.items()
        ]
        return "; ".join([*texts[:4], *([f"and {len(texts) - 4} more"] if len(texts) > 4 else [])])

    def _of_groups(self, found: Sequence[str]) -> str:
        known = [group for group in found if group]
        if not known or len(known) == self.num_groups:
            return ""
        return f" in parameter group{'' if len(known) == 1 else 's'} {named_some(known)}"

    def _of_step(self, name: str) -> str:
        return f" from step {self.rates_since} on" if name == _RATE and self.rates_since is not None else ""


def differing_settings(mine: Run, theirs: Run) -> SettingsDifference | None:
    """Settings of the optimizers of the lowest ranks that both have and that differ; None where none does."""
    if not mine.env or not theirs.env:
        return None
    one, other = (_flat(run.env[min(run.env)].optimizer) for run in (mine, theirs))
    begin, rates_since, rates = _rates(mine, theirs)
    followed = begin is not None
    settings = {
        name: (one[name], other[name])
        for name in one
        if name in other and not _agree(one[name], other[name]) and name.rpartition(".")[2] not in WAYS
        if not (name.endswith(f".{_COUNT}") and all(map(_has_all_parameters, (mine, theirs))))
        if not all(_is_idle(name, side) for side in (one, other))
        if not (followed and name.endswith(f".{_RATE}"))
    }
    clips = _clips(mine, theirs)
    starts = [begin or 0] if settings else [each for each in (rates_since, clips[0]) if each is not None]
    since, found = min(starts, default=0), {**settings, **rates, **clips[1]}
    later = rates_since if rates_since != begin else None
    groups = mine.env[min(mine.env)].optimizer.get("groups", [])
    return SettingsDifference(found, since, later, len(groups)) if found else None


def _rates(mine: Run, theirs: Run) -> tuple[int | None, int | None, Mapping[str, tuple[str, str]]]:
    """The first step of which both have learning rates, the first at which these differ, and how; None: no such step.

    Runs whose optimizers have different numbers of parameter groups have no learning rates in common.
    """
    one, other = (run.lists(_RATE, ranks=run.ranks[:1]) if len(run.steps) else {} for run in (mine, theirs))
    ref = {step: rates for (step, _), rates in other.items()}
    common = sorted((step, rates) for (step, _), rates in one.items() if step in ref and len(rates) == len(ref[step]))
    for step, rates in common:
        pairs = enumerate(zip(rates.tolist(), ref[step].tolist(), strict=True))
        apart = {f"groups.{at}.{_RATE}": (f"{a:.6g}", f"{b:.6g}") for at, (a, b) in pairs if not _close(a, b)}
        if apart:
            return common[0][0], step, apart
    return (common[0][0] if common else None), None, {}


def _clips(mine: Run, theirs: Run) -> tuple[int | None, Mapping[str, tuple[str, str]]]:
    """The first step at which both clip by another norm, to an effect, and how; None: no such step."""
    for step in map(int, mine.steps):
        for one, other in zip(calls_at(mine, step, None), calls_at(theirs, step, None), strict=False):
            if not _close(one.max_norm, other.max_norm) and not _close(one.factor, other.factor):
                return step, {_CLIP: (f"{one.max_norm:.6g}", f"{other.max_norm:.6g}")}
    return None, {}


def _close(one: float, other: float) -> bool:
    """Whether float32, in which an optimizer may hold a setting, does not tell two numbers apart; NaN: not measured."""
    return math.isnan(one) or math.isnan(other) or math.isclose(one, other, rel_tol=2 * UNIT_ROUNDOFF["float32"])


def _agree(one: str, other: str) -> bool:
    """Whether two settings, as JSON, are the same."""
    a, b = json.loads(one), json.loads(other)
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (a, b))
    return _close(a, b) if numbers else bool(a == b)


def _is_idle(name: str, settings: Mapping[str, str]) -> bool:
    """Whether a setting has no effect, since that by which it works is zero."""
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
    """Whether an optimizer works on as many parameters as were recorded: how many the model has is not its setting."""
    groups = run.env[min(run.env)].optimizer.get("groups", [])
    if not run.has_records or not groups:
        return False
    first = [int(run.record_steps[0])]
    table = cast(Any, run).records(steps=first, ranks=[run.record_ranks[0]], columns=["phase", "name"], resolve=False)
    rows = zip(table["phase"].to_pylist(), table["name"].to_pylist(), strict=True)
    return len({name for phase, name in rows if phase == "param"}) == sum(each.get(_COUNT) or 0 for each in groups)


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
    """Where an update of torch's optimizers uses a setting: an argument of a ``function``, on a parameter or (False)
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
        """Whether the argument also depends on how many updates there were."""
        return "step" in self.formula


def _same(x: float) -> float:
    return x


def _negated(x: float) -> float:
    return -x


def _rest(x: float) -> float:
    return 1 - x


_DECAYED = _Use("mul", True, "weight_decay or lr", "1 - lr * weight_decay")
_L2 = _Use("add", True, "weight_decay", "weight_decay", _same)
_EPS = _Use("add", False, "eps", "eps", _same)
_ADAM = (
    _DECAYED,
    _L2,
    _EPS,
    _Use("lerp", False, "betas[0] (beta1)", "1 - beta1", _rest),
    _Use("mul", False, "betas[1] (beta2)", "beta2", _same),
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
            _Use("mul", False, "betas[1] (beta2)", "beta2", _same),
            _Use("addcdiv", True, "lr", "-lr / (1 - beta1 ** step)"),
        ),
    ),
    "SGD": (
        _Use("add_", True, "lr", "-lr", _negated),
        _L2,
        _Use("mul", False, "momentum", "momentum", _same),
        _Use("add_", False, "dampening", "1 - dampening", _rest),
        _Use("add", False, "momentum", "momentum", _same),
    ),
    "RMSprop": (
        *(_DECAYED, _L2, _EPS, _Use("addcdiv", True, "lr", "-lr", _negated)),
        _Use("mul", False, "alpha", "alpha", _same),
        _Use("addcmul", False, "alpha", "1 - alpha", _rest),
    ),
    "Adagrad": (_L2, _EPS, _Use("addcdiv", True, "lr or lr_decay", "-lr / (1 + (step - 1) * lr_decay)")),
    "Adadelta": (_L2, _Use("mul", False, "rho", "rho", _same), _Use("addcmul", False, "rho", "1 - rho", _rest)),
    "Adafactor": (_DECAYED, _Use("lerp", False, "beta2_decay", "step ** beta2_decay")),
}
"""By optimizer; as torch 2.13 computes an update tensor by tensor (``torch/optim``, the ``_single_tensor`` functions),
which its lists of tensors follow."""


def setting_of(
    name: str, arguments: Arguments, *, on_param: bool, apart: Mapping[str, tuple[str, str]] | None = None
) -> str:
    """The setting that makes the ``arguments`` of a call of an update differ, as a text; '' where that is not known.

    ``name`` is that of the call (``AdamW.addcmul_``), ``on_param`` whether it takes a parameter first. ``apart`` are
    settings that are known to differ: where those of the argument do not, it is the number of updates in it.
    """
    optimizer, _, function = name.rpartition(".")
    numbers = [pair for pair in (_numbers(*pair) for pair in arguments.values()) if pair is not None]
    if len(arguments) != 1 or not numbers:
        return ""
    use = next((use for use in _USES.get(optimizer, ()) if _is_at(use, function, on_param)), None)
    if use is None:
        return ""
    if use.counts_updates and not any(_group_and_name(path)[1] in use.setting for path in apart or {}):
        return f"the number of updates so far, as the settings agree (the argument is {use.formula})"
    text = f"the setting {use.setting}"
    if use.inverse is not None:
        one, other = (f"{use.inverse(each):.6g}" for each in numbers[0])
        text += f", which is {one} and not {other}"
    return f"{text} (the argument is {use.formula})" if use.formula not in use.setting else text


def _is_at(use: _Use, function: str, on_param: bool) -> bool:
    plain = function.removeprefix("_foreach_")
    return plain in (use.function, f"{use.function}_") and use.on_param == on_param


def _numbers(one: str | None, other: str | None) -> tuple[float, float] | None:
    """Two JSON texts as numbers; None where one is none."""
    found = [json.loads(text) for text in (one, other) if text is not None]
    if len(found) != 2 or not all(isinstance(each, int | float) for each in found):
        return None
    return float(found[0]), float(found[1])
