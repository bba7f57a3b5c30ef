"""The model is called within autocast, and computes its products in float32.

What it finds
-------------
A compiled, scripted or wrapped function that runs its operations with autocast switched off; `autocast(enabled=False)`
around a whole model; autocast for another device than that of the model.

Why it matters
--------------
The step takes the time and memory of float32, and its numbers are not those of the precision that was asked for:
comparisons of speed or of losses are made with the wrong job. Where a gradient scaler belongs to it, it scales for
nothing.

How it decides
--------------
By what is there: in the graph of the first forward pass of a few early steps (the third, then each time at four times
the age), the dtype of the result of each matrix product, convolution and attention, and the autocast in which the model
was called. An error is told where at all steps, two or more, no product is in the dtype of autocast, and all are in
float32. Where some are, and more than half of the elements of the weights that products are made with are in float32,
it is for you to confirm: parts are kept in float32 on purpose, seldom most of a model.

What it may miss
----------------
Autocast that the model opens itself. Compiled and checkpointed functions, which leave no products in the graph; a model
that has such parts is not judged.

Example
-------
The model is called within autocast to bfloat16 (cpu), but not one of its 3 matrix products runs in it: all run in
float32, as if autocast were off (module.0.weight, module.2.weight and module.4.weight; steps 2 to 32, rank 0).

Wrong and right
---------------
Wrong:

```python
with torch.autocast("cuda", torch.bfloat16):
    compiled(x)  # made while autocast was off, and enters autocast(enabled=False)
```

Right:

```python
with torch.autocast("cuda", torch.bfloat16):
    compiled = compiler(model)
    compiled(x)
```
"""

from __future__ import annotations

from collections import defaultdict

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.precision.columns import Products
from trueline.laws.precision.looks import looks
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "autocast-not-in-force"
CALLS = {"": ("autocast",)}
QUESTION = "configuration"
NEEDS: tuple[str, ...] = ("products",)
ACROSS_RANKS = False

FEWEST = 2
"""Steps that were looked at: one may be another pass."""
FULL = "float32"
MOST = 0.5
"""Share of the elements of weights above which more of the model is outside of autocast than inside."""


def check(run: Run) -> list[Finding]:
    """A Finding at most; raises ``CannotTell`` where the model is not called within autocast, or hides its products."""
    by_rank: defaultdict[int, dict[int, Products]] = defaultdict(dict)
    for (step, rank), products in looks(run).items():
        by_rank[rank][step] = products
    declaring = {rank: rows for rank, rows in by_rank.items() if all(products.declared for products in rows.values())}
    if not declaring:
        raise CannotTell("the model is not called within autocast", reason="by-design")
    if any(products.hidden or not products.complete for rows in declaring.values() for products in rows.values()):
        raise CannotTell("compiled or checkpointed parts keep their products to themselves", reason="undecidable")
    declaring = {rank: rows for rank, rows in declaring.items() if len(rows) >= FEWEST}
    if not declaring:
        raise CannotTell("the precision of products was looked at at one step alone", reason="too-few-steps")
    for kind, is_so in (("all", _all_in_float32), ("most", _most_in_float32)):
        ranks = tuple(sorted(rank for rank, rows in declaring.items() if all(map(is_so, rows.values()))))
        if ranks:
            return [_finding(run, kind, ranks, declaring[ranks[0]])]
    return []


def _all_in_float32(products: Products) -> bool:
    return products.declared != FULL and set(products.counts) == {FULL}


def _most_in_float32(products: Products) -> bool:
    total = sum(products.elements.values())
    return products.declared != FULL and products.elements.get(FULL, 0) > MOST * total


def _finding(run: Run, kind: str, ranks: tuple[int, ...], rows: dict[int, Products]) -> Finding:
    steps, last = sorted(rows), rows[max(rows)]
    names, full, total = last.names.get(FULL, ()), last.counts[FULL], sum(last.counts.values())
    devices = [device for device, dtype in last.autocast.items() if dtype == last.declared]
    head = f"The model is called within autocast to {last.declared} ({', '.join(devices)})"
    elsewhere = "" if last.device in last.autocast else f", and its parameters are on {last.device}"
    weights = f"{named_some(list(names))}; " if names else ""
    where = f"({weights}steps {steps[0]} to {steps[-1]}, {ranks_text(ranks, all_ranks=run.ranks)})"
    share = f"not one of its {counted(total, 'matrix product')} runs in it: all run in {FULL}, as if autocast were off"
    if kind == "most":
        elements, all_elements = last.elements[FULL], sum(last.elements.values())
        share = (
            f"{full} of its {counted(total, 'matrix product')}, with {elements / all_elements:.0%} of the weights, do "
            f"not run in it, but in {FULL}"
        )
    return Finding(
        code=CODE,
        severity="error" if kind == "all" else "confirm",
        claim=f"{head}{elsewhere}, but {share} {where}.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="fwd", names=(list(names) or ["all"])[: MAX_SITES // 2]),
        measured=float(full),
        expected=0.0,
        unit=f"matrix products in {FULL} within autocast",
        false_alarm_rate=0.0,
        evidence={"kind": kind, "names": list(names), "autocast": dict(last.autocast), "counts": dict(last.counts)},
        next=(
            "Look for what switches autocast off inside of the model: a compiled or scripted function, a wrapper, "
            "autocast(enabled=False). Print torch.is_autocast_enabled() in its forward.",
            "If float32 is meant, leave out the autocast around the call.",
        ),
    )
