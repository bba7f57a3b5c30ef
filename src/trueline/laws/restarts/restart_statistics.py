"""Running statistics begin anew at a restart, although the weights do not.

What it finds
-------------
A running mean and variance that the script keeps beside the model, of the shape of its inputs, whose count is smaller
after a restart than before: what normalises the inputs was not saved. And buffers of the model that changed while it
was trained, such as the running statistics of batch normalisation, and are as the job first began with after a restart.

Why it matters
--------------
The same observation is another input after the restart: the model is shown a distribution that it was not trained on,
and its performance collapses until statistics and weights have come together again. Batch normalisation in evaluation
mode uses what it has seen since the restart alone.

How it decides
--------------
Exactly. Objects of the script or of a library with a mean, a variance (or a deviation) of more than one number and of
the shape of a sample, and a count, are sought once in a start, and the count is read at each sampled step. It never
falls within a start; at the first step of the next it is less than half of what it had grown by. Buffers are compared
by their digests: such a buffer was never again as at first at any step that was looked at of the start before, at three
or more. A start whose weights begin anew, too, is told by `restart-weights`.

What it may miss
----------------
Statistics without a count, of one number, in a tuple, or in variables of a function; those that are in the processes of
a DataLoader or an environment.

Example
-------
The running mean and var of Normalize on rank 0, of the shape of the model's inputs, began anew at the restart at step
60: its count is 216 at step 62, and was 4,328 at step 59.

Wrong and right
---------------
Wrong:

```python
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
```

Right:

```python
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "normalizer": vars(normalizer)}, path)
```
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import named_some, ranks_text
from trueline.store.reader import Run

CODE = "restart-statistics"
CALLS = {"": ("optimizer",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("running_facts", "running_counts", "buffer_digests", "param_digests")
ACROSS_RANKS = False

FEWEST = 3
"""Steps of a start at which a buffer was other than at first, from which on it is no flag that comes and goes."""


@dataclass(frozen=True)
class _Count:
    """The count of running statistics: the last of one start, at step ``before``, and the first of the next."""

    words: str
    before: int
    old: float
    after: int
    new: float


def check(run: Run) -> list[Finding]:
    """A Finding for each restart and kind; raises ``CannotTell`` where nothing that runs was seen on both sides."""
    if not run.restarts:
        raise CannotTell("the job was started once", reason="by-design")
    if not run.has("running_counts") and not run.has("buffer_digests"):
        raise CannotTell("no running statistics were seen, in the model or beside it", reason="by-design")
    findings: list[Finding] = []
    for number, step in enumerate(run.restarts):
        begin = run.restarts[number - 1] if number else int(run.steps[0])
        end = run.restarts[number + 1] if number + 1 < len(run.restarts) else int(run.steps[-1]) + 1
        ranks = [rank for rank in sorted(run.env) if not _begins_anew(run, rank, step)]
        counts: defaultdict[str, dict[int, _Count]] = defaultdict(dict)
        for rank in ranks:
            for count in _counts_anew(run, rank, (begin, step, end)):
                counts[count.words][rank] = count
        findings += [_count_finding(step, by_rank) for by_rank in counts.values()]
        buffers = {rank: names for rank in ranks if (names := _buffers_anew(run, rank, begin, step))}
        findings += [_buffer_finding(run, step, buffers)] if buffers else []
    return findings


def _begins_anew(run: Run, rank: int, step: int) -> bool:
    """True where the weights are those of the first step, or nobody looked."""
    rows = run.lists("param_digests", steps=[int(run.steps[0]), step], ranks=[rank])
    first, after = rows.get((int(run.steps[0]), rank)), rows.get((step, rank))
    return first is None or after is None or np.array_equal(first, after)


def _counts_anew(run: Run, rank: int, bounds: tuple[int, int, int]) -> Iterator[_Count]:
    begin, step, end = bounds
    rows = {at: row for (at, _), row in run.lists("running_counts", ranks=[rank]).items() if begin <= at < end}
    texts = {at: text for (at, owner), text in run.texts("running_facts").items() if owner == rank}
    old_rows, new_rows = (
        [(at, rows[at]) for at in sorted(rows) if (at < step) is is_before] for is_before in (True, False)
    )
    if not old_rows or not new_rows:
        return
    old_names, new_names = (
        cast(list[list[str]], json.loads(next((texts[at] for at, _ in of_start if at in texts), "[]")))
        for of_start in (old_rows, new_rows)
    )
    for name in sorted({tuple(name) for name in old_names}):
        old_at, new_at = (
            [at for at, part in enumerate(names) if tuple(part) == name] for names in (old_names, new_names)
        )
        # of several objects of one class nobody knows which is which: all of them begin anew, or nothing is said
        if len(old_at) != len(new_at):
            continue
        table = np.stack([row[old_at] for _, row in old_rows])
        first, last = table[0].min(), table[-1].min()
        # a NaN, of an object that is gone, makes each of these false
        if len(table) < FEWEST or not np.all(np.diff(table, axis=0) >= 0) or not np.all(table[-1] > table[0]):
            continue
        after, new_row = new_rows[0]
        if new_row[new_at].max() <= first + (last - first) / 2:
            kind, mean, spread, _ = name
            yield _Count(
                f"{mean} and {spread} of {kind}", old_rows[-1][0], float(last), after, float(new_row[new_at].max())
            )


def _buffers_anew(run: Run, rank: int, begin: int, step: int) -> list[str]:
    """Buffers that are as at the first step of the Run, and never were again between ``begin`` and the restart."""
    rows = {at: row for (at, _), row in run.lists("buffer_digests", ranks=[rank]).items()}
    names, first, after = run.env[rank].buffers, rows.get(int(run.steps[0])), rows.get(step)
    if first is None or after is None or not len(names) == len(first) == len(after):
        return []
    later = [row for at, row in sorted(rows.items()) if max(begin, int(run.steps[0]) + 1) <= at < step]
    if len(later) < FEWEST or any(len(row) != len(names) for row in later):
        return []
    never = np.all(np.stack(later) != first, axis=0) & (after == first)
    return [name for name, is_anew in zip(names, never, strict=True) if is_anew]


def _count_finding(step: int, by_rank: Mapping[int, _Count]) -> Finding:
    ranks = tuple(sorted(by_rank))
    count = by_rank[ranks[0]]
    return _finding(
        step,
        ranks,
        "count",
        f"The running {count.words} on {ranks_text(ranks)}, of the shape of the model's inputs, began anew at the "
        f"restart at step {step}: its count is {count.new:,.6g} at step {count.after}, and was {count.old:,.6g} at "
        f"step {count.before}. Where inputs are normalised by it, the same sample is another input than before.",
        (count.new, count.old, "samples or batches counted"),
        "Save what normalises the inputs (mean, variance and count) with the checkpoint, and load it.",
    )


def _buffer_finding(run: Run, step: int, buffers: Mapping[int, Sequence[str]]) -> Finding:
    ranks = tuple(sorted(buffers))
    names = buffers[ranks[0]]
    verb = "is" if len(names) == 1 else "are"
    return _finding(
        step,
        ranks,
        "buffers",
        f"The job was started again at step {step}, and its buffers {named_some(names)} on {ranks_text(ranks)} {verb} "
        "as the job first began with, while the weights are not.",
        (float(len(names)), 0.0, "buffers that begin anew"),
        "Save model.state_dict(), which has buffers, and not the parameters alone; print what "
        "load_state_dict(…, strict=False) returns (its missing keys).",
    )


def _finding(
    step: int, ranks: tuple[int, ...], kind: str, claim: str, numbers: tuple[float, float, str], advice: str
) -> Finding:
    measured, expected, unit = numbers
    return Finding(
        code=CODE,
        severity="warning",
        claim=claim,
        ranks=ranks,
        step_first=step,
        step_last=step,
        measured=measured,
        expected=expected,
        unit=unit,
        false_alarm_rate=0.0,
        evidence={"kind": kind},
        next=(advice,),
    )
