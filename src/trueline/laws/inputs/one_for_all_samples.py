"""What is drawn at each step is one for all samples of the batch.

What it finds
-------------
A time of a diffusion or flow model, a noise level, a mask or noise that is drawn once a step and given to every sample
of the batch: `t = torch.rand(1).expand(len(x))`, a draw in front of the loop over samples, a mask that is broadcast.

Why it matters
--------------
The gradient of an update is that of a single time. It averages over the data and not over what is drawn, so that its
noise hardly falls with the batch: the loss jumps from step to step, and training takes longer.

How it decides
--------------
By equality, at the first 16 sampled steps and then now and then, 8 at least of one shape of all inputs: what follows
from the shape, as the length of a padded batch, is one in them. In each of these steps all rows of the argument are
alike, in every pass, while another input of as many rows has different ones. It is

- one number a sample, [B] or [B, 1], or for a time by its name (`t`, `timestep`, `sigma`, ...) one number for all;
- or standard normal noise, or something whose name says noise or mask, but for padding.

And it must look drawn: it is another one at half of these steps or more, and goes up and down: more than a third of
its places along the steps, where a random order has two thirds, are above both neighbours, or below both. A temperature
or a noise level that follows the step is left alone, as are positions, labels, lengths, weights and scales by name.

It is to be confirmed, as nobody can know from outside whether one draw a batch is meant.

What it may miss
----------------
What is drawn within the model; plain numbers of Python; what changes seldom.

Example
-------
`t` is the same for all samples of a batch at each of 20 steps that were looked at, and another from step to step, while
`x` differs between samples.

Wrong and right
---------------
Wrong:

```python
t = torch.randint(0, 1000, (1,)).expand(len(x))
```

Right:

```python
t = torch.randint(0, 1000, (len(x),))
```
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trueline.judge.compared_ranks import sites_of
from trueline.laws.inputs.names import POSITIONS, TIMES
from trueline.laws.inputs.tensors import by_shapes, looked_at
from trueline.schema.columns.influence import BESIDE
from trueline.schema.columns.input_values import InputValue
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "one-for-all-samples"
QUESTION = "streams"
NEEDS: tuple[str, ...] = ("input_facts", "input_values")
ACROSS_RANKS = False

MIN_STEPS = 8
"""Steps of one shape of all inputs at which an argument is looked at before anything is said of it."""
CHANGING = 0.5
"""Share of the steps with content of their own, from which on it is drawn at each."""
TURNS = 1 / 3
"""Share of places that are above or below both neighbours, beyond which numbers are in no order. A random order has 2/3
in the mean, and of 8 numbers no more than this with a probability of 7 %, of more with less (by going through all)."""
DRAWN = ("noise", "eps", "mask", "drop")
"""Words in the names of what is drawn for each sample."""
NOT_DRAWN = ("attention", "attn", "pad", "causal", "loss_mask", "label")
"""Words in the names of masks that follow from the data."""


class _Shared(NamedTuple):
    name: str
    steps: tuple[int, ...]
    varied: str
    """An input whose rows differ."""


def check(run: Run) -> list[Finding]:
    """A Finding for each argument; raises ``CannotTell`` where no inputs were seen, or at too few steps."""
    shared: dict[str, dict[int, _Shared]] = {}
    for rank, of_rank in looked_at(run, fewest=MIN_STEPS).items():
        for group in by_shapes(of_rank):
            for draw in _shared(group):
                shared.setdefault(draw.name, {}).setdefault(rank, draw)
    return [_finding(run, draws) for draws in shared.values()]


def _shared(group: Mapping[int, Mapping[tuple[str, bool], InputValue]]) -> Iterator[_Shared]:
    """Arguments that are drawn once for all samples at the steps of a group, which have one shape of each."""
    steps = tuple(group)
    if len(steps) < MIN_STEPS:
        return
    for name, is_target in next(iter(group.values())):
        values = [group[step][name, is_target] for step in steps]
        if is_target or not _is_for_samples(values) or not _looks_drawn(values):
            continue
        rows = values[0].fact.shape[0] if values[0].fact.shape else 1
        varied = _varied(group, rows)
        if varied is not None:
            yield _Shared(name, steps, varied)


def _is_for_samples(values: Sequence[InputValue]) -> bool:
    """True of a number a sample, or something drawn for it, all of whose rows are alike at all steps."""
    fact = values[0].fact
    name = fact.name.lower().partition("[")[0]
    if fact.name in POSITIONS or not name:
        return False
    if fact.shape in ((), (1,)):  # of one number nobody knows whether there is a sample of each but by its name
        return name in TIMES and all(value.single is not None for value in values)
    if not all(value.rows_alike for value in values) or len(fact.shape) < 1 or fact.shape[0] < 2:
        return False
    if any(word in name for word in NOT_DRAWN):
        return False
    if all(size == 1 for size in fact.shape[1:]):
        return fact.dtype != "torch.bool" and not any(word in name for word in BESIDE)
    return all(value.is_noise for value in values) or any(word in name for word in DRAWN)


def _looks_drawn(values: Sequence[InputValue]) -> bool:
    """True of content that is another one at most steps, and in no order."""
    if len({value.digest for value in values}) < CHANGING * len(values):
        return False
    numbers = np.array([value.single for value in values if value.single is not None])
    if len(numbers) < len(values):  # passes of one step differ: then it does not follow the step
        return True
    changes = np.diff(numbers)
    return int(np.count_nonzero(changes[1:] * changes[:-1] < 0)) > TURNS * (len(numbers) - 2)


def _varied(group: Mapping[int, Mapping[tuple[str, bool], InputValue]], rows: int) -> str | None:
    """The name of an input of ``rows`` rows, or of several where that is 1, that differ at each step, and from step to
    step; None without.
    """
    for name, is_target in next(iter(group.values())):
        values = [of_step[name, is_target] for of_step in group.values()]
        shape = values[0].fact.shape
        fits = len(shape) > 0 and shape[0] > 1 and rows in (1, shape[0])
        if is_target or not fits or any(value.rows_alike for value in values):
            continue
        if len({value.digest for value in values}) >= CHANGING * len(values):
            return name
    return None


def _finding(run: Run, draws: Mapping[int, _Shared]) -> Finding:
    ranks = tuple(sorted(draws))
    draw = draws[ranks[0]]
    location = "" if len(run.ranks) == 1 else f" of {ranks_text(ranks, all_ranks=run.ranks)}"
    varied = f"`{draw.varied}` differs" if draw.varied else "its other inputs differ"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"`{draw.name}` is the same for all samples of a batch{location} at each of "
        f"{counted(len(draw.steps), 'step')} that were looked at, and another from step to step, while {varied} "
        "between samples.",
        ranks=ranks,
        step_first=draw.steps[0],
        step_last=draw.steps[-1],
        sites=sites_of(draw.steps[0], ranks[:2], phase="batch", names=(draw.name,)),
        measured=float(len(draw.steps)),
        expected=0.0,
        unit="steps at which it is one for all samples",
        false_alarm_rate=None,
        evidence={"kind": draw.name, "steps": list(draw.steps[:100]), "varied": draw.varied},
        next=(
            f"Draw {draw.name} for each sample: torch.rand(len(x)) in place of one number that is expanded, or of a "
            "draw in front of the batch.",
        ),
    )
