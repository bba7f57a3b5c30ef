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
it came into the model while training went on, as a second adapter does; another tensor has taken its place; it began
bit for bit as a copy of one that is trained; or what is left out has the last parameter of the model and less than half
of its elements, as nobody trains the beginning of a model alone who does not freeze its end. So it is where the
optimizer has groups with and without weight decay, which are made of all parameters by their names, and holds others of
the modules that they are of. These, too, have gradients and stay as they are, at three updates or more.

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
from trueline.laws.optimizer.unheld_params import UnheldParams, unheld_params
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
    unheld = [params for params in unheld_params(run) if params.sign]
    signs = dict.fromkeys(params.sign for params in unheld)
    return [_finding(run, [params for params in unheld if params.sign == sign]) for sign in signs]


def _finding(run: Run, unheld: Sequence[UnheldParams]) -> Finding:
    """The Finding of parameters with one sign, of one entry for each rank or more."""
    sign = unheld[0].sign
    first, last = min(params.step_first for params in unheld), max(params.step_last for params in unheld)
    earliest = min(params.earliest_step for params in unheld)
    ranks = tuple(params.rank for params in unheld)
    optimizers = [name.rpartition(".")[2] for name in unheld[0].optimizers]
    steps = steps_text((int(step) for step in run.steps if first <= step <= last), among=run.steps.tolist())
    names = list(dict.fromkeys(name for params in unheld for name in params.names))
    holds = "hold" if len(optimizers) > 1 else "holds"
    description, remedy = _SIGNS[sign]
    whole = sign in ("all", "frozen")
    lacks = "none of the parameters of the model"
    if sign == "frozen":
        lacks = f"of the model what is frozen alone ({named_some(unheld[0].held_frozen)}), and not {named_some(names)}"
    return Finding(
        code=CODE,
        severity="error" if whole else "warning",
        claim=f"{listed(optimizers)} {holds} {lacks} on {ranks_text(ranks)}, which have gradients and stay as they "
        f"were at {steps}."
        if whole
        else f"{listed(optimizers)} {'do' if len(optimizers) > 1 else 'does'} not hold {named_some(names)} on "
        f"{ranks_text(ranks)}, {description}. They have gradients, and do not change at {steps}.",
        ranks=ranks,
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="opt", names=names[: MAX_SITES // 2]),
        measured=0.0,
        expected=float(len(unheld[0].names)),
        unit="parameters of the model that the optimizer holds" if whole else "of these that the optimizer holds",
        # Arithmetic shows a whole model that stays; that a part of it was to train is a guess from how it looks.
        false_alarm_rate=0.0 if whole else None,
        evidence={
            "kind": sign,
            "names": names[:100],
            **({"onset_interval": [earliest, first]} if earliest < first else {}),
        },
        next=(remedy,),
    )


_SIGNS: Mapping[str, tuple[str, str]] = {
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
    "added": (
        "which came into the model while training went on",
        "Call optimizer.add_param_group for what is added (an adapter, a layer), or make the optimizer after that.",
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
        "the last part of a model of which it holds the rest",
        "Make the optimizer after layers are added or replaced, from all parameters that are to train; set "
        "requires_grad to False for what is not.",
    ),
}
"""By the sign that parameters were to train: it in words, and advice."""
