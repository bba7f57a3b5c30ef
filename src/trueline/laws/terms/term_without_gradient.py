"""A term of the loss has no gradient: it changes the number that is printed, and no weight.

What it finds
-------------
A penalty, divergence or auxiliary loss that is added to the loss after `detach`, `item`, `.data`, `no_grad` or a way
through numpy. Whatever factor it has, nothing depends on it.

Why it matters
--------------
The loss that is logged contains it, and may even rise with it; the model is trained on the rest alone.

How it decides
--------------
By the graph of the loss, at the first sampled steps and then at gaps that double. A sum of single numbers of which one
has no gradient and others have is seen there. What has the gradient is computed again by the functions of torch that
made it, from what they keep for backward; what that leaves of the loss is the term's value. A Python number, such as
the 0 that `sum` begins with, looks like a tensor there, and is the same at each step: only a value that differs by more
than 64 roundings of the loss, over three steps or more, is said.

It is for you to confirm: the loss of a frozen part may be added for the log.

What it may miss
----------------
Terms whose rest is made of operations that keep too little; terms of single samples or tokens that are added before
the mean; losses in compiled code; a term that is the same number at each step.

Example
-------
A term of the loss has no gradient: it adds 0.06402 at step 0 and 13.15 at step 65, and changes no weight.

Wrong and right
---------------
Wrong:

```python
loss = fit + 50 * roughness(weights.detach())
```

Right:

```python
loss = fit + 50 * roughness(weights)
```
"""

from __future__ import annotations

import math
from collections import defaultdict

from trueline.judge.compared_ranks import MAX_SITES
from trueline.schema.columns.loss_values import ConstantTerm
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.schema.text.words import counted, ranks_text
from trueline.store.reader import Run

CODE = "term-without-gradient"
CALLS = {"": ("backward",)}
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("constant_terms",)
ACROSS_RANKS = False

FEWEST = 3
"""Steps at which the value has to be known."""
ROUNDINGS = 64
"""Rounding units of the largest loss by which a value has to differ: a loss is the sum of at most 48 parts here."""


def check(run: Run) -> list[Finding]:
    """A Finding on the first rank that has such a term; raises ``CannotTell`` where its value is not known."""
    if not run.has("loss_terms"):
        raise CannotTell("no graph of a loss was looked at", reason="not-recorded")
    first_terms: defaultdict[int, dict[int, ConstantTerm]] = defaultdict(dict)
    for (step, rank), row in sorted(run.lists("constant_terms").items(), key=lambda pair: pair[0]):
        if terms := ConstantTerm.from_row(row.tolist()):
            first_terms[rank][step] = terms[0]
    unknown = False
    for rank, first in sorted(first_terms.items()):
        values = {step: term.value for step, term in first.items() if math.isfinite(term.value)}
        unknown |= len(first) >= FEWEST > len(values)
        if len(values) < FEWEST:
            continue
        largest = max(abs(first[step].value) + abs(first[step].rest) for step in values)
        unit = max(first[step].unit for step in values)
        if max(values.values()) - min(values.values()) > ROUNDINGS * unit * largest:
            return [_finding(run, rank, values, first[min(values)].number)]
    if unknown:
        raise CannotTell("what else the loss is the sum of cannot be computed from its graph", reason="undecidable")
    return []


def _finding(run: Run, rank: int, values: dict[int, float], number: int) -> Finding:
    first, last = min(values), max(values)
    subject = "A term of the loss has" if number == 1 else f"{counted(number, 'term')} of the loss have"
    verb, change = ("adds", "changes") if number == 1 else ("add", "change")
    pronoun = "it" if number == 1 else "they"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{subject} no gradient: {pronoun} {verb} {values[first]:.4g} at step {first} and {values[last]:.4g} at "
        f"step {last} to the loss of {ranks_text([rank])}, and {change} no weight.",
        ranks=(rank,),
        step_first=first,
        step_last=last,
        sites=tuple(str(Site(step, 0, rank, "loss", "all")) for step in sorted(values))[:MAX_SITES],
        measured=values[last],
        expected=None,
        unit="of the loss",
        false_alarm_rate=0.0,
        evidence={"kind": "detached", "values": {str(step): value for step, value in sorted(values.items())}},
        next=(
            "Print `requires_grad` of each term that is added up: what is detached, an `item()`, or computed under "
            "`no_grad` has none. If the term is for the log alone, log it beside the loss.",
        ),
    )
