"""Weights do not begin as they were meant to: a layer was left out, initialised twice, or never filled.

What it finds
-------------
Before the first update, a weight matrix whose values are spread otherwise than those of the same matrix in the other
layers, are drawn from another distribution, or are all the same. Weights that hold NaN or infinity, or that have the
numbers of memory that nothing has filled: beyond 1e10, or below what float32 holds with all of its digits. Layers that
are one and the same module. As information: a few matrices that have the initial values of torch's own layers, in a
model whose others have not.

Why it matters
--------------
All ranks begin so, so that no comparison of ranks shows it. The model trains, but slower or to a worse loss, or it
diverges after a while; with garbage in a weight at once.

How it decides
--------------
By the model itself, and not by its configuration: of nine fresh models of a library, four had weights unlike their
configuration's `initializer_range`, and were right. At the first step, before the update, mean, spread, kurtosis and
largest magnitude of up to 16,384 elements of each parameter are measured. Compared are matrices with the same name but
for one number in it, and the same shape, in four layers or more. The spread of all is the same, or a power of the
number of the layer (as where initial values are scaled by depth), within four standard errors of sampling or 2 %. Then
at most a quarter of them are odd: those whose spread is off by a quarter and by eight standard errors, or whose
kurtosis is off by 0.5 and by eight (a uniform distribution is 1.2 below a normal one). Nothing is compared unless nine
tenths of the model's matrices look drawn just now: a mean of zero, and tails no longer than a normal distribution's.
So weights that were trained before are left alone.

That places of a `Sequential` or `ModuleList` hold one module, with two weight matrices or more and as many features out
as in, is seen exactly, and a warning: who shares layers on purpose calls one several times, and has no list of it. Of
the 553 models of transformers 5.23 that can be built from their own configuration, none has such a list.

It is a warning where it can hardly be meant: a layer between others, or two matrices and more of the first or last
layer. One matrix of the first or last layer, and layers that are odd at equal distances, are an information: heads and
first layers may have initial values of their own.

What it may miss
----------------
What is wrong in all layers alike, with values that are finite: a class of layers that the initialisation leaves out
everywhere, a spread that is wrong in the whole model. What no three other layers have, such as embeddings and heads.
Biases and weights of norms. Memory that happens to hold zeros or plausible numbers; elements that were not looked at.
Weights that are loaded, and a layer that was lost among them. A spread that is off by less than a quarter.

Example
-------
blocks.5.mlp.0.weight does not begin like the same weight of the 7 other layers: its standard deviation is 0.102,
that of the others 0.02.

Wrong and right
---------------
Wrong:

```python
for name, weight in model.named_parameters():
    for number in range(num_layers):
        if f"layers.{number}" in name:  # layers.1 is in layers.10 too, which is scaled twice
            weight.data.mul_(scale)
```

Right:

```python
for number, layer in enumerate(model.layers):
    for weight in layer.parameters():
        weight.data.mul_(scale)
```
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.initial_values.initial_values import (
    ODD_ERRORS,
    Begun,
    Odd,
    are_drawn_anew,
    begun,
    by_role,
    is_garbage,
    left_as_made,
    odd_ones,
)
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "init-differs"
QUESTION = "start"
NEEDS: tuple[str, ...] = ("initial_values",)
ACROSS_RANKS = False

Kind = Literal["nonfinite", "garbage", "peers", "left", "one-module"]

_ADVICE: Mapping[Kind, str] = {
    "nonfinite": "Look for what fills it: torch.empty and to_empty leave what memory held; torch.nn.init fills it.",
    "garbage": "Look for what fills it: torch.empty and to_empty leave what memory held; torch.nn.init fills it.",
    "peers": "Print the standard deviation of this weight in each layer right after initialisation, and look for what "
    "leaves the layer out or reaches it twice.",
    "one-module": "Make a module for each place: nn.ModuleList([Block() for _ in range(n)]), and not [Block()] * n, "
    "which repeats one. If the layers are to share their weights, call one module several times.",
    "left": "If all weights are to be initialised by the model's own rule, look for classes of layers that it does not "
    "know. If that is meant, nothing needs to be done.",
}


def check(run: Run) -> list[Finding]:
    """A Finding for each way in which weights begin wrongly; raises ``CannotTell`` as ``judge``, and where nothing was
    seen of them or training had begun before.
    """
    shared = _one_module(run)
    try:
        return [*shared, *judge(begun(run))]
    except CannotTell:
        if shared:
            return shared
        raise


def judge(each: Sequence[Begun]) -> list[Finding]:
    """The Findings on what ranks began with; raises ``CannotTell`` where there are none and layers were not compared:
    weights look trained, or no layer is repeated.
    """
    fresh = [one for one in each if are_drawn_anew(one)]
    found = [*_filled("nonfinite", each), *_filled("garbage", each), *_peers(fresh), *_left(fresh)]
    if not found and not fresh:
        raise CannotTell(
            "weights do not look drawn just now, or there are too few of them: those that were trained before may "
            "differ from layer to layer",
            reason="by-design",
        )
    if not found and not any(by_role(one) for one in fresh):
        raise CannotTell("no weight matrix is repeated in four layers or more", reason="by-design")
    return found


def _one_module(run: Run) -> list[Finding]:
    """Layers that are one module."""
    of_rank = {rank: places for rank, env in run.env.items() for places in env.repeated[:1]}
    if not of_rank:
        return []
    names = _names(of_rank)
    layers = counted(len(names), "layer")
    claim = f"{named_some(names)} are one and the same module: these {layers} share one set of weights."
    unit = "modules in these places"
    return [
        _finding("one-module", "warning", claim, names, tuple(of_rank), measured=1.0, expected=len(names), unit=unit)
    ]


def _filled(kind: Literal["nonfinite", "garbage"], each: Sequence[Begun]) -> list[Finding]:
    """Weights that no rule of initialisation has filled."""
    wrong = {one.rank: names for one in each if (names := _unfilled(kind, one))}
    if not wrong:
        return []
    names, ranks = _names(wrong), tuple(wrong)
    values = [value for one in each for name, value in one.named() if name in names]
    if kind == "nonfinite":
        worst = max(value.nonfinite / value.looked for value in values)
        what = f"NaN or infinity before the first update: up to {worst:.1%} of what was looked at"
    else:
        largest = max(value.largest for value in values)
        low = max(value.subnormal / value.looked for value in values)
        what = "numbers like those of memory that nothing has filled: " + (
            f"up to {largest:.2g}" if largest > 1 else f"up to {low:.1%} of them below 1e-38 and not zero"
        )
    claim = f"{named_some(names)} {_verb(names, 'hold')} {what} ({ranks_text(ranks)})."
    return [_finding(kind, "error" if kind == "nonfinite" else "warning", claim, names, ranks)]


def _unfilled(kind: Literal["nonfinite", "garbage"], one: Begun) -> list[str]:
    if kind == "nonfinite":
        return [name for name, value in one.named() if value.nonfinite]
    return [name for name, value in one.named() if not value.nonfinite and is_garbage(value, one)]


def _peers(fresh: Sequence[Begun]) -> list[Finding]:
    """Weights unlike those of the other layers, what can hardly be meant first."""
    of_rank = {one.rank: odd_ones(one) for one in fresh}
    found: list[Finding] = []
    severities: tuple[Severity, ...] = ("warning", "info")
    for severity in severities:
        some = {rank: [odd for odd in odds if _severity(odd, odds) == severity] for rank, odds in of_rank.items()}
        some = {rank: odds for rank, odds in some.items() if odds}
        if not some:
            continue
        names = _names({rank: [odd.name for odd in odds] for rank, odds in some.items()})
        first = next(iter(some.values()))[0]
        others = f" ({len(names) - 1} more: {named_some(names[1:])})" if len(names) > 1 else ""
        claim = (
            f"{first.name} does not begin like the same weight of the {first.peers} other layers: "
            f"{_how(first)}{others}."
        )
        chance = sum(len(one.names) for one in fresh) * math.erfc(ODD_ERRORS / math.sqrt(2))
        found.append(
            _finding(
                "peers",
                severity,
                claim,
                names,
                tuple(some),
                measured=first.value.spread if first.kind != "law" else first.value.kurtosis,
                expected=first.spread if first.kind != "law" else first.kurtosis,
                unit="standard deviation of initial values" if first.kind != "law" else "kurtosis of initial values",
                rate=chance,
            )
        )
    return found


def _severity(odd: Odd, among: Sequence[Odd]) -> Severity:
    """Whether it can hardly be meant."""
    in_layer = Counter(each.layer for each in among)
    return "info" if odd.spaced or (odd.at_end and in_layer[odd.layer] < 2) else "warning"


def _how(odd: Odd) -> str:
    if odd.kind == "constant":
        return f"its elements are all {odd.value.mean:.3g}, and the others are drawn at random"
    if odd.kind == "spread":
        return f"its standard deviation is {odd.value.spread:.3g}, that of the others {odd.spread:.3g}"
    return (
        f"its kurtosis is {odd.value.kurtosis:.2f}, that of the others {odd.kurtosis:.2f} (3 of a normal distribution, "
        "1.8 of a uniform one)"
    )


def _left(fresh: Sequence[Begun]) -> list[Finding]:
    """Weights that the initialisation may have left out, beside those unlike their peers."""
    of_rank = {one.rank: left_as_made(one) for one in fresh}
    odd = {each.name for one in fresh for each in odd_ones(one)}
    of_rank = {rank: left for rank, names in of_rank.items() if (left := [name for name in names if name not in odd])}
    if not of_rank:
        return []
    names = _names(of_rank)
    claim = (
        f"{named_some(names)} {_verb(names, 'begin')} with the values that torch's own layers draw when they are made, "
        "while most weights of this model do not."
    )
    return [_finding("left", "info", claim, names, tuple(of_rank))]


def _names(of_rank: Mapping[int, Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in of_rank.values() for name in names))


def _verb(names: Sequence[str], verb: str) -> str:
    return verb if len(names) > 1 else f"{verb}s"


def _finding(
    kind: Kind,
    severity: Severity,
    claim: str,
    names: Sequence[str],
    ranks: tuple[int, ...],
    *,
    measured: float | None = None,
    expected: float | None = None,
    unit: str = "",
    rate: float = 0.0,
) -> Finding:
    return Finding(
        code=CODE,
        severity=severity,
        claim=claim,
        ranks=ranks,
        step_first=0,
        step_last=0,
        sites=sites_of(0, ranks[:2], phase="param", names=names[: MAX_SITES // 2]),
        measured=measured,
        expected=expected,
        unit=unit,
        false_alarm_rate=rate,
        evidence={"kind": kind, "names": list(names[:100])},
        next=(_ADVICE[kind],),
    )
