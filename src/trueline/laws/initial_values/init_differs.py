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
    InitialParams,
    OddMatrix,
    initial_params,
    is_garbage,
    look_fresh,
    matrices_by_role,
    odd_matrices,
    torch_defaults,
)
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import counted, named_some, ranks_text
from trueline.store.reader import Run

CODE = "init-differs"
QUESTION = "start"
NEEDS: tuple[str, ...] = ("initial_values",)
ACROSS_RANKS = False

InitFault = Literal["nonfinite", "garbage", "peers", "left", "one-module"]

_ADVICE: Mapping[InitFault, str] = {
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
    shared = _shared_module_findings(run)
    try:
        return [*shared, *judge(initial_params(run))]
    except CannotTell:
        if shared:
            return shared
        raise


def judge(starts: Sequence[InitialParams]) -> list[Finding]:
    """The Findings on what ranks began with; raises ``CannotTell`` where there are none and layers were not compared:
    weights look trained, or no layer is repeated.
    """
    fresh = [params for params in starts if look_fresh(params)]
    findings = [
        *_unfilled_findings("nonfinite", starts),
        *_unfilled_findings("garbage", starts),
        *_peer_findings(fresh),
        *_default_findings(fresh),
    ]
    if not findings and not fresh:
        raise CannotTell(
            "weights do not look drawn just now, or there are too few of them: those that were trained before may "
            "differ from layer to layer",
            reason="by-design",
        )
    if not findings and not any(matrices_by_role(params) for params in fresh):
        raise CannotTell("no weight matrix is repeated in four layers or more", reason="by-design")
    return findings


def _shared_module_findings(run: Run) -> list[Finding]:
    """Layers that are one module."""
    names_by_rank = {rank: layers for rank, env in run.env.items() for layers in env.repeated[:1]}
    if not names_by_rank:
        return []
    names, ranks = _all_names(names_by_rank), tuple(names_by_rank)
    layers = counted(len(names), "layer")
    claim = f"{named_some(names)} are one and the same module: these {layers} share one set of weights."
    unit = "modules in these places"
    return [_finding("one-module", "warning", claim, names, ranks, measured=1.0, expected=len(names), unit=unit)]


def _unfilled_findings(fault: Literal["nonfinite", "garbage"], starts: Sequence[InitialParams]) -> list[Finding]:
    """Weights that no rule of initialisation has filled."""
    names_by_rank = {params.rank: names for params in starts if (names := _unfilled(fault, params))}
    if not names_by_rank:
        return []
    names, ranks = _all_names(names_by_rank), tuple(names_by_rank)
    values = [value for params in starts for name, value in params.items() if name in names]
    if fault == "nonfinite":
        worst = max(value.nonfinite / value.looked for value in values)
        content = f"NaN or infinity before the first update: up to {worst:.1%} of what was looked at"
    else:
        largest = max(value.largest for value in values)
        share = max(value.subnormal / value.looked for value in values)
        content = "numbers like those of memory that nothing has filled: " + (
            f"up to {largest:.2g}" if largest > 1 else f"up to {share:.1%} of them below 1e-38 and not zero"
        )
    claim = f"{named_some(names)} {_verb(names, 'hold')} {content} ({ranks_text(ranks)})."
    return [_finding(fault, "error" if fault == "nonfinite" else "warning", claim, names, ranks)]


def _unfilled(fault: Literal["nonfinite", "garbage"], params: InitialParams) -> list[str]:
    if fault == "nonfinite":
        return [name for name, value in params.items() if value.nonfinite]
    return [name for name, value in params.items() if not value.nonfinite and is_garbage(value, params)]


def _peer_findings(fresh: Sequence[InitialParams]) -> list[Finding]:
    """Weights unlike those of the other layers, what can hardly be meant first."""
    odd_by_rank = {params.rank: odd_matrices(params) for params in fresh}
    # The share of a normal distribution beyond the threshold, for every parameter.
    false_alarms = sum(len(params.names) for params in fresh) * math.erfc(ODD_ERRORS / math.sqrt(2))
    findings: list[Finding] = []
    severities: tuple[Severity, ...] = ("warning", "info")
    for severity in severities:
        alike = {
            rank: [odd for odd in matrices if _severity(odd, matrices) == severity]
            for rank, matrices in odd_by_rank.items()
        }
        alike = {rank: matrices for rank, matrices in alike.items() if matrices}
        if not alike:
            continue
        names = _all_names({rank: [odd.name for odd in matrices] for rank, matrices in alike.items()})
        first = next(iter(alike.values()))[0]
        more = f" ({len(names) - 1} more: {named_some(names[1:])})" if len(names) > 1 else ""
        claim = (
            f"{first.name} does not begin like the same weight of the {first.num_peers} other layers: "
            f"{_how(first)}{more}."
        )
        findings.append(
            _finding(
                "peers",
                severity,
                claim,
                names,
                tuple(alike),
                measured=first.value.spread if first.kind != "law" else first.value.kurtosis,
                expected=first.spread if first.kind != "law" else first.kurtosis,
                unit="standard deviation of initial values" if first.kind != "law" else "kurtosis of initial values",
                false_alarm_rate=false_alarms,
            )
        )
    return findings


def _severity(odd: OddMatrix, matrices: Sequence[OddMatrix]) -> Severity:
    """``warning`` where it can hardly be meant: in the middle of the model, or not alone in its layer."""
    in_layer = Counter(matrix.layer for matrix in matrices)
    return "info" if odd.spaced or (odd.at_end and in_layer[odd.layer] < 2) else "warning"


def _how(odd: OddMatrix) -> str:
    if odd.kind == "constant":
        return f"its elements are all {odd.value.mean:.3g}, and the others are drawn at random"
    if odd.kind == "spread":
        return f"its standard deviation is {odd.value.spread:.3g}, that of the others {odd.spread:.3g}"
    return (
        f"its kurtosis is {odd.value.kurtosis:.2f}, that of the others {odd.kurtosis:.2f} (3 of a normal distribution, "
        "1.8 of a uniform one)"
    )


def _default_findings(fresh: Sequence[InitialParams]) -> list[Finding]:
    """Weights that the initialisation may have left out, beside those unlike their peers."""
    odd_names = {odd.name for params in fresh for odd in odd_matrices(params)}
    names_by_rank = {
        params.rank: [name for name in torch_defaults(params) if name not in odd_names] for params in fresh
    }
    names_by_rank = {rank: names for rank, names in names_by_rank.items() if names}
    if not names_by_rank:
        return []
    names = _all_names(names_by_rank)
    claim = (
        f"{named_some(names)} {_verb(names, 'begin')} with the values that torch's own layers draw when they are made, "
        "while most weights of this model do not."
    )
    return [_finding("left", "info", claim, names, tuple(names_by_rank))]


def _all_names(names_by_rank: Mapping[int, Sequence[str]]) -> list[str]:
    """Names of all ranks, once each."""
    return list(dict.fromkeys(name for names in names_by_rank.values() for name in names))


def _verb(names: Sequence[str], verb: str) -> str:
    return verb if len(names) > 1 else f"{verb}s"


def _finding(
    fault: InitFault,
    severity: Severity,
    claim: str,
    names: Sequence[str],
    ranks: tuple[int, ...],
    *,
    measured: float | None = None,
    expected: float | None = None,
    unit: str = "",
    false_alarm_rate: float = 0.0,
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
        false_alarm_rate=false_alarm_rate,
        evidence={"kind": fault, "names": list(names[:100])},
        next=(_ADVICE[fault],),
    )
