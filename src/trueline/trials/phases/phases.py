"""Which phase of a step a finding needs: forward and backward, the update, or weights that move; and of which half.

Causes, by what takes the finding away:

===================  ==========  ==========  ============  =============  ==========  ================
cause                weights     plain       first half    second half    elsewhere   a half elsewhere
                     fixed       update      frozen        frozen
===================  ==========  ==========  ============  =============  ==========  ================
code                 stays       stays       stays         stays          stays       stays
kernels              stays       stays       stays         stays          gone        of one half, or not
update               gone        gone        of the half whose update it needs, or of both
weights              gone        stays       of the half that must move, or of both
===================  ==========  ==========  ============  =============  ==========  ================

``kernels`` are what the device computes, ``weights`` is any update that moves them (the way that training takes, such
as a learning rate that is too large).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trueline.schema.errors import InputError
from trueline.schema.law import is_of_update
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.runs import Way
from trueline.trials.frame.tree import SHAM, Experiment, TreeTrial

_HALVES = ("first half", "second half", "either half", "both halves")
_MOVING = tuple(f"{phase}, {half}" for phase in ("update", "weights") for half in _HALVES)
_KERNELS = tuple(f"kernels, {half}" for half in _HALVES)
CAUSES = ("code", *_KERNELS, *_MOVING)
"""Of ``either half`` each by itself suffices, of ``both halves`` each is needed."""


def _causes_of(*halves: str, causes: tuple[str, ...]) -> frozenset[str]:
    return frozenset(cause for cause in causes if cause.partition(", ")[2] in halves)


_FIRST, _SECOND = ("first half", "both halves"), ("second half", "both halves")

EXPERIMENTS = (
    Experiment("fixed", "no update moves a weight", frozenset(_MOVING)),
    Experiment(
        "plain",
        "each update is a plain step along the gradient, as long as the optimizer's",
        frozenset(cause for cause in _MOVING if cause.startswith("update")),
    ),
    Experiment("first frozen", "the first half of the model is frozen", _causes_of(*_FIRST, causes=_MOVING)),
    Experiment("second frozen", "the second half of the model is frozen", _causes_of(*_SECOND, causes=_MOVING)),
    Experiment("elsewhere", "the model computes elsewhere (the CPU, or there in float64)", frozenset(_KERNELS)),
    Experiment("first elsewhere", "its first half computes elsewhere", _causes_of(*_FIRST, causes=_KERNELS)),
    Experiment("second elsewhere", "its second half computes elsewhere", _causes_of(*_SECOND, causes=_KERNELS)),
)

_PHASES: Mapping[str, Mapping[str, str]] = {
    SHAM: {"kind": "sham"},
    "fixed": {"kind": "fixed"},
    "plain": {"kind": "plain"},
    "first frozen": {"kind": "frozen", "half": "first"},
    "second frozen": {"kind": "frozen", "half": "second"},
    "elsewhere": {"kind": "elsewhere"},
    "first elsewhere": {"kind": "elsewhere", "half": "first"},
    "second elsewhere": {"kind": "elsewhere", "half": "second"},
}

_THEN = {
    "code": (
        "Look at what is the same on every device and with fixed weights: data, model code, the loss (trueline trial "
        "batch); trueline trial modules names modules where a good Run was stored.",
    ),
    "kernels": ("Call the recorded operations by themselves: `trueline trial precheck RUN`",),
    "update": (
        "Look at the optimizer: its settings and state, fused and foreach forms (trueline trial knobs), its kernel "
        "(trueline trial op).",
    ),
    "weights": ("Look at the learning rate and its warm-up, clipping, and the data of those steps.",),
}


_MEANS = {
    "code": "what is the same with fixed weights and wherever it is computed: data, the model's code, the loss",
    "kernels": "what the device computes",
    "update": "what the optimizer does besides stepping along the gradient: its rule, state or kernel",
    "weights": "weights that move, however they do",
}
_WHERE = {
    "": "",
    "first half": ", in the first half of the model",
    "second half": ", in the second half of the model",
    "either half": ", in either half of the model by itself",
    "both halves": ", in both halves of the model together",
}


def ways() -> dict[str, Way]:
    """The way the job runs in each experiment."""
    return {name: Way(name, changes={"phase": dict(phase)}) for name, phase in _PHASES.items()}


def _means() -> dict[str, str]:
    parts = {cause: cause.partition(", ") for cause in CAUSES}
    return {cause: f"{_MEANS[phase]}{_WHERE[half]}" for cause, (phase, _, half) in parts.items()}


def _then() -> dict[str, tuple[str, ...]]:
    return {cause: _THEN[cause.partition(",")[0]] for cause in CAUSES}


@dataclass
class PhaseTrial(TreeTrial):
    """The tree of these causes."""

    causes: tuple[str, ...] = CAUSES
    means: Mapping[str, str] = field(default_factory=_means)
    then: Mapping[str, tuple[str, ...]] = field(default_factory=_then)


def prepare(asked: Asked) -> Prepared:
    """Which phase of a step does it need, and which half of the model? Raises ``InputError``."""
    if is_of_update(code := asked.job.target.code):
        raise InputError(
            f"{code} is about the update itself: its phase is known, and holding the update would make it. Take "
            "trueline trial knobs, or trueline trial op for the call of the optimizer."
        )
    question = asked.question("Which phase of a step does it need that")
    trial = PhaseTrial(asked.runs_for_finding(), question, EXPERIMENTS, ways(), asked.error, asked.seed)
    arms = [f"{experiment.name}: {experiment.says}." for experiment in EXPERIMENTS]
    return asked.prepared(trial, [*asked.says(), "Arms, those that the answer needs:", *arms], "10 to 20")
