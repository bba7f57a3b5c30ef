"""A whole part of what a layer makes is never used: the rows of its weight that make it never have a gradient.

What it finds
-------------
Layers whose output is cut into equal parts, one of which nobody reads: the log-variance that is read from the half of
the mean, the value of an attention that is its key, a gate that is the same half as what it gates.

Why it matters
--------------
What the part was to learn is not learned, and another part does the work of two. Shapes are right and the loss falls.

How it decides
--------------
By rows of the weights of linear layers and convolutions at eight early steps at most. A row is unused where its
gradient is exactly 0 at each of these at which the weight has a gradient at all; there must be five. Rows that are
unused must be one run: one or more of two, three or four equal parts of the layer, each of eight rows at least. Of the
other rows less than one part may be without a gradient at any of these steps: parts that come in turn, as experts do,
need not all have come. Units of ReLU that are dead, or actions that were not drawn, lie scattered: half of the rows
may be such and nothing is wrong. That they make up such a part happens in 3 of 100,000 layers of 16 rows, where all are
dead with the chance that is the worst, and in fewer of more rows.

It is to be confirmed: the part may be meant for later.

What it may miss
----------------
Parts of fewer than eight rows, parts of five or more, and rows that lie scattered; weights of which a rank holds a part
alone; layers beyond 128; parameters outside of `nn.Linear` and convolutions. Parts that are used in a later phase, such
as classes of later tasks in one layer, are said to be unused.

Example
-------
16 of 32 rows of encoder.2.weight (16 to 31) never had a gradient, at 8 steps that were looked at: half of what this
layer makes is not used.

Wrong and right
---------------
Wrong:

```python
mean, log_var = h[:, :latent], h[:, :latent]
```

Right:

```python
mean, log_var = h.chunk(2, dim=1)
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from trueline.judge.compared_ranks import data_parallel_ranks, sites_of
from trueline.laws.optimizer.columns import MIN_ROWS, UnusedRows, unused_rows
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "rows-unused"
CALLS = {"": ("optimizer",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("row_facts", "unused_rows")
ACROSS_RANKS = False

MIN_STEPS = 5
"""Of halves of which one is drawn at every step, it is the same at so many steps once in 16."""
PARTS = {2: "half", 3: "a third", 4: "a quarter"}
"""Into how many parts outputs are cut: mean and variance, query, key and value, gates of an LSTM."""


def check(run: Run) -> list[Finding]:
    """A Finding of the weights; raises ``CannotTell`` where no layer had a gradient at five steps."""
    ranks = data_parallel_ranks(run)[:1]
    values = run.lists("unused_rows", ranks=ranks)
    steps_of: defaultdict[str, dict[int, UnusedRows]] = defaultdict(dict)
    for key, text in sorted(run.texts("row_facts").items()):
        if key in values:
            for rows in unused_rows(text, values[key].tolist()):
                if rows.reached:
                    steps_of[rows.name][key[0]] = rows
    by_name = {name: by_step for name, by_step in steps_of.items() if len(by_step) >= MIN_STEPS}
    if not by_name:
        raise CannotTell(
            f"no layer of {2 * MIN_ROWS} outputs or more had a gradient at {MIN_STEPS} steps that were "
            "looked at, on a rank that holds it whole",
            reason="by-design",
        )
    unused = {name: by_step for name, by_step in by_name.items() if _share([*by_step.values()])}
    return [_finding(run, unused)] if unused else []


def _share(steps: Sequence[UnusedRows]) -> str:
    """The share of the parts that are unused, in words; empty where the unused rows are no such parts, or where parts
    come in turn.
    """
    last = min(steps, key=lambda rows: rows.never)  # a job that is started again begins anew
    if last.runs != 1 or last.never == last.num:
        return ""
    for num_parts, share in PARTS.items():
        size, rest = divmod(last.num, num_parts)
        if rest or size < MIN_ROWS or last.begin % size or last.never % size:
            continue
        if any(last.num - last.never - rows.reached >= size for rows in steps):
            continue
        num = last.never // size
        return share if num == 1 else {2: "two", 3: "three"}[num] + " " + share.removeprefix("a ") + "s"
    return ""


def _finding(run: Run, unused: dict[str, dict[int, UnusedRows]]) -> Finding:
    ranks = tuple(data_parallel_ranks(run)[:1])
    name, by_step = next(iter(unused.items()))
    rows = min(by_step.values(), key=lambda rows: rows.never)
    more = f", as in {counted(len(unused) - 1, 'further layer')}" if len(unused) > 1 else ""
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{rows.never:,} of {counted(rows.num, 'row')} of {rows.name} ({rows.begin} to "
        f"{rows.begin + rows.never - 1}) never had a gradient, at {counted(len(by_step), 'step')} that were looked at: "
        f"{_share([*by_step.values()])} of what this layer makes is not used{more}.",
        ranks=ranks,
        step_first=min(by_step),
        step_last=max(by_step),
        sites=sites_of(min(by_step), ranks, phase="bwd", names=(*unused,)),
        measured=float(rows.never),
        expected=0.0,
        unit="rows that never had a gradient",
        false_alarm_rate=None,
        evidence={"kind": "rows", "names": [*unused][:100], "begin": rows.begin, "steps": [*by_step]},
        next=(
            f"Look where the output of {name.removesuffix('.weight')} is cut (chunk, split, slices): two names may be "
            "the same slice, or one is not used below.",
        ),
    )
