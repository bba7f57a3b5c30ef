"""What the ranks of a Run were: what all share once, and what differs with who has which value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.text.words import clipped, counted, ranks_text

_MAX_VALUE = 300
"""Characters of a value that are shown."""
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "CUDA_VISIBLE_DEVICES")
MOVED = ("lr", "momentum", "betas")
"""Hyper-parameters that schedulers of torch move (CyclicLR, OneCycleLR). Ranks write what they are at moments of their
own."""
_OWN_BY_NATURE = frozenset(
    ["pid", "hostname", "device", "data.sampler_rank", "run.command", *(f"environ.{name}" for name in _RANK_VARIABLES)]
)
"""Facts that ranks are expected to differ in; listed last."""


@dataclass(frozen=True, slots=True)
class Differing:
    """One fact that is not the same everywhere: (ranks, value) in the order of the ranks."""

    key: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Environment:
    """``common`` by section; what differs ``within`` the Run though ranks should agree, or ``by_nature``. All are empty
    where no rank left a description.
    """

    common: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    within: tuple[Differing, ...]
    by_nature: tuple[Differing, ...]


def environment(manifest: Manifest, envs: Mapping[int, RankEnv], *, optimizer_alike: bool = False) -> Environment:
    """The facts of all ranks of a Run, sorted into what is common and what is not. Ranks wrote them at moments of their
    own, so that what changes in training is not said to differ: of an optimizer that is ``optimizer_alike`` at all
    steps no setting, else none that a scheduler moves.
    """
    facts: dict[str, dict[int, str]] = {}
    shared = _flat({"run": _run_facts(manifest)})
    for rank in sorted(envs):
        for key, value in {**shared, **_rank_facts(envs[rank])}.items():
            facts.setdefault(key, {})[rank] = value
    common: dict[str, list[tuple[str, str]]] = {}
    unlike: list[Differing] = []
    by_nature: list[Differing] = []
    for key, values in facts.items():
        complete = {rank: values.get(rank, "(absent)") for rank in sorted(envs)}
        moves = key.startswith("optimizer.") and (optimizer_alike or key.rpartition(".")[2] in MOVED)
        if moves and len(set(complete.values())) > 1:
            continue
        if len(set(complete.values())) == 1:
            section, _, name = key.partition(".") if "." in key else ("rank", "", key)
            common.setdefault(section, []).append((name, next(iter(complete.values()))))
        else:
            (by_nature if key in _OWN_BY_NATURE else unlike).append(Differing(key, holders(complete)))
    sections = tuple((section, tuple(pairs)) for section, pairs in common.items())
    return Environment(sections, tuple(unlike), tuple(by_nature))


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
        # states of generators differ between ranks and say nothing to a reader
        "data": {name: value for name, value in env.data.items() if name != "orders"},
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
    """Nested facts as ``a.b`` → text, tables in a list as ``a.0.b``; empty ones are left out."""
    flat: dict[str, str] = {}
    for key, value in facts.items():
        if isinstance(value, list) and value and all(isinstance(entry, Mapping) for entry in value):
            flat |= _flat({str(index): entry for index, entry in enumerate(value)}, f"{prefix}{key}.")
        elif isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None and value != "" and value != []:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            flat[f"{prefix}{key}"] = clipped(text, _MAX_VALUE)
    return flat


def holders(values: Mapping[int, str]) -> tuple[tuple[str, str], ...]:
    """(ranks, value) for each distinct value."""
    by_value: dict[str, list[int]] = {}
    for rank, value in values.items():
        by_value.setdefault(value, []).append(rank)
    return tuple((ranks_text(ranks, dash="–"), value) for value, ranks in by_value.items())
