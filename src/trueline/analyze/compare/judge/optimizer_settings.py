"""How the optimizers of two Runs are set differently."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from trueline.schema.finding import Finding
from trueline.store.reader import Run

WAYS = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings that choose the kernels of an update and not what it is."""


def settings_differ(mine: Run, theirs: Run) -> Iterable[Finding]:
    """The finding where settings of the optimizers of the lowest ranks differ that both have."""
    settings = _differing(mine, theirs)
    if not settings:
        return
    told = "; ".join(f"{name} is {one} and not {other}" for name, (one, other) in list(settings.items())[:4])
    yield Finding(
        code="optimizer-differs",
        severity="error",
        claim=f"The optimizers are set differently: {told}.",
        evidence={"settings": {name: list(pair) for name, pair in settings.items()}},
        next=("Build both optimizers from one configuration.",),
    )


def _differing(mine: Run, theirs: Run) -> Mapping[str, tuple[str, str]]:
    if not mine.env or not theirs.env:
        return {}
    one, other = (_flat(run.env[min(run.env)].optimizer) for run in (mine, theirs))
    left_out = WAYS | {_COUNT} if all(map(_has_all_parameters, (mine, theirs))) else WAYS
    return {
        name: (one[name], other[name])
        for name in one
        if name in other and one[name] != other[name] and name.rpartition(".")[2] not in left_out
    }


_COUNT = "num_params"


def _has_all_parameters(run: Run) -> bool:
    """Whether an optimizer works on as many parameters as were recorded: how many the model has is not its setting."""
    groups = run.env[min(run.env)].optimizer.get("groups", [])
    if not run.has_records or not groups:
        return False
    first = [int(run.record_steps[0])]
    table = cast(Any, run).records(steps=first, ranks=[run.record_ranks[0]], columns=["phase", "name"], resolve=False)
    rows = zip(table["phase"].to_pylist(), table["name"].to_pylist(), strict=True)
    return len({name for phase, name in rows if phase == "param"}) == sum(each.get(_COUNT, 0) for each in groups)


def _flat(document: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(document, dict):
        items = list(cast(dict[str, Any], document).items())
    elif isinstance(document, list):
        items = list(enumerate(cast(list[Any], document)))
    else:
        return {prefix: json.dumps(document)}
    flat: dict[str, str] = {}
    for name, value in items:
        flat |= _flat(value, f"{prefix}.{name}" if prefix else str(name))
    return flat
