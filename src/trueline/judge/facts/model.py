"""Facts of the model that is trained."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.text.words import counted, listed, named_some
from trueline.store.reader import Run

MAX_NORMS = 10_000_000
"""Norms of single parameters on all ranks that are looked at together: of longer Runs every so many steps."""


def parameters(run: Run) -> tuple[str, Any]:
    """Parameters that are trained and that are frozen, with the numbers they hold, on all ranks of one replica."""
    trained = {
        name: math.prod(shape) for env in _envs(run) for name, shape in zip(env.params, env.param_shapes, strict=False)
    }
    frozen = sorted({name for env in _envs(run) for name in env.frozen})
    text = f"{counted(len(trained), 'parameter')} trained, of {sum(trained.values()):,} numbers on a rank"
    text += f"; {len(frozen)} frozen ({named_some(frozen)})" if frozen else "; none frozen"
    return text, {"trained": len(trained), "numbers": sum(trained.values()), "frozen": len(frozen)}


def without_gradient(run: Run) -> tuple[str, Any]:
    """Trained parameters that no sampled step brought a gradient to, or only one of zeros, on any rank."""
    # Over all ranks: a rank that holds no shard of a parameter has no gradient of it.
    seen, reached = set[str](), set[str]()
    num_values = len(run.ranks) * max((len(env.params) for env in run.env.values()), default=1)
    sampled = run.steps[run.measured("param_grad_norms").any(axis=1)]
    num_steps = max(MAX_NORMS // max(num_values, 1), 1)
    steps = sampled[:: max(len(sampled) // num_steps, 1)].tolist()
    norms = run.lists("param_grad_norms", steps=steps)
    for (_, rank), norms_P in norms.items():
        names = run.env[rank].params if rank in run.env else []
        # After a change of the parameters, lists are about others than the names of today.
        if len(names) == len(norms_P):
            seen |= set(names)
            reached |= {names[index] for index in np.flatnonzero(~(norms_P <= 0)).tolist()}  # NaN reached it, too
    if not seen:
        raise CannotTell("no gradient of single parameters was sampled")
    without = sorted(seen - reached)
    text = "every trained parameter had a gradient"
    if without:
        text = f"{counted(len(without), 'trained parameter')} never had a gradient: {named_some(without)}"
    return f"{text}, of {counted(len({step for step, _ in norms}), 'sampled step')}", {"without": without}


def tied(run: Run) -> tuple[str, Any] | None:
    """Names that stand for one parameter."""
    groups = next((env.facts.tied for env in _envs(run) if env.facts is not None), None)
    if groups is None:
        raise CannotTell("no rank described the tree of its model")
    pairs = [" = ".join(names) for names in groups if len(names) > 1]
    return (f"tied: {named_some(pairs)}", {"tied": groups}) if pairs else None


def evaluation_modules(run: Run) -> tuple[str, Any]:
    """Modules that were in evaluation mode in forward passes that are trained on."""
    numbers_TN, measured_TN = run.pivot("eval_modules")
    if not measured_TN.any():
        raise CannotTell("no forward pass was sampled")
    most = int(numbers_TN[measured_TN].max())
    steps = run.steps[(measured_TN & (numbers_TN > 0)).any(axis=1)]
    looked = int(measured_TN.any(axis=1).sum())
    if not most:
        return f"all modules were in training mode at {counted(looked, 'sampled step')}", {"most": 0, "steps": 0}
    text = f"{counted(most, 'module')} in evaluation mode at {len(steps)} of {counted(looked, 'sampled step')}"
    return text, {"most": most, "steps": len(steps)}


def weight_dtypes(run: Run) -> tuple[str, Any]:
    """Dtypes of parameters, with how many have each."""
    envs = _envs(run)
    numbers = Counter(dtype.removeprefix("torch.") for dtype in envs[0].param_dtypes)
    if not numbers:
        raise CannotTell("dtypes of parameters were not recorded")
    most_first = dict(numbers.most_common())
    if len(most_first) == 1:
        return f"all parameters are {next(iter(most_first))}", most_first
    return f"of the parameters {listed([f'{num} are {dtype}' for dtype, num in most_first.items()])}", most_first


def _envs(run: Run) -> list[RankEnv]:
    envs = [env for _, env in sorted(run.env.items()) if env.params]
    if not envs:
        raise CannotTell("no rank described its model")
    return envs
