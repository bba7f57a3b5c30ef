"""The model is in evaluation mode, and its forward pass draws random numbers.

What it finds
-------------
`F.dropout(x)` without `training=self.training`, attention with a `dropout_p` that no mode turns off, a dropout module
that `eval()` does not reach, noise that is added in both modes.

Why it matters
--------------
Every number that such an evaluation gives is one draw: a validation loss is too high and differs from call to call, a
model is chosen by luck, and what is deployed answers another thing each time. Training shows nothing of it.

How it decides
--------------
By what is there: the state of torch's generator just before and just after a forward pass in evaluation mode, of the
first four, then of the first between two steps, later now and then. Where it has moved, the pass drew. Which call drew
is seen by the operation. It is an information, for you to confirm where values are dropped (by dropout of any kind):
Monte Carlo dropout means that, and hardly anything else. Other numbers are drawn on purpose by a VAE, a diffusion model
or a sampler, and an information is all that they are.

What it may miss
----------------
Draws from NumPy's or Python's generator, or a generator of the program's own; evaluations of a copy of the model, such
as an average of its weights, or by another method than its call; draws within what was compiled; steps whose evaluation
was not looked at. On a device, draws of fused kernels are known by the state alone, without their line.

Example
-------
In evaluation mode the forward pass drops values at random, by `dropout` at model.py:31.

Wrong and right
---------------
Wrong:

```python
h = F.dropout(h, 0.1)  # training=True is the default
```

Right:

```python
h = F.dropout(h, 0.1, training=self.training)
```
"""

from __future__ import annotations

from collections.abc import Sequence

from trueline.judge.compared_ranks import sites_of
from trueline.laws.modes.evaluations import Looked, looked_at, share_text, steps_of, when_text
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, named_some, ranks_text
from trueline.store.reader import Run

CODE = "evaluation-draws"
CALLS = {"": ("eval",)}
QUESTION = "configuration"
NEEDS: tuple[str, ...] = ("evaluations",)
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where no pass in evaluation mode was seen."""
    every = [each for each in looked_at(run) if not each.of.training]
    drawing = [each for each in every if each.of.drawn]
    return [_finding(run, drawing, every)] if drawing else []


def _finding(run: Run, drawing: Sequence[Looked], every: Sequence[Looked]) -> Finding:
    ranks = tuple(sorted({each.rank for each in drawing}))
    first, last = steps_of(run, drawing)
    calls = list(dict.fromkeys(call for each in drawing for call in each.of.draws))
    modules = list(dict.fromkeys(name for each in drawing for name in each.of.dropouts))
    drops = bool(modules) or any(each.of.drops for each in drawing)
    by = f", by {named_some([f'`{function}` at {line}' for function, line in calls])}" if calls else ""
    does = "drops values at random" if drops else "draws random numbers"
    on = ""
    if modules:
        verb, mode = ("is", "it") if len(modules) == 1 else ("are", "they")
        on = f"; {named_some([f'`{name}`' for name in modules])} {verb} in training mode, and {mode} should not be"
    return Finding(
        code=CODE,
        severity="info",
        claim=f"In evaluation mode the forward pass {does}{by}: in {share_text(drawing, every)}, "
        f"{when_text(drawing)}, of {ranks_text(ranks, all_ranks=run.ranks)}{on}.",
        ranks=ranks,
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="fwd", names=("all",)),
        measured=float(len(drawing)),
        expected=0.0,
        unit="passes in evaluation mode that draw",
        false_alarm_rate=0.0,
        evidence={
            "kind": "drops" if drops else "draws",
            "by_design": not drops,
            "stack": [line for _, line in calls],
            "num_looked": len(every),
        },
        next=(
            f"Make {listed([f'`{name}`' for name in modules[:3]])} follow eval(): hold "
            f"{counted(len(modules), 'module')} as an attribute of a module, and let train() pass its mode on."
            if modules
            else "Pass `training=self.training` to F.dropout, and a probability of `self.p if self.training else 0.0` "
            "where there is no such argument (scaled_dot_product_attention).",
            "If it is meant (Monte Carlo dropout), average several passes, and seed before each evaluation.",
        )
        if drops
        else (
            "If it is meant (a VAE, a sampler), seed before each evaluation, so that its numbers can be compared; if "
            "it is noise for training, draw it only `if self.training`.",
        ),
    )
