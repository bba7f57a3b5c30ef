"""Ranks train under different settings.

What it finds
-------------
Optimizer hyper-parameters (also where they begin to differ later, as with a scheduler that steps once more on one
rank), dtypes, autocast; evaluation mode of a model on some ranks only; which parameters a rank holds and trains,
from the start or from the step on at which it freezes, drops, adds, replaces or casts one; versions of packages,
switches of torch, and environment variables that change numbers.

Why it matters
--------------
Replicas that apply different updates to the same gradient drift apart. Different versions or switches make ranks
differ in rounding, in algorithms, or in speed.

How it decides
--------------
By equality of what each rank recorded about itself, and of the learning rates and the digest of all optimizer
hyper-parameters at each step. Optimizer, dtypes and autocast are errors; versions, switches and variables are warnings.
What differs between ranks by nature is left out: host, process, device index, and variables that hold a rank, a local
rank or a device list. Settings are compared between all workers; optimizers and dtypes between those with equal
parameters only. The state of each parameter is read before every update, and compared between workers that finished
that step. Ranks that share less than half of their parameters hold stages of a pipeline and are not compared. Where
most ranks agree the others are named, else all. Equality needs no tolerance: there are no false alarms.

What it may miss
----------------
Settings that are not recorded: a model's own attributes, loss weights, data augmentation. Learning rates held in
tensors on a device (reading them would synchronise). A parameter that is frozen and trained again between two updates.

Example
-------
The optimizer settings of rank 3 are not those of the other ranks since step 0: lr is 0.002, elsewhere 0.001.

Wrong and right
---------------
Wrong:

```python
steps = len(loader) * epochs  # loaders are not equally long, so the schedules are not either
scheduler = OneCycleLR(optimizer, max_lr=3e-4, total_steps=steps)
```

Right:

```python
scheduler = OneCycleLR(optimizer, max_lr=3e-4, total_steps=config.total_steps)
```
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from trueline.judge.compared_ranks import (
    columns_of,
    data_parallel_ranks,
    differs,
    numbers,
    odd_ranks,
    several_workers,
)
from trueline.judge.follows import ByStep
from trueline.judge.series.learning_rates import unequal_rates
from trueline.laws.replicas.held_parameters import ABSENT, FROZEN, TRAINS, Parting, find_partings
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.finding import Finding, Severity
from trueline.schema.site import Site
from trueline.schema.text.words import capitalized, listed, named_some, ranks_text
from trueline.store.reader import Run

CODE = "rank-config-differs"
MOVED = ("momentum", "betas")
"""Hyper-parameters that schedulers of torch move, beside the rate (CyclicLR, OneCycleLR)."""
CALLS = {"mode": ("eval",), "optimizer": ("optimizer",)}
QUESTION = "configuration"
NEEDS: tuple[str, ...] = ("lr", "optimizer_digest")

_OF_ONE_RANK = re.compile(
    r"RANK|PROCID|LOCALID|NODEID|TASK_PID|HOST|NODENAME|VISIBLE_DEVICES|TMPDIR|^PWD$|GPU_?ID|DEVICE_?ID|SOCKET_IFNAME|IB_HCA"
)
"""Variables that hold a rank, a host, a device or its network port, and so differ by nature."""


@dataclass(frozen=True)
class _Difference:
    """One setting that ranks do not agree on: its value by rank, as text."""

    name: str
    values: dict[int, str]


def _never_changes(run: Run) -> bool:
    """True where no rank changed how it holds its parameters: a change is reported of the whole Run."""
    return not any(env.changes or env.apart for env in run.env.values())


FOLLOWS = ByStep(alone=_never_changes)


def check(run: Run) -> list[Finding]:
    """Findings on optimizer, precision and environment, where they differ; raises ``CannotTell`` for one worker."""
    ranks = several_workers(run)
    env = {rank: run.env[rank] for rank in ranks if rank in run.env}
    replicas = _largest_replica_set(env)
    findings = [
        _optimizer_finding(run, ranks, {rank: env[rank] for rank in replicas}),
        _static_finding("error", "precision", _precision_differences(env, replicas), run),
        _static_finding("warning", "environment", _environment_differences(env), run),
        _mode_finding(run),
    ]
    return [*map(_parting_finding, find_partings(run)), *(finding for finding in findings if finding is not None)]


def _largest_replica_set(env: Mapping[int, RankEnv]) -> list[int]:
    """Ranks with equal lists of parameters: those whose optimizers and dtypes can be compared."""
    by_params: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, facts in env.items():
        by_params[tuple(facts.params)].append(rank)
    return max(by_params.values(), key=len, default=list[int]())


def _precision_differences(env: Mapping[int, RankEnv], replicas: Sequence[int]) -> list[_Difference]:
    settings: dict[int, dict[str, Any]] = {}
    for rank in replicas:
        facts = env[rank]
        dtypes = dict(zip(facts.params, facts.param_dtypes, strict=False))
        trains = dict(zip(facts.params, facts.requires_grad, strict=False))
        settings[rank] = {
            **{f"dtype of {name}": dtype for name, dtype in dtypes.items()},
            **{f"requires_grad of {name}": flag for name, flag in trains.items()},
            "grad_dtype": facts.grad_dtype,
            "autocast": facts.autocast,
            "reduce_hook": facts.reduce_hook,
        }
    return _differences(settings)


def _environment_differences(env: Mapping[int, RankEnv]) -> list[_Difference]:
    settings: dict[int, dict[str, Any]] = {}
    for rank, facts in env.items():
        settings[rank] = {
            **{f"version of {name}": version for name, version in facts.versions.items()},
            **{f"flag {name}": value for name, value in facts.flags.items()},
            **{f"${name}": value for name, value in facts.environ.items() if not _OF_ONE_RANK.search(name)},
        }
    return [entry for entry in _differences(settings) if not _holds_rank(entry)]


def _holds_rank(entry: _Difference) -> bool:
    """True for a variable that holds each rank's own number, whatever its name."""
    return entry.name.startswith("$") and all(json.loads(value) == str(rank) for rank, value in entry.values.items())


def _differences(settings: Mapping[int, Mapping[str, Any]]) -> list[_Difference]:
    names = dict.fromkeys(name for facts in settings.values() for name in facts)
    entries = [_Difference(name, {rank: _text(facts.get(name)) for rank, facts in settings.items()}) for name in names]
    return [entry for entry in entries if len(set(entry.values.values())) > 1]


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _static_finding(severity: Severity, topic: str, entries: list[_Difference], run: Run) -> Finding | None:
    """Finding on settings that hold for the whole Run."""
    if not entries or not len(run.steps):
        return None
    ranks = tuple(sorted({rank for entry in entries for rank in odd_ranks(entry.values)}))
    first, last = int(run.steps[0]), int(run.steps[-1])
    return _finding(severity, topic, entries, ranks, among=[*entries[0].values], step_first=first, step_last=last)


def _optimizer_finding(run: Run, ranks: Sequence[int], env: Mapping[int, RankEnv]) -> Finding | None:
    """Finding on hyper-parameters, from the first step at which they differ."""
    replicas = [rank for rank in ranks if rank in env]
    if len(replicas) < 2:
        return None
    rates = {
        step: {rank: _text(values.tolist()) for rank, values in rates_of.items()}
        for step, rates_of in unequal_rates(run, replicas).items()
    }
    digests, measured = run.digests("optimizer_digest")
    columns = columns_of(run, replicas)
    differ_T = differs(digests[:, columns], measured[:, columns])
    steps = sorted({int(step) for step in run.steps[differ_T]} | set(rates))
    if not steps:
        return None
    first = steps[0]
    row = int(np.searchsorted(run.steps, first))
    digest_of = {rank: int(digests[row, column]) for rank, column in zip(replicas, columns.tolist(), strict=True)}
    entries = [_Difference("lr", rates[first])] if first in rates else []
    static = _differences({rank: _flat(env[rank].optimizer) for rank in replicas})
    # each rank wrote those at a moment of its own: they count where nothing else says what differs at one step
    lasting = [entry for entry in static if entry.name.rpartition(".")[2] not in MOVED]
    entries += lasting if entries or lasting else static
    # of two entries with one name the first counts: learning rates of the step
    entries = list({entry.name: entry for entry in reversed(entries)}.values())[::-1]
    odd = odd_ranks(rates[first]) if first in rates else odd_ranks(digest_of)
    return _finding("error", "optimizer", entries, odd, among=replicas, step_first=first, step_last=steps[-1])


def _mode_finding(run: Run) -> Finding | None:
    """Finding on modules that are in evaluation mode on some replicas only."""
    ranks = data_parallel_ranks(run)
    modules_TN, measured_TN = numbers(run, "eval_modules", ranks)
    rows: list[int] = np.flatnonzero(differs(modules_TN, measured_TN)).tolist() if modules_TN.size else []
    if not rows:
        return None
    first, workers = rows[0], np.flatnonzero(measured_TN[rows[0]]).tolist()
    entry = _Difference(
        "the number of modules in evaluation mode", {ranks[n]: f"{modules_TN[first, n]:.0f}" for n in workers}
    )
    step_first, step_last = (int(run.steps[t]) for t in (first, rows[-1]))
    odd = odd_ranks(entry.values)
    finding = _finding("error", "mode", [entry], odd, among=[*entry.values], step_first=step_first, step_last=step_last)
    advice = (
        "Call model.train() on every rank before training goes on after an evaluation, also where only one rank "
        "evaluates: dropout and normalisation work otherwise in evaluation mode."
    )
    return replace(finding, claim=f"{capitalized(_values_text(entry))} at step {step_first}.", next=(advice,))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level, ``groups[0].weight_decay``, without learning rates, which come from the rows."""
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return {
            name: leaf for key, entry in items if key != "lr" for name, leaf in _flat(entry, f"{prefix}.{key}").items()
        }
    if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in cast(list[Any], value)):
        entries = enumerate(cast(list[Any], value))
        return {name: leaf for index, entry in entries for name, leaf in _flat(entry, f"{prefix}[{index}]").items()}
    return {prefix.lstrip("."): value}


def _subject(topic: str, ranks: Sequence[int], among: Sequence[int]) -> str:
    if set(ranks) == set(among):
        return f"{capitalized(topic)} settings differ between {ranks_text(ranks)}"
    return f"{capitalized(topic)} settings of {ranks_text(ranks)} differ from those of other ranks"


def _finding(
    severity: Severity,
    topic: str,
    entries: list[_Difference],
    ranks: tuple[int, ...],
    *,
    among: Sequence[int],
    step_first: int,
    step_last: int,
) -> Finding:
    phase = {"optimizer": "opt", "precision": "param"}.get(topic, "env")
    names = [entry.name for entry in entries] or ["hyper-parameters"]
    values = "; ".join(map(_values_text, entries[:3]))
    values = values or "in what an optimizer updates, or in settings without a name"
    more = f"; and {len(entries) - 3} more" if len(entries) > 3 else ""
    return Finding(
        code=CODE,
        severity=severity,
        claim=f"{_subject(topic, ranks, among)} at step {step_first}: {values}{more}.",
        ranks=ranks,
        step_first=step_first,
        step_last=step_last,
        sites=tuple(
            str(Site(step_first, 0, rank, phase, name.replace("#", ""))) for rank in ranks[:2] for name in names[:2]
        ),
        measured=float(max(len(entries), 1)),
        expected=0.0,
        unit="settings that differ between ranks",
        false_alarm_rate=0.0,
        evidence={"kind": topic}
        | {entry.name: {str(rank): value for rank, value in entry.values.items()} for entry in entries[:50]},
        next=(
            f"Make {named_some(names)} equal on all ranks, or build the optimizer and the configuration from one file "
            "that every rank reads.",
        ),
    )


def _values_text(entry: _Difference) -> str:
    by_value: defaultdict[str, list[int]] = defaultdict(list)
    for rank, value in entry.values.items():
        by_value[value].append(rank)
    parts = [
        f"{value} on {ranks_text(ranks)}" for value, ranks in sorted(by_value.items(), key=lambda item: len(item[1]))
    ]
    return f"{entry.name} is {listed(parts[:3])}"


# -- parameters --------------------------------------------------------------------------------------------------------

_VERBS = {
    TRAINS: ("train {}", "trains {}"),
    FROZEN: ("hold {} frozen", "holds {} frozen"),
    ABSENT: ("do not hold {}", "does not hold {}"),
}
"""Verb for several ranks, and for one, that hold parameters in a state."""
_VERBS_OF_CHANGE = {TRAINS: "began to train {}", FROZEN: "froze {}", ABSENT: "dropped {}"}


def _parting_finding(parting: Parting) -> Finding:
    """Finding on parameters that ranks hold differently."""
    ranks = parting.odd or tuple(sorted(parting.values))
    names, phase = parting.names, "param"
    return Finding(
        code=CODE,
        severity="error",
        claim=_claim(parting),
        ranks=ranks,
        step_first=parting.step,
        step_last=parting.step_last,
        sites=tuple(str(Site(parting.step, 0, rank, phase, name)) for rank in ranks[:2] for name in names[:2]),
        measured=float(len(names)),
        expected=0.0,
        unit="parameters that ranks hold differently",
        false_alarm_rate=0.0,
        evidence={
            "kind": "parameters",
            "parameters": list(names[:100]),
            parting.aspect: {str(r): v for r, v in parting.values.items()},
        },
        next=(
            "Freeze, add, drop, replace and cast parameters on all ranks at the same step, before the model is wrapped "
            "and the optimizer made; load the same configuration and checkpoint everywhere.",
        ),
    )


def _claim(parting: Parting) -> str:
    """``Rank 1 froze layers.3.weight from step 12 on, while ranks 0 and 2 train it.``"""
    ranks_of: defaultdict[str, list[int]] = defaultdict(list)
    for rank, value in sorted(parting.values.items()):
        ranks_of[value].append(rank)
    odd_values = (value for value, ranks in ranks_of.items() if set(ranks) <= set(parting.odd))
    odd_value = next(odd_values, next(iter(ranks_of)))
    odd_clause = _clause(parting, odd_value, ranks_of.pop(odd_value), named_some(parting.names))
    pronoun = "it" if len(parting.names) == 1 else "them"
    clauses = listed([_clause(parting, value, ranks, pronoun) for value, ranks in ranks_of.items()])
    return f"{capitalized(odd_clause)} from step {parting.step} on, while {clauses}."


def _clause(parting: Parting, value: str, ranks: Sequence[int], params: str) -> str:
    """``rank 1 froze layers.3.weight``, of ``ranks`` with the state, dtype or shape ``value`` of ``params``."""
    is_single = len(ranks) == 1
    if parting.aspect == "replaced":
        verb = "replaced {} by another of the same name" if set(ranks) & parting.changed else "kept {}"
    elif parting.aspect != "state":
        verb = f"{'holds' if is_single else 'hold'} {{}} {'in' if parting.aspect == 'dtype' else 'with shape'} {value}"
    else:
        verb = _VERBS_OF_CHANGE[value] if set(ranks) <= parting.changed else _VERBS[value][is_single]
    return f"{ranks_text(ranks)} {verb.format(params)}"
