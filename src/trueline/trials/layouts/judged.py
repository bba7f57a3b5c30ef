"""What is behind the difference of an arm and the reference: rounding, another job, or a first place by name.

What rounding makes is measured: in runs of the reference whose weights were moved by one rounding before the first
step. A value may differ by ``LIMIT`` times the most that it did there, or that half of its kind did.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trueline.comparison.judgement.history.loss_gap import loss_gap_of
from trueline.comparison.judgement.values.compared import LIMIT as LIMITS
from trueline.comparison.judgement.values.compared import times_expected
from trueline.schema.text.words import counted, listed, named_some
from trueline.trials.layouts.measured import ArmRuns, Kind, MeasuredStep, NamedDifference, measure_step

LIMIT = LIMITS["tensor"]
"""Times what rounding made that is still rounding, as where ``compare`` expects it of stored values."""
SAME_WEIGHT = 4.0
"""Roundings by which weights at the start may differ: one more cast than in the reference, and back."""
ENOUGH = 1 / 3
"""Share of the gradients that must be compared, as of the values that ``compare`` needs for a verdict."""
LOSS = "the loss"
_LOSS_UNIT = 2.0**-23
"""Of a loss that a run shows: two roundings of float32, as its own and that of an average."""
_ALMOST = 0.01
"""Share of a difference that need not be a factor, for it to be called one."""


@dataclass(frozen=True)
class Floors:
    """What rounding makes of the reference, by step: the most of each value, and the median of each kind."""

    values: Mapping[tuple[int, Kind, str], float]
    kinds: Mapping[tuple[int, Kind], float]
    losses: Mapping[int, float]

    @classmethod
    def of(cls, rounded: Sequence[ArmRuns], ref: ArmRuns, steps: Sequence[int]) -> Floors:
        """Measure all runs of ``rounded`` at ``steps``."""
        values: dict[tuple[int, Kind, str], float] = {}
        for arm in rounded:
            for step in steps:
                for difference in measure_step(arm, ref, step).differences:
                    key = (step, *difference.key)
                    values[key] = max(values.get(key, 0.0), difference.rel or 0.0)
        by_kind: dict[tuple[int, Kind], list[float]] = {}
        for (step, kind, _), floor in values.items():
            by_kind.setdefault((step, kind), []).append(floor)
        kinds = {key: statistics.median(floors) for key, floors in by_kind.items()}
        losses = {
            step: max(_gap(arm.losses[step], loss) for arm in rounded if step in arm.losses)
            for step, loss in ref.losses.items()
            if any(step in arm.losses for arm in rounded)
        }
        return cls(values, kinds, losses)

    def times(self, step: int, difference: NamedDifference) -> float:
        """The difference over what rounding makes of it."""
        return times_expected(difference.rel or 0.0, self._expected(step, difference))

    def is_scaled(self, step: int, difference: NamedDifference) -> bool:
        """True if all of the difference is a factor, but for what rounding makes and a hundredth of it."""
        if difference.rest is None or difference.rel is None:
            return False
        return difference.rest <= max(_ALMOST * difference.rel, LIMIT * self._expected(step, difference))

    def _expected(self, step: int, difference: NamedDifference) -> float:
        floor = self.values.get((step, *difference.key), 0.0)
        return max(floor, self.kinds.get((step, difference.kind), 0.0), difference.unit)


@dataclass(frozen=True)
class Parting:
    """The first place at which an arm is apart, in words, by how many ``times`` what rounding makes."""

    where: str
    says: tuple[str, ...]
    times: float
    step: int


@dataclass(frozen=True)
class JudgedArm:
    """An arm beside the reference: ``other_job`` says why it is another job, ``unclear`` why nothing can be said;
    ``parting`` is the first place, None where rounding explains all. ``largest`` is the largest difference and
    ``losses`` how far these are apart, in words, ``not_compared`` what was left out.
    """

    name: str
    other_job: str = ""
    unclear: str = ""
    parting: Parting | None = None
    largest: str = ""
    losses: str = ""
    not_compared: str = ""


def judged_arm(name: str, arm: ArmRuns, ref: ArmRuns, rounded: Sequence[ArmRuns], floors: Floors) -> JudgedArm:
    """Judge an arm: what it begins with, its first step in the order in which it computes, what is left of it later."""
    steps = [step for step in ref.steps if step in arm.steps]
    if not steps:
        return JudgedArm(name, unclear="no step was recorded in both")
    first, *later = steps
    begun = measure_step(arm, ref, first)
    if begun.why_not:
        return JudgedArm(name, unclear=begun.why_not)
    if other_job := _other_job(arm, ref, begun, first):
        return JudgedArm(name, other_job=other_job)
    not_compared = _not_compared(begun)
    parting = _apart_forward(begun, first, floors)
    if parting is None:
        in_loss = _apart_in_loss(arm, ref, first, floors)
        backward = _apart_backward(begun, first, floors, loss_agrees=in_loss is None)
        # a loss that is another while gradients agree is scaled for the backward pass, or shown otherwise
        parting = backward and (in_loss or backward)
    later_steps = {step: measure_step(arm, ref, step) for step in later} if parting is None else {}
    for step, later_step in later_steps.items():
        parting = parting or _apart_later(later_step, step, floors)
    if parting is not None:
        return JudgedArm(name, parting=parting, not_compared=not_compared)
    gradients = begun.gradients
    num_wanted = len(gradients) + sum(kind == "gradient" for kind, _ in begun.not_compared)
    if not num_wanted:
        return JudgedArm(name, unclear="no gradient was recorded in both")
    if len(gradients) < ENOUGH * num_wanted:
        why = f"of {counted(num_wanted, 'gradient')} {len(gradients)} could be compared. {not_compared}".rstrip()
        return JudgedArm(name, unclear=why.rstrip("."))
    largest = _largest({first: begun, **later_steps}, floors)
    losses = _losses(arm, ref, rounded, begun, floors)
    return JudgedArm(name, largest=largest, losses=losses, not_compared=not_compared)


def _other_job(arm: ArmRuns, ref: ArmRuns, begun: MeasuredStep, step: int) -> str:
    """Why an arm is not the same job: its first weight that is another, or its samples; '' where it is."""
    for weight in begun.of_kind("weight"):
        if (weight.rel or 0.0) > SAME_WEIGHT * weight.unit:
            return f"weight {weight.name} differs by {weight.rel:.2g} of its norm before the first update"
    samples, ref_samples = arm.samples(step), ref.samples(step)
    if samples == ref_samples:
        return ""
    # pieces of a sequence have digests of their own, and are the same once they are put together
    inputs = begun.of_kind("input")
    if inputs and all(not given.rel for given in inputs):
        return ""
    if not samples or not ref_samples:
        return f"{inputs[0].name} is given other values at the first step" if inputs else ""
    return (
        f"the first step reads {counted(len(samples), 'sample')}, of which {len(samples & ref_samples)} are among the "
        f"{len(ref_samples)} of the reference"
    )


def _apart_forward(begun: MeasuredStep, step: int, floors: Floors) -> Parting | None:
    for output in begun.of_kind("output"):
        if (times := floors.times(step, output)) > LIMIT:
            what = f" ({output.module_class})" if output.module_class else ""
            says = f"in the forward pass, module {output.name}{what} returns something else: it {_by(output, times)}"
            return Parting(f"forward: {output.name}", (says,), times, step)
    return None


def _apart_in_loss(arm: ArmRuns, ref: ArmRuns, step: int, floors: Floors) -> Parting | None:
    loss, ref_loss = arm.losses.get(step), ref.losses.get(step)
    if loss is None and arm.has_loss:
        loss = math.nan
    if loss is None or ref_loss is None:
        return None
    rel = _gap(loss, ref_loss)
    times = times_expected(rel, max(floors.losses.get(step, 0.0), _LOSS_UNIT))
    if times <= LIMIT:
        return None
    says = (
        f"the loss is {loss:.6g} and not {ref_loss:.6g}, and gradients differ too, while outputs of modules that were "
        "compared agree: it is computed, or averaged, otherwise"
    )
    return Parting(f"forward: {LOSS}", (says,), times, step)


def _apart_backward(begun: MeasuredStep, step: int, floors: Floors, *, loss_agrees: bool) -> Parting | None:
    gradients = begun.gradients
    beyond = [(floors.times(step, gradient), gradient) for gradient in gradients]
    beyond = [(times, gradient) for times, gradient in beyond if times > LIMIT]
    are_raw = bool(beyond) and beyond[0][1].kind == "raw gradient"
    if are_raw and all(floors.is_scaled(step, gradient) for _, gradient in beyond) and loss_agrees:
        return None  # by how much a sum is divided, and where, is of the layout
    if not beyond:
        return None
    # what is scaled follows from the norm of all gradients, or all are scaled
    suspects = [pair for pair in beyond if not floors.is_scaled(step, pair[1])]
    is_factor = not suspects
    suspects = suspects or beyond
    # the last parameter of the forward pass has the first gradient of the backward pass
    times, first = max(suspects, key=lambda pair: pair[1].position)
    names = [gradient.name for _, gradient in reversed(suspects)]
    what = f"the gradients of {named_some(names)} differ" if len(names) > 1 else f"the gradient of {names[0]} differs"
    num_scaled = len(beyond) - len(suspects)
    scaled = f"; {num_scaled} more are scaled, as by a norm that these are part of" if num_scaled else ""
    which = f" ({len(names)} of {len(gradients)}{scaled})"
    taken = "as the backward pass leaves them" if are_raw else "as the optimizer takes them"
    says = f"the forward pass agrees, and {what} {taken}{which}: {first.name} {_by(first, times)}"
    about = _about_gradients([gradient for _, gradient in suspects], is_factor=is_factor)
    return Parting(f"backward: {first.name}", (says, *about), times, step)


def _factor(values: Sequence[NamedDifference]) -> float | None:
    """The number of which all are a multiple, None where some are more than that."""
    ratios = [value.ratio or math.inf for value in values]
    are_multiples = all(
        abs(abs(ratio - 1) - (value.rel or 0.0)) <= _ALMOST * (value.rel or 0.0)
        for ratio, value in zip(ratios, values, strict=True)
    )
    if not ratios or not are_multiples or max(ratios) - min(ratios) > _ALMOST * max(ratios):
        return None
    return statistics.median(ratios)


def _about_gradients(gradients: Sequence[NamedDifference], *, is_factor: bool) -> list[str]:
    """What they have in common: a factor, one a rank, or replicas that differ."""
    says: list[str] = []
    if (factor := _factor(gradients)) is not None:
        says.append(
            f"Each is {factor:.4g} times that of the reference: an average or a sum over another number of ranks or "
            "micro-batches, or another norm to clip by."
        )
    elif is_factor:
        return ["Each rank has multiplied its own by another number, as by clipping to the norm of what it holds."]
    if note := next((gradient.replicas_differ for gradient in gradients if gradient.replicas_differ), ""):
        says.append(f"Ranks do not take the same gradient ({note}): they are not averaged over all of them.")
    return says


def _apart_later(later_step: MeasuredStep, step: int, floors: Floors) -> Parting | None:
    beyond = [(floors.times(step, weight), weight) for weight in later_step.of_kind("weight")]
    beyond = [(times, weight) for times, weight in beyond if times > LIMIT]
    if not beyond:
        return None
    times, worst = max(beyond, key=lambda pair: pair[0])
    says = (
        f"the first step agrees, and {counted(len(beyond), 'weight')} of {len(later_step.of_kind('weight'))} differ "
        f"after {counted(step, 'update')}, {worst.name} the most: it {_by(worst, times)}"
    )
    return Parting(f"update: {worst.name}", (says,), times, step)


def _by(difference: NamedDifference, times: float) -> str:
    if difference.rel is not None and math.isinf(difference.rel):
        return "has NaN or infinities where the other has none"
    times_text = f"{times:,.0f}" if times < 1e6 else f"{times:.1e}"
    return f"is off by {difference.rel:.2g} of its norm, {times_text} times what rounding makes"


def _largest(steps: Mapping[int, MeasuredStep], floors: Floors) -> str:
    judged = [
        (floors.times(step, difference), step, difference)
        for step, step_measured in steps.items()
        for difference in step_measured.differences
        if (difference.kind in ("output", "gradient") and step == min(steps)) or difference.kind == "weight"
    ]
    times, step, difference = max(judged, key=lambda item: item[0])
    kind = {"output": "what", "gradient": "the gradient of", "weight": "weight"}[difference.kind]
    name = f"{kind} {difference.name}{' returns' if difference.kind == 'output' else ''}"
    judged_text = counted(len(judged), "difference")
    return f"the largest of {judged_text} is {times:.2g} times what rounding makes, of {name} at step {step}"


def _losses(arm: ArmRuns, ref: ArmRuns, rounded: Sequence[ArmRuns], begun: MeasuredStep, floors: Floors) -> str:
    """How far the losses of an arm that agrees are from those of the reference, beside what rounding makes of them."""
    common = sorted(set(arm.losses) & set(ref.losses) & set(floors.losses))
    if not common:
        return "No loss was seen in both."
    first, last = common[0], common[-1]
    gaps = {step: _gap(arm.losses[step], ref.losses[step]) for step in (first, last)}
    if times_expected(gaps[first], max(floors.losses[first], _LOSS_UNIT)) > LIMIT:
        raw = [gradient for gradient in begun.of_kind("raw gradient") if floors.times(first, gradient) > LIMIT]
        return _other_loss(arm.losses[first] / ref.losses[first], _factor(raw))
    parts = [f"{gap:.2g} of it at step {step} (rounding makes {floors.losses[step]:.2g})" for step, gap in gaps.items()]
    line = f"The loss is apart by {listed(parts)}."
    gap = loss_gap_of(arm.losses, ref.losses, [run.losses for run in rounded])
    # below the limit the gap is of the size of what rounding made, however little that happened to be
    if gap is not None and gap.first_step is not None and gap.excess > LIMIT:
        line += (
            f" From step {gap.first_step} on it parts faster than in runs that should agree, up to {gap.excess:.2g} "
            f"times as far, which has a chance of {gap.chance:.0%}: take more --steps."
        )
    return line


def _other_loss(ratio: float, factor: float | None) -> str:
    """What to say of a loss that is another where the gradients that the optimizer takes agree; ``factor`` is that of
    raw gradients, None where they have none.
    """
    says = f"The loss is {ratio:.4g} times that of the reference"
    if factor is None or abs(factor - ratio) > _ALMOST * ratio:
        return f"{says}, and no gradient is: it is shown otherwise."
    return (
        f"{says}, and so are gradients until they are divided or clipped: if it is clipping that makes them equal, "
        "they will not be where the norm is below its limit."
    )


def _not_compared(begun: MeasuredStep) -> str:
    """What has no counterpart or no number, by kind, in a sentence."""
    lines: list[str] = []
    if not begun.of_kind("weight"):
        lines.append("weights before the first update, and gradients that were clipped (an update by a closure)")
    for kind, noun in (("output", "output of modules"), ("gradient", "gradient"), ("weight", "weight")):
        names = [name for (of_kind, name) in begun.not_compared if of_kind == kind]
        if names:
            noun = noun.replace("output", "outputs") if kind == "output" else f"{noun}s"
            why = begun.not_compared[kind, names[0]] or "it was not measured"  # type: ignore[index]
            lines.append(f"{noun} {named_some(names)} ({why})")
    return f"Not compared: {'; '.join(lines)}." if lines else ""


def _gap(loss: float, ref_loss: float) -> float:
    if not math.isfinite(loss) or not math.isfinite(ref_loss):
        return math.inf
    return abs(loss - ref_loss) / abs(ref_loss) if ref_loss else (math.inf if loss else 0.0)
