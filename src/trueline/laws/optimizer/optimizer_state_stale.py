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
had gone on: a checkpoint of everything may be loaded while training goes on. Else, and where one optimizer is made anew
once, as for a second stage, it is an information. A job that is started again is left alone.

What it may miss
----------------
As in `update-magnitude`; and a state that was wrong before the first update that is sampled, as from a bad checkpoint:
what follows from it is right.

Example
-------
exp_avg of blocks.0.mlp.weight on rank 0 at steps 30-49 did not change, although its rule changes it.

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
from trueline.laws.optimizer.between import Lost, lost_states
from trueline.laws.optimizer.evidence import finding_on, optimizer_of, place_text, sampled_steps
from trueline.laws.optimizer.judgement import Judged, judged_updates, worst_units
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
    every = judged_updates(run)
    steps = sampled_steps(every)
    wrong = [each for each in every if _wrong_states(each)]
    uncounted = [each for each in every if not each.counted]
    lost = lost_states(run)
    return [
        *([_of_states(wrong, every)] if wrong else []),
        *([_of_counts(uncounted, every)] if uncounted else []),
        *([_of_lost(lost, steps)] if lost else []),
    ]


def _wrong_states(judged: Judged) -> list[str]:
    return [name for name, excess in judged.excess.items() if name != PARAM and (excess > 1).any()]


def _of_states(wrong: Sequence[Judged], every: Sequence[Judged]) -> Finding:
    steps = sampled_steps(every)
    names = list(dict.fromkeys(name for each in wrong for name in _wrong_states(each)))
    stays = all((each.of.after[n] == each.of.before.get(n)).all() for each in wrong for n in _arrays(each))
    slices = [each.of for each in wrong]
    called_off = all(each.of.skipped for each in wrong)
    does = (
        "changed at an update that the gradient scaler had called off, since gradients were not finite"
        if called_off
        else "did not change, although its rule changes it"
        if stays
        else f"is not what {optimizer_of(slices)} makes of the state before and the gradient"
    )
    return finding_on(
        slices,
        code=CODE,
        severity="error",
        claim=f"{listed(names)} {place_text(slices, among=steps)} {does}.",
        measured=max(worst_units(each, name) for each in wrong for name in _wrong_states(each)),
        expected=TOLERANCE,
        unit="largest error of an element, in roundings of its terms (at most)",
        slot=names[0],
        evidence={"states": names, "unchanged": stays, "called_off": called_off},
        looked=[each.of for each in every],
        next=_NEXT,
    )


def _of_lost(every: Sequence[Lost], steps: Sequence[int]) -> Finding:
    told = [each for each in every if each.known and (not each.new or _again(every, each))]
    lost = [each for each in told or every if each.kind == (told or every)[0].kind]
    first = lost[0]
    whose = ranks_text(sorted({each.found.rank for each in lost}))
    before, after = (of.get("step", 0.0) for of in (first.left.numbers_after, first.found.numbers_before))
    does = {
        "older": f"was {before:g} after the update of step {first.left.step} and is {after:g} before that of",
        "gone": f"was there after the update of step {first.left.step} and is gone before that of",
        "replaced": f"is not what the update of step {first.left.step} had left before that of",
    }[first.kind]
    what = "The count of updates" if first.kind == "older" else listed(list(first.names))
    since = f"a new {optimizer_of([first.found])} was made" if first.new else "the job was not started again"
    return finding_on(
        [each.found for each in lost],
        code=CODE,
        severity="warning" if told else "info",
        claim=f"{what} of {named_some(list(dict.fromkeys(each.found.name for each in lost)))} on {whose} {does} "
        f"{steps_text((each.found.step for each in lost), among=steps)}: {since}.",
        measured=after,
        expected=before,
        unit="updates counted",
        slot=first.names[0],
        evidence={"kind": "between-updates", "lost": first.kind, "new_optimizer": first.new},
        next=(
            "Look for what makes the optimizer anew, clears optimizer.state or calls optimizer.load_state_dict between "
            "these updates.",
            "If it is meant, as at the begin of another stage, nothing is wrong.",
        ),
    )


def _again(every: Sequence[Lost], one: Lost) -> bool:
    """Whether an optimizer of the same settings was made anew more than once."""
    return len({each.found.made for each in every if each.new and each.left.settings == one.left.settings}) > 1


def _arrays(judged: Judged) -> list[str]:
    return [name for name in _wrong_states(judged) if name in judged.of.before and name in judged.of.after]


def _of_counts(wrong: Sequence[Judged], every: Sequence[Judged]) -> Finding:
    slices, steps = [each.of for each in wrong], sampled_steps(every)
    first = slices[0]
    before, after = first.numbers_before.get("step", 0.0), first.numbers_after.get("step", 0.0)
    return finding_on(
        slices,
        code=CODE,
        severity="error",
        claim=f"The count of updates {place_text(slices, among=steps)} went from {before:g} to {after:g} by one "
        f"update{', which was to change nothing' if first.skipped or not first.has_gradient else ''}.",
        measured=after - before,
        expected=0.0 if first.skipped or not first.has_gradient else 1.0,
        unit="updates counted",
        slot="step",
        next=_NEXT,
        looked=[each.of for each in every],
    )
