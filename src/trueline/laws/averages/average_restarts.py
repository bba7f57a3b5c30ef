"""An average of the weights begins again at a restart.

What it finds
-------------
An average (EMA, a momentum teacher) that was apart from the weights when a start of the job was seen last, and is equal
to them in front of the first update of the next start: it is not in the checkpoint, or is not loaded.

Why it matters
--------------
What is evaluated and published is the average. After each restart it is the weights of that moment, noisier than what
was evaluated before, and a long average never comes about in a job that is often started again.

How it decides
--------------
Exactly, on 16 neighbouring elements of up to 8 tensors of the average and of the weights. In the start before it moved
to the weights by a share of less than 1 in three samples or more, and was further from them at the last sample than
rounding explains; in the next start all elements are equal, and are not all alike. A start with other weights than were
left is passed over where digests show it: they may be those of the average. An average is what `average-updates` says.

What it may miss
----------------
One that is made after the first update of a start, or that begins again from other weights. Starts of which fewer than
three samples of a moving average were taken.

Example
-------
The average Average.model began again when the job was started at step 60: it is equal to the weights there, and was
apart from them at step 59 (rank 0). It was not loaded.

Wrong and right
---------------
Wrong:

```python
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
```

Right:

```python
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "average": average.state_dict()}
torch.save(state, path)
```
"""

from __future__ import annotations

from collections import defaultdict

from trueline.laws.averages.beside import CopyOfWeights, copies_of_weights
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run

CODE = "average-restarts"
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("average_facts", "average_values")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """A Finding for each start at which averages begin again; raises ``CannotTell`` where no two starts have one."""
    if not run.restarts:
        raise CannotTell("the job was started once", reason="by-design")
    copies: defaultdict[tuple[int | None, int, str], list[CopyOfWeights]] = defaultdict(list)
    for copy in copies_of_weights(run):
        copies[copy.start, copy.rank, copy.name].append(copy)
    pairs = [
        (before, after)
        for (start, rank, name), of_start in list(copies.items())
        for before in of_start
        if start is not None and before.relation == "average" and before.ends_apart
        for after in copies.get((_next_start(run, start), rank, name), ())
    ]
    if not pairs:
        raise CannotTell("no average of the weights was seen in two starts, one after the other")
    by_start: dict[tuple[int, str], list[tuple[CopyOfWeights, CopyOfWeights]]] = {}
    for before, after in pairs:
        if after.begins_equal and not _begins_with_others(run, after):
            by_start.setdefault((after.start, after.name), []).append((before, after))
    return [_finding(run, pairs) for pairs in by_start.values()]


def _next_start(run: Run, start: int) -> int | None:
    return min((step for step in run.restarts if step > start), default=None)


def _begins_with_others(run: Run, copy: CopyOfWeights) -> bool:
    """True if the weights at the start are not those that the start before had left, as far as both are known."""
    saved = run.lists("closing_digests", steps=[copy.start - 1]).get((copy.start - 1, copy.rank))
    loaded = run.lists("param_digests", steps=[copy.start]).get((copy.start, copy.rank))
    return saved is not None and loaded is not None and saved.tolist() != loaded.tolist()


def _finding(run: Run, pairs: list[tuple[CopyOfWeights, CopyOfWeights]]) -> Finding:
    before, after = pairs[0]
    ranks = tuple(sorted({copy.rank for _, copy in pairs}))
    average = "The average of the weights" if after.name == "the average" else f"The average {after.name}"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{average} began again when the job was started at step {after.start}: it is equal to the weights "
        f"there, and was apart from them at step {before.averagings[-1].step} ({ranks_text(ranks, all_ranks=run.ranks)}"
        "). It was not loaded.",
        ranks=ranks,
        step_first=after.start,
        step_last=after.start,
        measured=float(len(pairs)),
        expected=0.0,
        unit="ranks on which the average is equal to the weights at the start",
        false_alarm_rate=0.0,
        evidence={"kind": "equal", "name": after.name, "share": before.share},
        next=(
            "Save the average beside the weights, and load it after the weights and before the first update. If it is "
            "meant to begin again, nothing is wrong.",
        ),
    )
