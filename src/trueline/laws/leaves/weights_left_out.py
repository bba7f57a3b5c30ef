"""Tensors that need a gradient take part in the loss, and nothing trains them.

What it finds
-------------
Layers in a plain list or dict of a model. A parameter in an attribute of an object that is no module. A parameter, or a
module such as a loss with weights of its own, that is given to no optimizer. A layer that `forward` makes anew each
time.

Why it matters
--------------
Their gradients are computed and go nowhere: a part of the model stays as it was drawn. What no module registers is also
in no checkpoint, is moved to no device, and is neither made equal nor reduced by DDP. The loss falls all the same.

How it decides
--------------
By what is there. At a few steps (the third sampled one, then each time at four times the age) the graph of the loss is
walked down to the tensors that need a gradient. Of those that are no parameters of the watched model, and that no
`torch.optim` optimizer of the process holds, it says which the model or another module leads to. They have the same
values at two steps, or are another tensor at each.

It is a warning where the model itself holds them in an attribute that registers nothing, in training mode, or where it
is an `nn.Parameter` of nobody. A tensor that is no `nn.Parameter`, a part in evaluation mode, and a module beside the
model are for you to confirm: a network that only measures similarity is often not frozen. Inputs that need a gradient
are left alone, as are parameters of the model itself, which are `optimizer-detached` and `param-frozen`.

What it may miss
----------------
What is within a reentrant checkpoint. Graphs of more than 20,000 operations, and Runs of fewer than nine steps.
Where a framework shards parameters, an `nn.Parameter` of nobody.

Example
-------
6 tensors that need a gradient take part in the loss and were the same at steps 2 and 32: layers.0.weight,
layers.0.bias, ... The model has them in an attribute that registers nothing, and no optimizer holds them.

Wrong and right
---------------
Wrong:

```python
self.layers = [nn.Linear(d, d) for _ in range(3)]
```

Right:

```python
self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(3))
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.leaves.columns import OutsideLeaf
from trueline.laws.leaves.looks import Look, ask_for_whole_graphs, later_looks
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import capitalized, counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "weights-left-out"
CALLS = {"": ("optimizer",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("loss_leaves",)
ACROSS_RANKS = False

Kind = Literal["attribute", "attribute-tensor", "attribute-evaluates", "module", "nobody", "new"]

_FREEZE = "If they are not to train, call requires_grad_(False), which also saves their gradients."
_KINDS: Mapping[Kind, tuple[Severity, str, tuple[str, ...]]] = {
    "attribute": (
        "warning",
        "The model has them in an attribute that registers nothing, and no optimizer holds them",
        (
            "Hold them in nn.ModuleList, nn.ModuleDict or nn.ParameterList, or in an attribute of a module, before the "
            "model is wrapped and the optimizer is made.",
            _FREEZE,
        ),
    ),
    "attribute-tensor": (
        "confirm",
        "The model has them as plain tensors, and no optimizer holds them",
        ("If they are to train, make them nn.Parameter; if they are inputs, all is well.",),
    ),
    "attribute-evaluates": (
        "confirm",
        "The model has them in an attribute that registers nothing, in evaluation mode, and no optimizer holds them",
        (_FREEZE, "If they are to train, hold them in nn.ModuleList or nn.ModuleDict."),
    ),
    "module": (
        "confirm",
        "They are of a module beside the watched model, and no optimizer holds them",
        ("If they are to train, give them to an optimizer.", _FREEZE),
    ),
    "nobody": (
        "warning",
        "No module registers them, and no optimizer holds them",
        ("Register them in a module, and give them to the optimizer.", _FREEZE),
    ),
    "new": (
        "warning",
        "No module registers them and no optimizer holds them: they are made anew",
        ("Make layers and parameters in __init__, not in forward.",),
    ),
}
"""Severity, what is known of such tensors, and what to do."""


def check(run: Run) -> list[Finding]:
    """A Finding for each way in which tensors are left out; raises ``CannotTell`` where no two steps were looked at."""
    last_by_rank = {look.rank: look for look in later_looks(run)}
    names_by_kind: defaultdict[Kind, list[tuple[Look, list[str]]]] = defaultdict(list)
    for look in last_by_rank.values():
        names: defaultdict[Kind, list[str]] = defaultdict(list)
        for outside, change in look.outside:
            if kind := _kind_of(outside, change):
                names[kind].append(outside.name or f"one of shape {list(outside.shape)}")
        for kind, kind_names in names.items():
            names_by_kind[kind].append((look, kind_names))
    if not names_by_kind:
        ask_for_whole_graphs(run)
    return [_finding(run, kind, names_by_kind[kind]) for kind in _KINDS if kind in names_by_kind]


def _kind_of(outside: OutsideLeaf, change: int) -> Kind | None:
    if outside.optimizer:
        return None
    if outside.again is False:
        return "new" if outside.is_parameter and outside.holder != "module" else None
    if change != 0:  # something trains it, or its values cannot be read
        return None
    if outside.holder == "attribute" and not outside.is_parameter:
        return "attribute-tensor"
    if outside.holder == "attribute":
        return "attribute" if outside.trains else "attribute-evaluates"
    if outside.holder == "module":
        # in evaluation mode it only measures, as the network of a perceptual loss does
        return "module" if outside.trains else None
    return "nobody"


def _by_number(name: str) -> list[tuple[int, str]]:
    """``layers.2`` comes before ``layers.10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _finding(run: Run, kind: Kind, outside: Sequence[tuple[Look, Sequence[str]]]) -> Finding:
    severity, state, advice = _KINDS[kind]
    ranks = tuple(sorted(look.rank for look, _ in outside))
    look = outside[0][0]
    # Between two looks only, so that a schedule that begins to train it later is not accused of the time before.
    first, last = look.leaves.last_step or 0, look.step
    names = sorted(dict.fromkeys(name for _, names in outside for name in names), key=_by_number)
    num = max(len(names) for _, names in outside)
    is_are = "is another" if num == 1 else "are others"
    were = f"{'was' if num == 1 else 'were'} the same at steps {first} and {last}"
    alike = f"{is_are} at step {last} than at step {first}" if kind == "new" else were
    needs, takes = ("needs", "takes") if num == 1 else ("need", "take")
    subject = f"{counted(num, 'tensor')} that {needs} a gradient {takes} part"
    return Finding(
        code=CODE,
        severity=severity,
        claim=f"{capitalized(subject)} in the loss and {alike}: {named_some(names)}. {state} "
        f"({ranks_text(ranks, all_ranks=run.ranks)}).",
        ranks=ranks,
        step_first=first,
        step_last=last,
        sites=sites_of(first, ranks[:2], phase="grad", names=names[: MAX_SITES // 2]),
        measured=float(num),
        expected=0.0,
        unit="tensors with a gradient that nothing trains",
        false_alarm_rate=0.0,
        evidence={"kind": kind, "names": names[:100]},
        next=advice,
    )
