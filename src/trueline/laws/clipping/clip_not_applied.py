"""A clipping of gradients is declared, and no update has it.

What it finds
-------------
A largest norm of gradients in a configuration that the script holds (`max_grad_norm`, `gradient_clip_val`, `grad_clip`,
`gradient_clipping` and the like), and updates with larger gradients: the option is read by no code, or by a branch that
does not run. A module of Lightning with a `configure_gradient_clipping` of its own that optimises by hand, which nobody
then calls.

Why it matters
--------------
Everybody believes that spikes are clipped. One bad batch then moves the weights as far as its gradient is long.

How it decides
--------------
By comparing, and for you to confirm: at no sampled step a call of torch clipped by a norm, and at three sampled updates
or more the norm of the gradients that the optimizer was given is larger than what is declared, by more than rounding to
bfloat16 explains (3 %). Clipping by hand keeps them below, whatever does it. Of the hook, that no call was seen at any
sampled step, ten at least. Left alone: clipping by value or by layer (a `clip_mode` or `gradient_clip_algorithm` beside
it), optimizers that clip by themselves, engines that clip what only they hold (DeepSpeed, Megatron), and a loss scale.

What it may miss
----------------
Options of other names, numbers in the code; clipping of a part of the parameters.

Example
-------
The configuration declares grad_clip 0.5, and at 68 of 70 sampled updates of rank 0 the norm of the gradients is larger,
up to 6.8: nothing clips them.

Wrong and right
---------------
Wrong:

```python
scaler.step(optimizer)  # args.grad_clip is read by nobody
```

Right:

```python
torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
scaler.step(optimizer)
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.series.clip_calls import clip_calls
from trueline.judge.series.update_rules import TOLERANCE
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.formats import FORMATS
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run

CODE = "clip-not-applied"
CALLS = {"": ("step",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("grad_norm",)
ACROSS_RANKS = False

FEWEST, FEWEST_SAMPLED = 3, 10
"""Updates that are larger than declared, and sampled updates without a call where only a hook is declared."""
_NAMES = re.compile(
    r"(?:max_)?grad(?:ient)?_(?:norm_)?clip(?:_val|_norm|ping|_value)?|clip_grad(?:_norm)?|max_grad(?:ient)?_norm"
    r"|clip_gradients?|gradient_clipping"
)
_HOW = re.compile(r"clip_(?:mode|algorithm|type)|(?:gradient|grad)_clip_(?:algorithm|mode|type)")
_OF_ENGINES = ("deepspeed", "megatron", "fsdp1")
"""Adapters of frameworks that clip what they hold themselves, behind the gradients of the parameters."""


def check(run: Run) -> list[Finding]:
    """The Finding where nothing clips; raises ``CannotTell`` where nothing is declared, or it cannot be seen."""
    declared = dict(_declared(run))
    hook = _hook(run)
    if not declared and not hook:
        raise CannotTell("no configuration in sight declares a clipping of gradients", reason="by-design")
    if run.manifest.adapter in _OF_ENGINES or _clips_itself(run) or run.lists("loss_scaler"):
        raise CannotTell("gradients are clipped or divided behind what can be seen", reason="by-design")
    if run.models:
        raise CannotTell("the job trains several models, of which one alone may be clipped", reason="by-design")
    if _has_calls(run):
        return []
    steps_T, norms_T = _norms(run)
    if len(set(declared.values())) == 1:
        (name, limit), *_ = declared.items()
        above = norms_T > limit * (1 + TOLERANCE * FORMATS["bfloat16"].unit)
        if above.sum() >= FEWEST:
            return [
                _finding(run, steps_T[above], norms_T[above], f"The configuration declares {name} {limit:g}", limit)
            ]
    if hook and len(norms_T) >= FEWEST_SAMPLED:
        return [_finding(run, steps_T, norms_T, "The module has a configure_gradient_clipping of its own", None)]
    return []


def _declared(run: Run) -> Iterator[tuple[str, float]]:
    for env in run.env.values():
        for options in env.facts.configs.values() if env.facts is not None else ():
            if not any(_HOW.fullmatch(name) and value not in (None, "norm") for name, value in options.items()):
                yield from _limits(options)


def _limits(options: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _limits(cast("Mapping[str, Any]", value))
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 and _NAMES.fullmatch(name):
            yield name, float(value)


def _hook(run: Run) -> bool:
    """True where a module of Lightning that optimises by hand has a hook for clipping."""
    trainers = (env.facts.configs.get("trainer", {}) for env in run.env.values() if env.facts is not None)
    return any(
        trainer.get("configure_gradient_clipping") == "overridden" and trainer.get("automatic_optimization") is False
        for trainer in trainers
    )


def _clips_itself(run: Run) -> bool:
    groups = (group for env in run.env.values() for group in env.optimizer.get("groups", ()))
    return any("clip" in name or "grad_norm" in name for group in groups for name in group)


def _has_calls(run: Run) -> bool:
    try:
        return any(call.num_grads for call in clip_calls(run))
    except CannotTell:
        return False


def _norms(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Sampled steps and norms [T] of the gradients that the optimizer of the first rank was given."""
    rank = data_parallel_ranks(run)[0]
    used = run.lists("used_param_norms", ranks=[rank])
    norms = {step: float(np.linalg.norm(row[row > 0])) for (step, _), row in used.items() if len(row)}
    if not norms and run.manifest.adapter == "single":
        cells_TN, measured_TN = run.pivot("grad_norm")
        column = list(run.ranks).index(rank)
        at = measured_TN[:, column]
        norms = dict(zip(run.steps[at].tolist(), cells_TN[at, column].tolist(), strict=True))
    if not norms:
        raise CannotTell("no gradient of an update was sampled")
    return np.array(list(norms)), np.array(list(norms.values()))


def _finding(run: Run, steps_T: np.ndarray, norms_T: np.ndarray, declares: str, limit: float | None) -> Finding:
    largest = float(np.nanmax(norms_T))
    ranks = tuple(data_parallel_ranks(run)[:1])
    if limit is None:
        claim = (
            f"{declares}, and at {len(steps_T)} sampled updates on {ranks_text(ranks)} no gradient is clipped (norms "
            f"up to {largest:.3g}): under manual optimization Lightning never calls it."
        )
        advice = "Call self.clip_gradients(optimizer, …) in training_step, after manual_backward and before the step."
    else:
        claim = (
            f"{declares}, and at {len(steps_T)} sampled updates on {ranks_text(ranks)} the norm of the gradients is "
            f"larger, up to {largest:.3g}: nothing clips them."
        )
        advice = "Clip after backward (and scaler.unscale_) and before optimizer.step(), or drop the option."
    return Finding(
        code=CODE,
        severity="confirm",
        claim=claim,
        ranks=ranks,
        step_first=int(steps_T[0]),
        step_last=int(steps_T[-1]),
        measured=largest,
        expected=limit,
        unit="largest norm of the gradients of an update",
        false_alarm_rate=None,
        evidence={"kind": "hook" if limit is None else "option"},
        next=(advice,),
    )
