"""A part of the model is trained while it is in evaluation mode.

What it finds
-------------
A model that `from_pretrained` has returned, in evaluation mode as it comes from there, inside of another one that is
trained; a part on which somebody called `eval()`. Lightning keeps the mode of each module since 2.2, and a `train()` of
the part alone, or none at all, leaves the rest as it is.

Why it matters
--------------
Its dropout is off, so that it overfits sooner than it was meant to; its batch normalisation uses running statistics and
no longer updates them. No number shows it.

How it decides
--------------
By what is there: at a few sampled steps (the third, then each time at four times the age) the mode of every module in
a forward pass that is trained on. It is for you to confirm where a part has been in evaluation mode at all of them, two
or more; has parameters of its own that are trained; and has a dropout above 0, or is more than a layer of normalisation
and has running statistics. Parts that are frozen, and layers of batch normalisation that are frozen by themselves, as
detectors have them, are left alone.

What it may miss
----------------
Modules that compute otherwise by a flag of their own, and Runs of fewer than nine steps. A part that comes into this
mode later is `evaluation-mode`, if it is the whole model.

Example
-------
`bert` is trained in evaluation mode: 45 modules; 25 of them have a dropout above 0 (up to 0.1), which is off (steps 2
to 32, all ranks).

Wrong and right
---------------
Wrong:

```python
self.bert = BertModel.from_pretrained(path)
```

Right:

```python
self.bert = BertModel.from_pretrained(path).train()
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.schema.columns.evaluating_parts import EvaluatingPart, evaluating_parts
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "trains-in-evaluation"
CALLS = {"": ("eval",)}
QUESTION = "configuration"
NEEDS: tuple[str, ...] = ("evaluating_parts",)
ACROSS_RANKS = False

FEWEST = 2
"""Steps that were looked at: one may be a single pass."""


def check(run: Run) -> list[Finding]:
    """A Finding on parts in evaluation mode; raises ``CannotTell`` where fewer than two steps were looked at."""
    rows_by_rank: defaultdict[int, dict[int, tuple[EvaluatingPart, ...]]] = defaultdict(dict)
    for (step, rank), text in run.texts("evaluating_parts").items():
        rows_by_rank[rank][step] = evaluating_parts(text)
    if not rows_by_rank:
        raise CannotTell("no modes of parts were looked at", reason="not-recorded")
    rows_by_rank = defaultdict(dict, {rank: rows for rank, rows in rows_by_rank.items() if len(rows) >= FEWEST})
    if not rows_by_rank:
        raise CannotTell("modes of parts were looked at at one step alone", reason="too-few-steps")
    stays = {rank: _staying(rows) for rank, rows in rows_by_rank.items()}
    ranks = tuple(sorted(rank for rank, parts in stays.items() if parts))
    return [_finding(run, ranks, stays[ranks[0]], sorted(rows_by_rank[ranks[0]]))] if ranks else []


def _staying(rows: Mapping[int, Sequence[EvaluatingPart]]) -> list[EvaluatingPart]:
    """Parts that are in evaluation mode at all steps, and would compute otherwise in training mode."""
    always = set[str].intersection(*({part.name for part in parts} for parts in rows.values()))
    return [part for part in rows[max(rows)] if part.name in always and (part.dropouts or _keeps_statistics(part))]


def _keeps_statistics(part: EvaluatingPart) -> bool:
    """True unless it is a layer of normalisation that is frozen by itself, which is meant so."""
    return part.statistics > 0 and not part.is_norm


def _finding(run: Run, ranks: Sequence[int], parts: Sequence[EvaluatingPart], steps: Sequence[int]) -> Finding:
    drops = sum(part.dropouts for part in parts)
    modules, statistics = sum(part.modules for part in parts), sum(part.statistics for part in parts)
    names = [part.name for part in parts if part.name]
    subject = named_some([f"`{name}`" for name in names]) if names else "The whole model"
    verb = "are" if len(names) > 1 else "is"
    consequences: list[str] = []
    if drops:
        has = "has a dropout" if drops == 1 else "have a dropout"
        consequences.append(f"{drops} of them {has} above 0 (up to {max(part.p for part in parts):.3g}), which is off")
    if statistics:
        uses = "uses" if statistics == 1 else "use"
        consequences.append(f"{statistics} {uses} running statistics and {uses.replace('use', 'update')} none")
    first, last = steps[0], steps[-1]
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{subject} {verb} trained in evaluation mode: {counted(modules, 'module')}; {'; '.join(consequences)} "
        f"(steps {first} to {last}, {ranks_text(ranks, all_ranks=run.ranks)}).",
        ranks=tuple(ranks),
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="fwd", names=(names or ["all"])[: MAX_SITES // 2]),
        measured=float(modules),
        expected=0.0,
        unit="modules in evaluation mode that are trained",
        false_alarm_rate=0.0,
        evidence={
            "kind": "dropout" if drops else "statistics",
            "names": names[:100],
            "dropouts": drops,
            "statistics": statistics,
        },
        next=(
            "Call train() on it before training: from_pretrained returns a model in evaluation mode, and Lightning "
            "leaves each module in the mode it has.",
            "If it is meant, confirm it: dropout off is an ordinary choice for some fine-tuning.",
        ),
    )
