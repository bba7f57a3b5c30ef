"""The data set that is read changes itself, in the same way again in each epoch.

What it finds
-------------
A `__getitem__` that normalises what it has stored and not a copy of it (`x = self.x[i]; x /= 255`), so that a sample is
divided by 255 once more each time it is read; one that puts a prompt in front of a stored text, or appends an end token
to a stored list of tokens.

Why it matters
--------------
The first epoch is right. In the second one all samples are another data set, in the tenth they are 0 or mostly prompt.
The loss shows it as a jump at the beginning of an epoch, or not at all, as the model follows.

How it decides
--------------
By what is there: sixteen rows, evenly spaced, of what a data set in memory holds (tensors, arrays, lists of tokens,
texts, also in a dict each), in front of the first passes over it. In two passes in a row, at least, all of them must
have changed to numbers that lie on a line over the old ones (a factor and an offset, of each row or of each feature, to
1e-5), or to what holds the old ones and is longer. It is to be confirmed. What changes once, as what is normalised to
itself, is left alone, and so are rows that are replaced, as those of a replay memory or a cache.

What it may miss
----------------
Noise, crops and flips that are made in place; files; data sets of loader workers, which change copies of their own:
these are gone with each epoch unless the workers persist; jobs of two epochs.

Example
-------
Reading changes the data set: 16 of 16 rows of `x` that were looked at are 0.00392 times what they were, in each of 3
epochs.

Wrong and right
---------------
Wrong:

```python
def __getitem__(self, index):
    picture = self.pictures[index]
    picture /= 255
    return picture
```

Right:

```python
def __getitem__(self, index):
    return self.pictures[index] / 255
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from trueline.judge.compared_ranks import data_parallel_ranks, sites_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "data-set-changes"
CALLS = {"": ("DataLoader",)}
QUESTION = "repeats"
NEEDS: tuple[str, ...] = ("sample_digests",)
ACROSS_RANKS = False

Changes = Sequence[Sequence[Mapping[str, Any]]]
"""Of each pass but the first, the fields of the data set that had changed."""


def check(run: Run) -> list[Finding]:
    """A Finding for each field; raises ``CannotTell`` where no data set was gone through three times."""
    ranks = data_parallel_ranks(run)
    data = {rank: run.env[rank].data for rank in ranks if rank in run.env}
    if not any(len(facts.get("orders") or ()) > 2 for facts in data.values()):
        raise CannotTell("no DataLoader was gone through three times", reason="by-design")
    kinds: dict[str, dict[int, tuple[Mapping[str, Any], int]]] = {}
    for rank, facts in data.items():
        changes: Changes = facts.get("stored_changes") or ()
        for name in dict.fromkeys(str(change["name"]) for of_pass in changes for change in of_pass):
            of_name = [_of_field(of_pass, name) for of_pass in changes]
            times = [_is_alike(*pair) for pair in pairwise(of_name)]
            if any(times):
                first = of_name[times.index(True)]
                kinds.setdefault(name, {})[rank] = (first, 1 + sum(times))
    return [_finding(run, name, by_rank) for name, by_rank in kinds.items()]


def _of_field(changes: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    return next((change for change in changes if change["name"] == name), dict[str, Any]())


def _is_alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether all rows changed twice, in one way."""
    kind = first.get("kind")
    return (
        bool(kind)
        and kind == second.get("kind")
        and all(change["changed"] == change["rows"] for change in (first, second))
    )


def _finding(run: Run, name: str, by_rank: Mapping[int, tuple[Mapping[str, Any], int]]) -> Finding:
    ranks = tuple(by_rank)
    change, times = by_rank[ranks[0]]
    step = int(run.steps[0])
    field = f" of `{name}`" if name else ""
    where = "" if len(run.ranks) == 1 else f" on {ranks_text(ranks, all_ranks=run.ranks)}"
    if change["kind"] == "longer":
        change_text = f"{counted(int(change['by']), 'element')} longer than before"
    else:
        change_text = f"{change['factor']:.3g} times what they were"
        # rows are on a line to 1e-5, so that less than a tenth of a thousandth of the factor is rounding
        change_text += f", {change['offset']:+.3g}" if abs(change["offset"]) > 1e-4 * abs(change["factor"]) else ""
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"Reading changes the data set{where}: {change['changed']} of "
        f"{counted(int(change['rows']), 'row')}{field} that were looked at are {change_text}, "
        f"in each of {counted(times, 'epoch')}.",
        ranks=ranks,
        step_first=step,
        step_last=int(run.steps[-1]),
        sites=sites_of(step, ranks[:2], phase="batch", names=("samples",), slot="in0"),
        measured=float(times),
        expected=0.0,
        unit="epochs in which the data set changed",
        false_alarm_rate=None,
        evidence={"kind": change["kind"], "field": name, "rows": change["rows"]},
        next=(
            "Look into __getitem__ for an operation in place (`x /= 255`, `x.mul_`, `+=`, `append`) on what self "
            "holds, and make a copy first: `x = self.x[index].clone()`.",
        ),
    )
