"""A state of the optimizer is not what its rule makes of the gradient.

What it finds
-------------
Momentum or second moments that stay as they are, that go on at an update which a gradient scaler has called off (a
fused optimizer that does not look at `found_inf`), that are made of an older gradient or another tensor's, that a
checkpoint or a kernel has filled with something else, and a count of updates that does not go up by one. States that
are thrown away, or replaced by older ones, between two updates.

Why it matters
--------------
The next updates are made of these states. A frozen second moment makes an adaptive optimizer plain SGD with arbitrary
rates; a count that is off by one makes the first updates of Adam too small by a third; both look like a bad learning
rate.

How it decides
--------------
By arithmetic, as in `update-magnitude`: each state is predicted in float64 from the state before the update, the
gradient that the optimizer receives, and the hyper-parameters that it declares, and may differ by 8 u times the sum of
the magnitudes of its terms, at sampled elements. Counts are compared exactly. A second moment that stays because its
decay is less than half a rounding is right, and told by `update-lost`.

Between two updates nothing may change: a count that is lower than the update before had left it, a state that is gone,
or elements that are others (not all by one factor) are a warning, as is an optimizer that is made anew, with the same
settings, more than once. It is one only where the weights had stayed as they were, or the schedule of the learning rate
had gone on: a checkpoint of everything may be loaded while training goes on. Else it is to be confirmed where
optimizers of the same settings are made again and again, and an information where one is made anew once, as for a
second stage. A job that is started again is left alone.

Of an optimizer with a rule of its own the count alone is known. It is to be confirmed where that is 0, or 1, after
eight sampled updates or more that changed parameters, of all of its parameters that have one, and no number of its
groups counts them instead.

What it may miss
----------------
As in `update-magnitude`; and a state that was wrong before the first update that is sampled, as from a bad checkpoint:
what follows from it is right.

Example
-------
exp_avg of blocks.0.mlp.weight on rank 0 at steps 30-49 did not change, although its rule changes it.
The count of steps in the state of SkipStepAdamW stays at 0 from step 0 to 75: bias correction by it is that of the
first update each time, and makes later ones 2.24 times as large.

Wrong and right
---------------
Wrong:

```python
optimizer.load_state_dict(state)  # moments of another model's order of parameters
for group in optimizer.param_groups:
    for param in group["params"]:
        optimizer.state[param]["exp_avg"] = average.clone()  # filled anew in a hook at every step
```

Right:

```python
optimizer.load_state_dict(state)  # and nothing writes to the state while training goes on
```
"""

from __future__ import annotations

from collections.abc import Sequence

from trueline.judge.series.update_rules import PARAM, TOLERANCE
from trueline.laws.optimizer.evidence import AffectedSlices, sampled_steps
from trueline.laws.optimizer.judgement import JudgedUpdate, judged_updates
from trueline.laws.optimizer.lost_states import LostState, lost_states
from trueline.laws.optimizer.staying_counts import StayingCount, staying_counts
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import listed, named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "optimizer-state-stale"
CALLS = {"": ("step",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "update_values")
ACROSS_RANKS = False

_NEXT = (
    "Look for what writes to optimizer.state between or during updates: a checkpoint that is loaded late or in another "
    "order of parameters, a hook, a wrapper that swaps states.",
    "Compare with the plain form of the optimizer: foreach=False, fused=False. If that is right, its kernel is wrong.",
)


def check(run: Run) -> list[Finding]:
    """Findings of states and of counts that do not follow from what was before; raises ``CannotTell`` where no update
    could be predicted.
    """
    staying = [_staying_finding(count) for count in staying_counts(run)]
    try:
        updates = judged_updates(run)
    except CannotTell:
        # The count is told whatever the rule of the optimizer is.
        if not staying:
            raise
        return staying
    wrong = [update for update in updates if _wrong_states(update)]
    miscounted = [update for update in updates if not update.counts_right]
    states = lost_states(run)
    return [
        *([_states_finding(wrong, updates)] if wrong else []),
        *([_counts_finding(miscounted, updates)] if miscounted else []),
        *([_lost_finding(states, sampled_steps(updates))] if states else []),
        *staying,
    ]


def _wrong_states(update: JudgedUpdate) -> list[str]:
    return [name for name, excess in update.excess.items() if name != PARAM and (excess > 1).any()]


def _wrong_arrays(update: JudgedUpdate) -> list[str]:
    """Wrong states but for those that are one number, or that the update made."""
    return [name for name in _wrong_states(update) if name in update.sample.before and name in update.sample.after]


def _affected(wrong: Sequence[JudgedUpdate], updates: Sequence[JudgedUpdate]) -> AffectedSlices:
    return AffectedSlices(
        [update.sample for update in wrong], sampled_steps(updates), [update.sample for update in updates]
    )


def _states_finding(wrong: Sequence[JudgedUpdate], updates: Sequence[JudgedUpdate]) -> Finding:
    affected = _affected(wrong, updates)
    names = list(dict.fromkeys(name for update in wrong for name in _wrong_states(update)))
    stays = all(
        (update.sample.after[name] == update.sample.before.get(name)).all()
        for update in wrong
        for name in _wrong_arrays(update)
    )
    called_off = all(sample.skipped for sample in affected.slices)
    does = (
        "changed at an update that the gradient scaler had called off, since gradients were not finite"
        if called_off
        else "did not change, although its rule changes it"
        if stays
        else f"is not what {affected.optimizer} makes of the state before and the gradient"
    )
    return affected.finding(
        code=CODE,
        severity="error",
        claim=f"{listed(names)} {affected.location} {does}.",
        measured=max(update.worst_error(name) for update in wrong for name in _wrong_states(update)),
        expected=TOLERANCE,
        unit="largest error of an element, in roundings of its terms (at most)",
        slot=names[0],
        evidence={"states": names, "unchanged": stays, "called_off": called_off},
        next=_NEXT,
    )


def _counts_finding(wrong: Sequence[JudgedUpdate], updates: Sequence[JudgedUpdate]) -> Finding:
    affected = _affected(wrong, updates)
    first = affected.slices[0]
    before, after = first.numbers_before.get("step", 0.0), first.numbers_after.get("step", 0.0)
    is_without_effect = first.skipped or not first.has_gradient
    return affected.finding(
        code=CODE,
        severity="error",
        claim=f"The count of updates {affected.location} went from {before:g} to {after:g} by one update"
        f"{', which was to change nothing' if is_without_effect else ''}.",
        measured=after - before,
        expected=0.0 if is_without_effect else 1.0,
        unit="updates counted",
        slot="step",
        next=_NEXT,
    )


def _staying_finding(staying: StayingCount) -> Finding:
    affected = AffectedSlices(staying.slices)
    last = max(sample.step for sample in staying.slices)
    effect = "bias correction by it is that of the first update each time"
    if staying.factor is not None:
        effect += f", and makes later ones {staying.factor:.3g} times as large"
    return affected.finding(
        code=CODE,
        severity="confirm",
        claim=f"The count of steps in the state of {affected.optimizer} stays at {staying.count:g} from step "
        f"{affected.step_first} to {last}: {effect}.",
        measured=staying.count,
        expected=float(len({sample.step for sample in staying.slices})),
        unit="updates counted (at least)",
        slot="step",
        evidence={"kind": "count-stays"},
        next=("Write the count back after each update: state['step'] += 1, and not step = state['step'] + 1 alone.",),
    )


def _lost_finding(states: Sequence[LostState], steps: Sequence[int]) -> Finding:
    unmeant = [state for state in states if _is_unmeant(state, states)]
    candidates = unmeant or states
    is_repeated = any(_is_of_several(state, states) for state in states)
    alike = [state for state in candidates if state.kind == candidates[0].kind]
    first = alike[0]
    affected = AffectedSlices([state.later for state in alike])
    ranks = ranks_text(sorted({sample.rank for sample in affected.slices}))
    before = first.earlier.numbers_after.get("step", 0.0)
    after = first.later.numbers_before.get("step", 0.0)
    does = {
        "older": f"was {before:g} after the update of step {first.earlier.step} and is {after:g} before that of",
        "gone": f"was there after the update of step {first.earlier.step} and is gone before that of",
        "replaced": f"is not what the update of step {first.earlier.step} had left before that of",
    }[first.kind]
    subject = "The count of updates" if first.kind == "older" else listed(list(first.names))
    circumstance = f"a new {affected.optimizer} was made" if first.is_new_optimizer else "the job was not started again"
    return affected.finding(
        code=CODE,
        severity="warning" if unmeant else "confirm" if is_repeated else "info",
        claim=f"{subject} of {named_some(affected.names)} on {ranks} {does} "
        f"{steps_text((sample.step for sample in affected.slices), among=steps)}: {circumstance}.",
        measured=after,
        expected=before,
        unit="updates counted",
        slot=first.names[0],
        evidence={"kind": "between-updates", "lost": first.kind, "new_optimizer": first.is_new_optimizer},
        next=(
            "Look for what makes the optimizer anew, clears optimizer.state or calls optimizer.load_state_dict between "
            "these updates.",
            "If it is meant, as at the begin of another stage, nothing is wrong.",
        ),
    )


def _is_unmeant(state: LostState, states: Sequence[LostState]) -> bool:
    """True if the state was lost while the job went on, other than by one new optimizer."""
    if not state.job_went_on or not state.is_new_optimizer:
        return state.job_went_on
    return _is_of_several(state, states)


def _is_of_several(state: LostState, states: Sequence[LostState]) -> bool:
    """True if several new optimizers have its settings: one may be meant, as at another stage of training."""
    alike = [new for new in states if new.is_new_optimizer and new.earlier.settings == state.earlier.settings]
    return state.is_new_optimizer and len({new.later.optimizer_number for new in alike}) > 1
