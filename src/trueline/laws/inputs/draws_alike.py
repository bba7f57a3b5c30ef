"""Something that is drawn for each sample is the same on several ranks, while their samples are not.

What it finds
-------------
The times and the noise of a diffusion model, random masks, negatives, mixing weights, drawn on each rank from one seed:
bit by bit the same on ranks that read different samples, at every step. Also labels that are the same on ranks whose
inputs are not: the same samples on all of them, which an augmentation hides.

Why it matters
--------------
N ranks draw as one. The gradient averages over N times fewer draws than there are samples, its noise is larger, and the
batch is less varied than its size says. The loss curve looks normal.

How it decides
--------------
By equality, at the first 16 sampled steps and then now and then. An argument of the model, or the target of a loss, is
looked at where it has as many rows as an input that differs between the ranks at every step, and differs within the
batch: a number that follows the step, as a temperature or a noise level of a curriculum, is one for all samples and is
left alone, as are flags, masks of ones, lengths and whatever is the same at every step. Positions by name are left out.

The null hypothesis is that what ranks are given in these steps is exchangeable between ranks and steps. Of the 2 n
places of two ranks in n steps, take a step: the value on the first rank is held by m - 1 of the R - 1 places that are
left, so that the second rank has it with probability (m - 1)/(R - 1). The product over all steps, 1/(2n - 1)!! where no
value comes twice, must be below 1e-6, shared among the arguments: eight steps of new values are enough. Steps of one
shape are compared with each other alone, as what follows from the shape changes with it.

What it may miss
----------------
Draws within the model, as of dropout; what has one row a rank; what is drawn from one seed on purpose is reported too.

Example
-------
`t` is bitwise the same on ranks 0 and 1 at all 27 steps that were looked at, while their `x` is not.

Wrong and right
---------------
Wrong:

```python
torch.manual_seed(42)  # on every rank
for x in loader:
    t = torch.rand(len(x))
```

Right:

```python
torch.manual_seed(42)
model = Model()
torch.manual_seed(42 + rank)  # once the model is made
```
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from trueline.judge.compared_ranks import several_workers, sites_of
from trueline.judge.stats.tails import ALARM_LEVEL
from trueline.laws.inputs.names import POSITIONS, TIMES
from trueline.schema.columns.input_values import InputFact, InputValue, input_values
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "draws-alike"
QUESTION = "streams"
NEEDS: tuple[str, ...] = ("input_facts", "input_values")

DIFFERING = 0.9
"""Share of the steps at which inputs of two ranks differ, from which on they read different samples."""
VARIED = 0.5
"""Share of the steps at which a tensor has several values within a batch, from which on it is one of samples."""

Values = Mapping[int, Mapping[int, InputValue]]
"""What a tensor of one name and shape is, by rank and step."""


class _Alike(NamedTuple):
    fact: InputFact
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    varied: str
    """An input that differs between the ranks."""


def check(run: Run) -> list[Finding]:
    """A Finding for each tensor; raises ``CannotTell`` where no two ranks were seen whose inputs differ."""
    tensors = _tensors(run, several_workers(run))
    if not tensors:
        raise CannotTell("no forward pass was seen whose inputs are tensors", reason="not-recorded")
    alike = list(_alike(tensors))
    if not alike and not any(_differ(values) for fact, values in tensors.items() if not fact.is_target):
        raise CannotTell("no input of the model differs between ranks at the steps that were looked at")
    return [_finding(run, *pair) for pair in _by_name(alike).items()]


def _tensors(run: Run, ranks: Sequence[int]) -> dict[InputFact, dict[int, dict[int, InputValue]]]:
    """Values of each tensor of one shape, by rank and step."""
    facts = run.texts("input_facts")
    tensors: defaultdict[InputFact, defaultdict[int, dict[int, InputValue]]]
    tensors = defaultdict(lambda: defaultdict(dict))
    for (step, rank), row in run.lists("input_values", ranks=ranks).items():
        for value in input_values(facts.get((step, rank), "[]"), row.tolist()):
            tensors[value.fact][rank][step] = value
    return {fact: dict(by_rank) for fact, by_rank in tensors.items()}


def _alike(tensors: Mapping[InputFact, Values]) -> Iterator[_Alike]:
    for fact, values in tensors.items():
        if not fact.shape or fact.shape[0] < 2 or fact.name in POSITIONS:
            continue
        for ranks in _groups(values):
            steps = _common_steps(values, ranks)
            rank_values = [values[ranks[0]][step] for step in steps]
            varied = sum(value.single is None for value in rank_values)
            if varied < VARIED * len(steps) or _log_chance(rank_values) > math.log(ALARM_LEVEL / len(tensors)):
                continue
            beside = _differing_input(tensors, fact, ranks, steps)
            if beside is not None:
                yield _Alike(fact, ranks, steps, beside)


def _groups(values: Values) -> list[tuple[int, ...]]:
    """Ranks, two or more, whose values are equal at all steps at which both were seen."""
    groups: list[list[int]] = []
    for rank in sorted(values):
        for group in groups:
            steps = _common_steps(values, (group[0], rank))
            if steps and all(values[group[0]][step].digest == values[rank][step].digest for step in steps):
                group.append(rank)
                break
        else:
            groups.append([rank])
    return [tuple(group) for group in groups if len(group) > 1]


def _common_steps(values: Values, ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(set[int].intersection(*(set(values.get(rank, ())) for rank in ranks))))


def _log_chance(values: Sequence[InputValue]) -> float:
    """Ln of the probability that a second rank has the same value at each step, where the values of both are dealt to
    ranks and steps at random.
    """
    # the second rank has the same values, so that each of them is dealt twice
    remaining = Counter({digest: 2 * number for digest, number in Counter(value.digest for value in values).items()})
    num_places = 2 * len(values)
    log_chance = 0.0
    for value in values:
        log_chance += math.log((remaining[value.digest] - 1) / (num_places - 1))
        remaining[value.digest] -= 2
        num_places -= 2
    return log_chance


def _differing_input(
    tensors: Mapping[InputFact, Values], fact: InputFact, ranks: Sequence[int], steps: Sequence[int]
) -> str | None:
    """The name of an input of as many rows that differs between all these ranks; None without."""
    names: dict[str, list[bool]] = defaultdict(list)
    for tensor, values in tensors.items():
        if tensor.is_target or not tensor.shape or tensor.shape[0] != fact.shape[0]:
            continue
        for step in steps:
            digests = {values[rank][step].digest for rank in ranks if step in values.get(rank, ())}
            names[tensor.name].append(len(digests) == len(ranks))
    differing = (name for name, differ in names.items() if sum(differ) >= DIFFERING * len(steps))
    return next(differing, None)


def _differ(values: Values) -> bool:
    """True where two ranks have other values at some step."""
    digests: defaultdict[int, set[int]] = defaultdict(set)
    for of_rank in values.values():
        for step, value in of_rank.items():
            digests[step].add(value.digest)
    return any(len(of_step) > 1 for of_step in digests.values())


def _by_name(alike: Sequence[_Alike]) -> Mapping[tuple[str, bool], list[_Alike]]:
    """What is alike, shapes of one tensor together."""
    by_name: defaultdict[tuple[str, bool], list[_Alike]] = defaultdict(list)
    for tensor in alike:
        by_name[tensor.fact.name, tensor.fact.is_target].append(tensor)
    return by_name


def _finding(run: Run, name: tuple[str, bool], alike: Sequence[_Alike]) -> Finding:
    first = alike[0]
    ranks = tuple(sorted({rank for tensor in alike for rank in tensor.ranks}))
    steps = sorted({step for tensor in alike for step in tensor.steps})
    subject = f"The target of {name[0]}" if name[1] else f"`{name[0]}`" if name[0] else "An input"
    varied = f"their `{first.varied}` is" if first.varied else "their other inputs are"
    is_drawn = "float" in first.fact.dtype or name[0].lower() in TIMES
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"{subject} is bitwise the same on {ranks_text(ranks, all_ranks=run.ranks)} at all "
        f"{counted(len(steps), 'step')} that were looked at, while {varied} not.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="loss" if name[1] else "batch", names=(name[0] or "samples",)),
        measured=float(len(steps)),
        expected=0.0,
        unit="steps at which it is the same",
        false_alarm_rate=ALARM_LEVEL,
        evidence={"kind": "drawn" if is_drawn else "read", "name": name[0], "shape": list(first.fact.shape)},
        next=_ADVICE if is_drawn else _ADVICE[::-1],
    )


_ADVICE = (
    "Where it is drawn: seed each rank by itself once the model is made, torch.manual_seed(seed + rank), or draw from "
    "a generator of its own. Accelerate: set_seed(seed, device_specific=True) after the model is made.",
    "Where it is read with the samples: see whether ranks read the same ones in other augmentations; print the indices "
    "that the sampler of each rank yields.",
)
