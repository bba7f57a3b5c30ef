"""What the ranks of the Runs were: what all share once, and what differs with who has which value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.text.words import clipped, counted, ranks_text

_MAX_VALUE = 300
"""Characters of a value that are shown."""
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "CUDA_VISIBLE_DEVICES")
_OWN_BY_NATURE = frozenset(
    ["pid", "hostname", "device", "data.sampler_rank", "run.command", *(f"environ.{name}" for name in _RANK_VARIABLES)]
)
"""Facts that ranks or Runs are expected to differ in; listed last."""

Who = tuple[int, int]
"""Index of a Run, and a rank in it."""


@dataclass(frozen=True, slots=True)
class Differing:
    """One fact that is not the same everywhere: (who, value) in the order of the Runs and ranks."""

    key: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Environment:
    """``common`` by section; what differs ``within`` a Run, only ``between`` Runs, or ``by_nature``."""

    common: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    within: tuple[Differing, ...]
    between: tuple[Differing, ...]
    by_nature: tuple[Differing, ...]
    missing: tuple[str, ...]


def environment(
    names: Sequence[str], manifests: Sequence[Manifest], envs: Sequence[Mapping[int, RankEnv]]
) -> Environment:
    """The facts of all ranks of all Runs, sorted into what is common and what is not."""
    facts: dict[str, dict[Who, str]] = {}
    for index, (manifest, by_rank) in enumerate(zip(manifests, envs, strict=True)):
        shared = _flat({"run": _run_facts(manifest)})
        for rank in sorted(by_rank):
            for key, value in {**shared, **_rank_facts(by_rank[rank])}.items():
                facts.setdefault(key, {})[index, rank] = value
    everyone = [(index, rank) for index, by_rank in enumerate(envs) for rank in sorted(by_rank)]
    common: dict[str, list[tuple[str, str]]] = {}
    within: list[Differing] = []
    between: list[Differing] = []
    by_nature: list[Differing] = []
    for key, values in facts.items():
        complete = {who: values.get(who, "(absent)") for who in everyone}
        if len(set(complete.values())) == 1:
            section, _, name = key.partition(".") if "." in key else ("rank", "", key)
            common.setdefault(section, []).append((name, next(iter(complete.values()))))
            continue
        uniform = all(len({complete[who] for who in everyone if who[0] == index}) <= 1 for index in range(len(names)))
        kind = by_nature if key in _OWN_BY_NATURE else between if uniform else within
        kind.append(Differing(key, _holders(complete, names)))
    missing = tuple(name for name, by_rank in zip(names, envs, strict=True) if not by_rank)
    sections = tuple((section, tuple(pairs)) for section, pairs in common.items())
    return Environment(sections, tuple(within), tuple(between), tuple(by_nature), missing)


def _run_facts(manifest: Manifest) -> dict[str, Any]:
    return {
        "trueline": manifest.trueline_version,
        "adapter": manifest.adapter,
        "world_size": manifest.world_size,
        "data_parallel_ranks": manifest.data_parallel_ranks,
        "command": " ".join(manifest.command),
        "plan": manifest.plan,
    }


def _rank_facts(env: RankEnv) -> dict[str, str]:
    numel = sum(env.param_sizes.values())
    facts: dict[str, Any] = {
        "hostname": env.hostname,
        "pid": env.pid,
        "device": env.device,
        "model": {
            "parameters": f"{counted(len(env.params), 'tensor')}, {counted(numel, 'value')}",
            "trainable": counted(sum(env.requires_grad), "tensor"),
            "parameter_dtypes": ", ".join(sorted(set(env.param_dtypes))),
            "buffers": f"{len(env.buffers):,}",
            "watched_groups": ", ".join(group.name for group in env.groups),
            "replica_key": env.replica_key,
        },
        "signals": {
            "grad_dtype": env.grad_dtype,
            "comm_hook": env.reduce_hook or "(the framework's own reduction)",
            "comm_hook_lossy": env.reduce_lossy,
            "sketch_length": env.sketch_length,
            "loss_source": env.loss_source,
            "token_source": env.token_source,
        },
        "optimizer": env.optimizer,
        "autocast": env.autocast,
        "data": env.data,
        "versions": env.versions,
        "flags": env.flags,
        "environ": env.environ,
        "environ_left_out": _left_out(env),
    }
    return _flat(facts)


def _left_out(env: RankEnv) -> dict[str, str]:
    """Which variables of the environment the Run does not have."""
    secret = f"{len(env.environ_secret)}: {', '.join(env.environ_secret)}" if env.environ_secret else ""
    return {"look_secret": secret, "no_say_in_numbers": str(env.environ_others) if env.environ_others else ""}


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested facts as ``a.b`` → text; empty ones are left out."""
    flat: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None and value != "" and value != []:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            flat[f"{prefix}{key}"] = clipped(text, _MAX_VALUE)
    return flat


def _holders(values: Mapping[Who, str], names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """(who, value) for each distinct value of each Run; Runs that agree with each other in everything share a line."""
    patterns: dict[tuple[tuple[int, str], ...], list[str]] = {}
    for index, name in enumerate(names):
        pattern = tuple((rank, value) for (run, rank), value in values.items() if run == index)
        if pattern:
            patterns.setdefault(pattern, []).append(name)
    lines: list[tuple[str, str]] = []
    for pattern, holders in patterns.items():
        by_value: dict[str, list[int]] = {}
        for rank, value in pattern:
            by_value.setdefault(value, []).append(rank)
        run = ", ".join(holders) if len(names) > 1 else ""
        for value, ranks in by_value.items():
            who = "" if len(by_value) == 1 else ranks_text(ranks, dash="–")
            lines.append((", ".join(part for part in (run, who) if part), value))
    return tuple(lines)
