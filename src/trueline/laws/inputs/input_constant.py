"""What the model is given for each sample is one number for all, noise that never changes, or nothing but zeros.

What it finds
-------------
A condition that carries nothing: a timestep, class or noise level, one number a sample, that is the same for every
sample at every step. Positions that are all equal. Noise to be predicted, or to be added, that comes again bit by bit
at every step, as of a generator that is seeded anew. Labels of a classifier that are all of one class. All ranks share
such a fault, so that comparing them shows nothing. And single batches, or samples, of nothing but zeros: a copy to the
device, or between processes, that was lost or not waited for.

Why it matters
--------------
The loss falls all the same, often faster: the model learns the one case that it is shown, and nothing of the others.

How it decides
--------------
By equality, at the first 16 sampled steps and then now and then, 8 of them at least, and only where another input of
the model changes from step to step: what is trained on one batch throughout is left alone.

- A vector [B] or [B, 1] of as many rows as an input that changes, all of whose elements were one number in all passes
  of all these steps. A time (`t`, `timestep`, `sigma`, ...) that is 0 is a warning, unless an input that changes is
  noise itself, as of a generator in one step; anything else is an information: a job may train one class, one speaker
  or one noise level on purpose. Masks, labels, and numbers of a size, length or weight are left out.
- With `--plan laws`, at one step: a vector [B] or [B, 1] that differs between samples and that no first layer reads
  as it is, while one that reads [B] or [B, features] made of no input that is seen gets the same for all samples, and
  not zeros. Then the condition is lost within the model: a warning.
- `position_ids`, `positions`, `input_pos`, [B, T] whole numbers, T above 1, that are all one number: a warning.
- The target of `mse_loss`, `smooth_l1_loss` or `huber_loss`, or an input of as many rows as one that changes, that is
  equal bit by bit at all these steps, and is standard normal noise: mean, variance, fourth moment and correlation of
  neighbours of its first 16,384 elements, 256 at least, are each within 6 standard deviations of what independent
  numbers have. A warning where it is a target of three dimensions or more, or the model reads a time; else an
  information, as data that somebody draws once and trains on in full batches look alike. Grids, fixed features and
  targets of zeros are no such noise.
- Targets of a `cross_entropy` with 3 classes or more whose logits a layer returns, that are all one class: a warning.
- A batch whose samples are all zeros, at any step, while other batches are not: a warning, where such batches are
  seldom (1 %, or one). Samples of zeros at rate p make one of N batches of B of nothing else with a probability of
  N p^B at most, which must be below 1e-6.
- A sample of zeros among others, where batches that have one are as seldom, and at most a thousandth of the elements of
  others are zeros: data without zeros have no such sample. Left alone are samples of zeros at the end of a batch, which
  fill it up, data with many zeros (one-hot, masks, drawings on black), samples of fewer than 8 numbers.

There is no chance in equality: 8 steps of two classes in batches of 4 are all alike with a probability of 2^-31, and
independent noise never comes again.

What it may miss
----------------
Targets that a script subtracts itself; noise that is mixed into the data before the model sees it and is not the
target (`rng-streams` sees a global generator that begins again); conditions that are scalars, embedded before the
model is called, lost within it where `--plan laws` does not look, or differ between steps and not between samples;
faults that begin after the first steps, but for zeros. Zeros in one of several inputs, or beside a mask of padding, are
seen where steps are sampled and where they are a whole batch.

Example
-------
`timestep` is 0 for every sample at every one of 16 steps of all ranks, while `sample` changes.

Wrong and right
---------------
Wrong:

```python
t = torch.randint(0, 1, (len(x),))  # the upper end is left out: all zeros
```

Right:

```python
t = torch.randint(0, num_steps, (len(x),))
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from trueline.judge.compared_ranks import MAX_SITES
from trueline.laws.inputs.names import POSITIONS, TIMES
from trueline.laws.inputs.zero_samples import ZeroSamples, zero_samples
from trueline.schema.columns.influence import BESIDE, RowInfluence
from trueline.schema.columns.input_values import InputFact, InputValue, input_values
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.site import Site
from trueline.schema.text.words import counted, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "input-constant"
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("input_facts", "input_values", "row_influence", "sample_digests", "batch_features")
ACROSS_RANKS = False

MIN_STEPS = 8
"""Steps at which a tensor is looked at before anything is said of it."""
CHANGING = 0.75
"""Share of steps at which an input has content of its own, of those that it was looked at, from which on it changes."""
Tensors = Mapping[InputFact, Mapping[int, InputValue]]
"""Values of the tensors that a rank reads and compares with, by step."""


class _Constant(NamedTuple):
    kind: str
    name: str
    number: float
    """The one number that it has; 0 of noise."""


def check(run: Run) -> list[Finding]:
    """A Finding for each constant; raises ``CannotTell`` where no inputs were seen, or nothing else changes."""
    findings = [*_lost_findings(run), *(_zeros_finding(run, zeros) for zeros in zero_samples(run))]
    try:
        return [*findings, *_constant_findings(run)]
    except CannotTell:
        if findings:
            return findings
        raise


def _lost_findings(run: Run) -> list[Finding]:
    """A condition that does not get into the model, at the steps at which that was looked at."""
    rows = {key: RowInfluence(*map(float, row)) for key, row in run.lists("row_influence").items() if len(row)}
    keys = sorted(key for key, influence in rows.items() if influence.lost > 0)
    if not keys:
        return []
    step, ranks = keys[0][0], tuple(sorted({rank for _, rank in keys}))
    claim = (
        f"The model is given a number for each sample at step {step} that differs between samples, and what one of its "
        f"first layers reads in its place is the same for all of them ({ranks_text(ranks, all_ranks=run.ranks)})."
    )
    hint = "Print what the model makes of it (a time embedding, say) for two samples, in front of its first layer: "
    return [
        Finding(
            code=CODE,
            severity="warning",
            claim=claim,
            ranks=ranks,
            step_first=step,
            step_last=keys[-1][0],
            sites=_batch_sites(keys),
            measured=0.0,
            expected=None,
            unit="difference between samples",
            false_alarm_rate=0.0,
            evidence={"kind": "lost"},
            next=(hint + "a cast, an integer division or a constant in its place makes them equal.",),
        )
    ]


def _zeros_finding(run: Run, zeros: ZeroSamples) -> Finding:
    """Batches, or samples, of nothing but zeros."""
    keys = sorted(zeros.counts)
    steps, ranks = sorted({step for step, _ in keys}), tuple(sorted({rank for _, rank in keys}))
    step, rank = keys[0]
    count, size = zeros.counts[keys[0]]
    total = sum(count for count, _ in zeros.counts.values())
    location = f"{steps_text(steps)} of {ranks_text(ranks, all_ranks=run.ranks)}"
    subject = (
        f"All {counted(count, 'sample')} that the model reads at {location}"
        if zeros.whole and len(keys) == 1
        else f"All samples that the model reads at {location}"
        if zeros.whole
        else f"{count} of {size} samples that the model reads at {location}"
        if len(keys) == 1
        else f"{total} of the samples that the model reads at {location}"
    )
    verb = "is" if not zeros.whole and total == 1 else "are"
    contrast = "and those of other batches are not" if zeros.whole else "in data that have hardly any otherwise"
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"{subject} {verb} nothing but zeros, {contrast}.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=_batch_sites(keys),
        measured=float(total),
        expected=0.0,
        unit=f"samples of zeros, of {zeros.num_samples}",
        false_alarm_rate=zeros.chance,
        evidence={"kind": "zeros", "whole": zeros.whole, "num_steps": len(steps)},
        next=(
            f"Print what the loader of rank {rank} returns for step {step}, and what reaches the model: if only the "
            "latter is zeros, a copy was lost or not waited for (non_blocking, a side stream, a reused buffer).",
            "If these samples are zeros in the data, leave them out.",
        ),
    )


def _batch_sites(keys: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """Sites of the batches of these steps and ranks."""
    return tuple(str(Site(step, 0, rank, "batch", "samples")) for step, rank in keys)[:MAX_SITES]


def _constant_findings(run: Run) -> list[Finding]:
    """Inputs and targets that are the same at all steps while other inputs change."""
    tensors_by_rank = _tensors_by_rank(run)
    if not tensors_by_rank:
        raise CannotTell("no forward pass was seen whose inputs are tensors", reason="not-recorded")
    if max(len(values) for tensors in tensors_by_rank.values() for values in tensors.values()) < MIN_STEPS:
        raise CannotTell(f"inputs were looked at in fewer than {MIN_STEPS} steps", reason="too-few-steps")
    changing = {
        rank: [fact for fact, values in tensors.items() if _changes(fact, values)]
        for rank, tensors in tensors_by_rank.items()
    }
    if not any(changing.values()):
        raise CannotTell("no input of the model changes from step to step", reason="by-design")
    constants: defaultdict[_Constant, dict[int, tuple[Severity, InputFact]]] = defaultdict(dict)
    for rank, tensors in tensors_by_rank.items():
        if changing[rank]:
            for constant, severity, fact in _constants(tensors, changing[rank]):
                constants[constant][rank] = severity, fact
    return [_constant_finding(run, constant, facts, tensors_by_rank, changing) for constant, facts in constants.items()]


def _tensors_by_rank(run: Run) -> dict[int, Tensors]:
    """Tensors with their values by rank; batches of other sizes count as one tensor."""
    facts = run.texts("input_facts")
    tensors: defaultdict[int, dict[InputFact, dict[int, InputValue]]] = defaultdict(dict)
    first_facts: dict[tuple[int, str, bool, int], InputFact] = {}
    for (step, rank), row in run.lists("input_values").items():
        for value in input_values(facts.get((step, rank), "[]"), row.tolist()):
            key = (rank, value.fact.name, value.fact.is_target, len(value.fact.shape))
            fact = first_facts.setdefault(key, value.fact)
            tensors[rank].setdefault(fact, {})[step] = value
    return dict(tensors)


def _changes(fact: InputFact, values: Mapping[int, InputValue]) -> bool:
    """True if it is an input with another content at most steps."""
    digests = {value.digest for value in values.values()}
    return not fact.is_target and len(values) >= MIN_STEPS and len(digests) >= CHANGING * len(values)


def _constants(tensors: Tensors, changing: Sequence[InputFact]) -> Iterator[tuple[_Constant, Severity, InputFact]]:
    batch_sizes = {fact.shape[0] for fact in changing if fact.shape}
    has_times = any(fact.name.lower() in TIMES for fact in tensors)
    has_noise = any(value.is_noise for fact in changing for value in tensors[fact].values())
    for fact, values in tensors.items():
        if len(values) < MIN_STEPS:
            continue
        numbers = {value.single for value in values.values()}
        number = next(iter(numbers)) if len(numbers) == 1 else None
        is_same = len({value.digest for value in values.values()}) == 1
        has_samples = bool(fact.shape) and fact.shape[0] in batch_sizes
        if fact.is_target and fact.classes > 2 and number is not None and number >= 0:
            yield _Constant("one-class", fact.name, number), "warning", fact
        elif is_same and all(value.is_noise for value in values.values()) and (fact.is_target or has_samples):
            # Noise as the target of images, or beside times, is that of a diffusion model.
            is_diffusion = fact.is_target and (len(fact.shape) > 2 or has_times)
            yield _Constant("noise", fact.name, 0.0), "warning" if is_diffusion else "info", fact
        elif fact.is_target or number is None or not has_samples:
            continue
        elif fact.name in POSITIONS and len(fact.shape) == 2 and fact.shape[1] > 1 and "int" in fact.dtype:
            yield _Constant("positions", fact.name, number), "warning", fact
        elif _is_condition(fact):
            # A time of 0 at every step is lost in a cast; of other noise levels one may be chosen.
            is_lost = fact.name.lower() in TIMES and number == 0 and not has_noise
            yield _Constant("condition", fact.name, number), "warning" if is_lost else "info", fact


def _is_condition(fact: InputFact) -> bool:
    """True if it is one number for each of several samples."""
    name = fact.name.lower()
    return (
        bool(name)
        and fact.shape[0] > 1
        and fact.shape[1:] in ((), (1,))
        and fact.dtype != "torch.bool"
        and not any(word in name for word in BESIDE)
    )


def _constant_finding(
    run: Run,
    constant: _Constant,
    facts: Mapping[int, tuple[Severity, InputFact]],
    tensors_by_rank: Mapping[int, Tensors],
    changing: Mapping[int, Sequence[InputFact]],
) -> Finding:
    """The Finding of a constant, by rank its severity and its tensor."""
    ranks = tuple(sorted(facts))
    steps = sorted({step for rank, (_, fact) in facts.items() for step in tensors_by_rank[rank][fact]})
    changing_name = changing[ranks[0]][0].name
    claim, advice = _TEXTS[constant.kind]
    return Finding(
        code=CODE,
        severity="warning" if any(severity == "warning" for severity, _ in facts.values()) else "info",
        claim=claim.format(
            name=f"`{constant.name}`",
            number=f"{constant.number:g}",
            steps=counted(len(steps), "step"),
            ranks=ranks_text(ranks, all_ranks=run.ranks),
            other=f"`{changing_name}`" if changing_name else "the batch",
        ),
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=tuple(
            str(Site(steps[0], 0, rank, "loss" if fact.is_target else "batch", constant.name or "samples"))
            for rank, (_, fact) in sorted(facts.items())
        )[:MAX_SITES],
        measured=float(len(steps)),
        expected=0.0,
        unit="steps at which it was the same",
        false_alarm_rate=0.0,
        evidence={"kind": constant.kind, "name": constant.name, "number": constant.number},
        next=advice,
    )


_TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "condition": (
        "{name} is {number} for every sample at every one of {steps} of {ranks}, while {other} changes: it tells the "
        "model nothing.",
        (
            "Print what is passed to the model for it at two steps: if samples are meant to differ in it, it is lost "
            "on the way, or drawn from a range with one number in it.",
            "If it is one number on purpose (one class, one noise level), leave it.",
        ),
    ),
    "positions": (
        "{name} are all {number} at every one of {steps} of {ranks}: the model cannot tell positions apart.",
        ("Give each token its own position: torch.arange(T), from 0 again at each document of a packed row.",),
    ),
    "noise": (
        "The noise in {name} is the same, bit by bit, at every one of {steps} of {ranks}, while {other} changes.",
        (
            "Look for what seeds a generator inside of the loop: make and seed it once, before the first step.",
            "Print the first numbers of the noise at two steps in a row: equal ones settle it.",
        ),
    ),
    "one-class": (
        "The targets of {name} are class {number} for every sample at every one of {steps} of {ranks}, while {other} "
        "changes: the classifier learns to answer always that.",
        ("Print the labels of two batches: how they are read, cast, shifted or masked leaves one class.",),
    ),
}
