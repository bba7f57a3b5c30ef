"""The optimizer holds other parameters than those of the model.

What it finds
-------------
An optimizer that updates nothing of the model: it was made before the model was wrapped, cast, moved or loaded in a way
that replaced its parameters, or for another copy of the model; or it holds a part of the model that is frozen, and
nothing of the rest. Layers that were to train and that it does not hold:
forgotten at the end of the model, unfrozen or replaced later, or untied from a parameter that it does hold.

Why it matters
--------------
Gradients are computed, averaged and clipped, the learning rate follows its schedule, and no weight ever changes.

How it decides
--------------
Exactly. At a sampled update the optimizer holds none of the model's parameters, these have gradients, and their digests
stay the same bit for bit at three updates or more and at the last. An optimizer of copies in float32 that are written
back to the model changes digests, and is no finding.

Of an optimizer that holds a part of the model, the rest may be left out on purpose: `param-frozen` tells of it as
information. It is a warning here where something shows that it was to train: a parameter was frozen and is no longer;
another tensor has taken its place; it began bit for bit as a copy of one that is trained; or what is left out has the
last parameter of the model and less than half of its elements, as nobody trains the beginning of a model alone who does
not freeze its end. So it is where the optimizer has groups with and without weight decay, which are made of all
parameters by their names, and holds others of the modules that they are of. These, too, have gradients and stay as they
are, at three updates or more.

What it may miss
----------------
Layers that are forgotten elsewhere. Gradients that a framework keeps elsewhere than in `.grad`. An optimizer that is to
hold the rest, and that makes its first update after the Run ends, is not seen: that is a warning, too.

Example
-------
AdamW holds none of the parameters of the model, which have gradients and stay as they were at steps 0-39.

Wrong and right
---------------
Wrong:

```python
optimizer = torch.optim.AdamW(model.parameters())
model = copy.deepcopy(model).to(device)
```

Right:

```python
model = copy.deepcopy(model).to(device)
optimizer = torch.optim.AdamW(model.parameters())
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.optimizer.outside import Left, left_alone
from trueline.schema.finding import Finding
from trueline.schema.text.words import listed, named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "optimizer-detached"
CALLS = {"": ("optimizer", "step")}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("update_facts", "param_digests")
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """The Finding of an optimizer without the model's parameters; raises ``CannotTell`` where no update was sampled."""
    every = [each for each in left_alone(run) if each.why]
    return [_finding(run, [each for each in every if each.why == why]) for why in dict.fromkeys(e.why for e in every)]


def _finding(run: Run, left: Sequence[Left]) -> Finding:
    why = left[0].why
    first, last = min(each.step_first for each in left), max(each.step_last for each in left)
    since = min(each.since for each in left)
    ranks = tuple(each.rank for each in left)
    kinds = [name.rpartition(".")[2] for name in left[0].optimizers]
    steps = steps_text((int(step) for step in run.steps if first <= step <= last), among=run.steps.tolist())
    names = list(dict.fromkeys(name for each in left for name in each.names))
    holds = "hold" if len(kinds) > 1 else "holds"
    what, expected = _LACKS[why]
    whole = why in ("all", "frozen")
    lacks = "none of the parameters of the model"
    if why == "frozen":
        lacks = f"of the model what is frozen alone ({named_some(left[0].held_frozen)}), and not {named_some(names)}"
    return Finding(
        code=CODE,
        severity="error" if whole else "warning",
        claim=f"{listed(kinds)} {holds} {lacks} on {ranks_text(ranks)}, which have gradients and stay as they were at "
        f"{steps}."
        if whole
        else f"{listed(kinds)} {'do' if len(kinds) > 1 else 'does'} not hold {named_some(names)} on "
        f"{ranks_text(ranks)}, {what}: with gradients, nothing of that changes at {steps}.",
        ranks=ranks,
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="opt", names=names[: MAX_SITES // 2]),
        measured=0.0,
        expected=float(len(left[0].names)),
        unit="parameters of the model that the optimizer holds" if whole else "of these that the optimizer holds",
        false_alarm_rate=0.0 if whole else None,
        evidence={
            "kind": why,
            "names": names[:100],
            **({"onset_interval": [since, first]} if since < first else {}),
        },
        next=(expected,),
    )


_LACKS: Mapping[str, tuple[str, str]] = {
    "all": (
        "",
        "Make the optimizer after the model is wrapped, cast, moved and loaded, from the parameters of the model that "
        "is called.",
    ),
    "frozen": (
        "",
        "Give the optimizer the parameters that are to train, or set requires_grad to True for those that it holds.",
    ),
    "unfrozen": (
        "frozen before and no longer",
        "Call optimizer.add_param_group for what is unfrozen, or hold it from the start.",
    ),
    "replaced": (
        "in the place of what it holds",
        "Make the optimizer after parts of the model are replaced, or copy weights into the parameters that are there.",
    ),
    "untied": (
        "at first a copy of what it updates",
        "Make the optimizer after parameters are tied or untied.",
    ),
    "ungrouped": (
        "which no group of its weight decays has",
        "Give every parameter that is to train a group: end the tests of names with an else.",
    ),
    "last": (
        "the end of a model that it holds most of",
        "Make the optimizer from all parameters that are to train; set requires_grad to False for what is not.",
    ),
}
"""By what shows that parameters were to train: that in words, and what to do."""
