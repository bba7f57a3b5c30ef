"""Facts of the model that is trained."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from trueline.judge.series.whole_parameters import updates_others
from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.text.words import counted, listed, named_some, numberless
from trueline.store.reader import Run

MOST_EQUAL = 3
"""Names of one parameter that a line has all of."""
ADAPTER = re.compile(r"lora|adapter|ia3|prompt|prefix|oft_|boft|hada_|lokr|vera_|dora", re.IGNORECASE)
"""Parts of the names of parameters that are trained beside a model that is frozen: those of PEFT's methods."""
ADAPTER_NAME = re.compile(
    r"\.(?:lora_\w+|ia3_l|oft_[rR]|vera_lambda_[bd]|hada_\w+|lokr_\w+|boft_[RS]|modules_to_save|prompt_encoder)"
    r"\.(\w+)(?:\.|$)"
)
"""Where PEFT puts the name of an adapter into those of its parameters: ``q_proj.lora_A.default.weight``."""
WITH_MASTERS = ("deepspeed", "megatron")
"""Adapters of frameworks whose optimizers update float32 copies of weights in 16 bits."""
SHORT = ("bfloat16", "float16")

MAX_NORMS = 10_000_000
"""Norms of single parameters on all ranks that are looked at together: of longer Runs every so many steps."""


def parameters(run: Run) -> tuple[str, Any]:
    """Parameters that are trained and that are frozen, on all ranks together, and the numbers that each rank holds of
    the first.
    """
    envs = _envs(run)
    trained = {name for env in envs for name in env.params}
    frozen = sorted({name for env in envs for name in env.frozen})
    numbers = [sum(env.param_sizes.values()) for env in envs]
    amount = f"{min(numbers):,}" if min(numbers) == max(numbers) else f"{min(numbers):,} to {max(numbers):,}"
    text = f"{counted(len(trained), 'parameter')} trained, of {amount} numbers" + (
        " on a rank" if len(envs) > 1 else ""
    )
    text += f"; {len(frozen)} frozen ({named_some(frozen)})" if frozen else "; none frozen"
    values: dict[str, Any] = {"trained": len(trained), "numbers": max(numbers), "frozen": len(frozen)}
    loaded = _frozen_loaded(run)
    if frozen and loaded:
        text += f", {'all' if loaded >= len(frozen) else loaded} of them as they were loaded"
        values["frozen_loaded"] = loaded
    values["adapters"] = any(ADAPTER.search(name) is not None for name in trained)
    if frozen:
        values |= {"frozen_parts": _whole_parts(frozen, trained), "trained_parts": _whole_parts(trained, set(frozen))}
    return text, values


def _frozen_loaded(run: Run) -> int:
    """Frozen parameters that a load had filled before the first update, on the rank that has fewest."""
    if not run.has("frozen_loaded"):
        return 0
    numbers_TN, measured_TN = run.pivot("frozen_loaded")
    return int(numbers_TN[measured_TN].min()) if measured_TN.any() else 0


def is_frozen_as_drawn(value: Mapping[str, Any]) -> bool:
    """True where parameters are frozen beside no adapter, and not all of them as they were loaded: to freeze a backbone
    that is pretrained is what people do.
    """
    return value["frozen"] > 0 and not value["adapters"] and value.get("frozen_loaded", 0) < value["frozen"]


def frozen_parts(value: Mapping[str, Any]) -> str:
    """``frozen: encoder and embed (40 of 44 parameters); trained: head``."""
    total = counted(value["frozen"] + value["trained"], "parameter")
    # Results of base rates that were read before have no parts.
    frozen: list[str] = value.get("frozen_parts", [])
    trained: list[str] = value.get("trained_parts", [])
    text = f"{value['frozen']} of {total} {'is' if value['frozen'] == 1 else 'are'} frozen"
    text += f": {named_some([f'`{name}`' for name in frozen])}" if frozen else ""
    return f"{text}; trained: {named_some([f'`{name}`' for name in trained])}" if trained else text


def _whole_parts(names: Collection[str], other_names: Collection[str]) -> list[str]:
    """The outermost modules all of whose parameters are among ``names``, and parameters that have no such module."""
    around_others = {prefix for name in other_names for prefix in _prefixes(name)}
    outermost = (
        next((prefix for prefix in [*_prefixes(name), name] if prefix not in around_others), name)
        for name in sorted(names)
    )
    return list(dict.fromkeys(outermost))


def _prefixes(name: str) -> list[str]:
    """Of ``a.b.c``: ``a`` and ``a.b``."""
    path = name.split(".")
    return [".".join(path[:length]) for length in range(1, len(path))]


def adapters(run: Run) -> tuple[str, Any] | None:
    """Adapters of PEFT by their names, and how many of their parameters are trained, and frozen."""
    numbers: dict[str, dict[str, int]] = {}
    for key, names in (
        ("trained", {name for env in _envs(run) for name in env.params}),
        ("frozen", {name for env in _envs(run) for name in env.frozen}),
    ):
        for match in filter(None, map(ADAPTER_NAME.search, sorted(names))):
            counts = numbers.setdefault(match[1], {"trained": 0, "frozen": 0})
            counts[key] += 1
    if not numbers:
        return None
    words = [
        f"{name} ({counted(counts['trained'], 'parameter')} trained"
        + (f", {counts['frozen']} frozen)" if counts["frozen"] else ")")
        for name, counts in numbers.items()
    ]
    return f"{'adapter' if len(words) == 1 else 'adapters'} {listed(words)}", numbers


def without_gradient(run: Run) -> tuple[str, Any]:
    """Trained parameters that no sampled step brought a gradient to, or only one of zeros, on any rank."""
    # Over all ranks: a rank that holds no shard of a parameter has no gradient of it.
    sampled_names, reached = set[str](), set[str]()
    num_values = len(run.ranks) * max((len(env.params) for env in run.env.values()), default=1)
    sampled = run.steps[run.measured("param_grad_norms").any(axis=1)]
    num_steps = max(MAX_NORMS // max(num_values, 1), 1)
    steps = sampled[:: max(len(sampled) // num_steps, 1)].tolist()
    norms = run.lists("param_grad_norms", steps=steps)
    for (_, rank), norms_P in norms.items():
        names = run.env[rank].params if rank in run.env else []
        # After a change of the parameters, lists are about others than the names of today.
        if len(names) == len(norms_P):
            sampled_names |= set(names)
            reached |= {names[index] for index in np.flatnonzero(~(norms_P <= 0)).tolist()}  # NaN reached it, too
    if not sampled_names:
        raise CannotTell("no gradient of single parameters was sampled")
    without = sorted(sampled_names - reached)
    text = "every trained parameter had a gradient"
    if without:
        text = f"{counted(len(without), 'trained parameter')} never had a gradient: {named_some(without)}"
    return f"{text}, of {counted(len({step for step, _ in norms}), 'sampled step')}", {"without": without}


def tied(run: Run) -> tuple[str, Any] | None:
    """Names that stand for one parameter."""
    groups = next((env.facts.tied for env in _envs(run) if env.facts is not None), None)
    if groups is None:
        raise CannotTell("no rank described the tree of its model")
    pairs = [_equation(names) for names in groups if len(names) > 1]
    return (f"tied: {named_some(pairs)}", {"tied": groups}) if pairs else None


def _equation(names: Sequence[str]) -> str:
    """``a = b``, of more than three names ``a = b = … (12 names)``."""
    shown = names if len(names) <= MOST_EQUAL else [*names[:2], f"… ({len(names)} names)"]
    return " = ".join(shown)


def ties_numbered_layers(value: Mapping[str, Any]) -> bool:
    """True where one parameter stands in layers that differ by a number alone: ``[layer] * 6`` is one layer."""
    return bool(_across_numbers(value))


def numbered_ties(value: Mapping[str, Any]) -> str:
    """``layers.0.up, layers.1.up, layers.2.up and 9 more are one parameter, and so are 3 more such sets of names``."""
    first, *more = _across_numbers(value)
    text = f"{named_some(first)} are one parameter"
    return f"{text}, and so are {counted(len(more), 'more such set')} of names" if more else text


def _across_numbers(value: Mapping[str, Any]) -> list[Sequence[str]]:
    """Names of each such parameter."""
    return [names for names in value["tied"] if len({numberless(name) for name in names}) < len(names)]


def evaluation_modules(run: Run) -> tuple[str, Any]:
    """Modules that were in evaluation mode in forward passes that are trained on."""
    numbers_TN, measured_TN = run.pivot("eval_modules")
    if not measured_TN.any():
        raise CannotTell("no forward pass was sampled")
    most_modules = int(numbers_TN[measured_TN].max())
    steps = run.steps[(measured_TN & (numbers_TN > 0)).any(axis=1)]
    num_sampled = int(measured_TN.any(axis=1).sum())
    if not most_modules:
        return f"all modules were in training mode at {counted(num_sampled, 'sampled step')}", {"most": 0, "steps": 0}
    modules, sampled = counted(most_modules, "module"), counted(num_sampled, "sampled step")
    text = f"{modules} in evaluation mode at {len(steps)} of {sampled}"
    return text, {"most": most_modules, "steps": len(steps)}


def weight_dtypes(run: Run) -> tuple[str, Any]:
    """Dtypes of parameters, with how many have each, and whether the optimizer updates copies of them."""
    envs = _envs(run)
    numbers = Counter(dtype.removeprefix("torch.") for dtype in envs[0].param_dtypes)
    if not numbers:
        raise CannotTell("dtypes of parameters were not recorded")
    by_number = dict(numbers.most_common())
    masters = run.manifest.adapter in WITH_MASTERS or updates_others(run, [env.rank for env in envs])
    values = {"dtypes": by_number, "masters": masters}
    if len(by_number) == 1:
        return f"all parameters are {next(iter(by_number))}", values
    return f"of the parameters {listed([f'{num} are {dtype}' for dtype, num in by_number.items()])}", values


def only_in_16_bits(value: Mapping[str, Any]) -> bool:
    """Whether all weights have 16 bits, and the optimizer updates these and no copies."""
    return not value["masters"] and set(value["dtypes"]) <= set(SHORT)


def _envs(run: Run) -> list[RankEnv]:
    envs = [env for _, env in sorted(run.env.items()) if env.params]
    if not envs:
        raise CannotTell("no rank described its model")
    return envs
