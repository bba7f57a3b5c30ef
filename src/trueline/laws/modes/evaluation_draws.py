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
from trueline.laws.modes.evaluations import SeenPass, seen_passes, share_text, steps_of, when_text
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, named_some, ranks_text
from trueline.store.reader import Run

CODE = "evaluation-draws"
CALLS = {"": ("eval",)}
QUESTION = "configuration"
NEEDS: tuple[str, ...] = ("evaluations",)
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """A Finding on the passes that draw; raises ``CannotTell`` where no pass in evaluation mode was seen."""
    evaluations = [seen_pass for seen_pass in seen_passes(run) if not seen_pass.facts.training]
    drawing = [seen_pass for seen_pass in evaluations if seen_pass.facts.drawn]
    return [_finding(run, drawing, evaluations)] if drawing else []


def _finding(run: Run, drawing: Sequence[SeenPass], evaluations: Sequence[SeenPass]) -> Finding:
    ranks = tuple(sorted({seen_pass.rank for seen_pass in drawing}))
    first, last = steps_of(run, drawing)
    calls = list(dict.fromkeys(call for seen_pass in drawing for call in seen_pass.facts.draws))
    modules = list(dict.fromkeys(name for seen_pass in drawing for name in seen_pass.facts.dropouts))
    drops = bool(modules) or any(seen_pass.facts.drops for seen_pass in drawing)
    calls_clause = f", by {named_some([f'`{function}` at {line}' for function, line in calls])}" if calls else ""
    action = "drops values at random" if drops else "draws random numbers"
    modules_clause = ""
    if modules:
        verb, mode = ("is", "it") if len(modules) == 1 else ("are", "they")
        names = named_some([f"`{name}`" for name in modules])
        modules_clause = f"; {names} {verb} in training mode, and {mode} should not be"
    return Finding(
        code=CODE,
        severity="confirm" if drops else "info",
        claim=f"In evaluation mode the forward pass {action}{calls_clause}: in {share_text(drawing, evaluations)}, "
        f"{when_text(drawing)}, of {ranks_text(ranks, all_ranks=run.ranks)}{modules_clause}.",
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
            "stack": [line for _, line in calls],
            "num_looked": len(evaluations),
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
