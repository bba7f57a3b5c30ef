"""Facts of the updates.

T steps, K parameter groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.series.clip_calls import clip_calls
from trueline.judge.stats.memoize import memoized
from trueline.schema.errors import CannotTell
from trueline.schema.finding import UPDATE_SKIPPED
from trueline.schema.text.words import counted, named_some, steps_text
from trueline.store.reader import Run

SETTINGS = ("momentum", "betas", "eps", "weight_decay", "nesterov", "amsgrad")
HALVINGS, GROWTH_INTERVAL = 16, 2000
"""What a GradScaler of torch is made with: it begins at 2^16, and doubles after so many updates."""
NEARLY_GONE = 1e-3
END_OF_COSINE = 0.0202
"""A cosine is below a thousandth of its height in its last 2/pi * arcsin(sqrt(0.001)) = 2.02 % of steps."""
HARD = 100
"""Times the limit that norms are, from which on clipping makes updates a hundredth of what the rate says."""
MAX_TURNS = 6
"""Points of the curve of the learning rate that one line has."""


def optimizer(run: Run) -> tuple[str, Any]:
    """The class of the optimizer and the settings it was made with."""
    settings = next((env.optimizer for _, env in sorted(run.env.items()) if env.optimizer), dict[str, Any]())
    if not settings:
        raise CannotTell("no optimizer was seen")
    groups: list[dict[str, Any]] = settings.get("groups", [])
    words: list[str] = []
    for name in SETTINGS:
        values = list(dict.fromkeys(_setting(group[name]) for group in groups if group.get(name)))
        words += [f"{name} {' / '.join(values)}"] if values else []
    text = f"{settings.get('class', 'an optimizer')} ({', '.join(words)})" if words else str(settings.get("class"))
    text += f", {counted(len(groups), 'parameter group')}" if len(groups) > 1 else ""
    return text, {"class": settings.get("class"), "groups": groups}


def _setting(value: Any) -> str:
    """A setting in four digits, as a schedule may have made it: ``[0.9233, 0.999]``."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_setting, cast(list[Any], value)))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def learning_rate(run: Run) -> tuple[str, Any]:
    """The learning rate of the first parameter group as a line of its turns: "0 at 0, 0.0002 at 10, 0 at 60"."""
    steps, rates = _rates(run)
    rates_T = np.array([rates_K[0] for rates_K in rates])
    turns = _turns(rates_T)
    points = [[int(steps[turn]), float(rates_T[turn])] for turn in turns]
    # a step that ends where the next one begins, as of a schedule by epochs, is said by its beginning
    ends = {
        turn for turn, after in pairwise(turns) if turn and after == turn + 1 and rates_T[turn] == rates_T[turn - 1]
    }
    texts = [f"{rate:.3g} at {step}" for turn, (step, rate) in zip(turns, points, strict=True) if turn not in ends]
    num_groups = max(map(len, rates))
    head = "learning rate" if num_groups == 1 else f"learning rate of the first of {num_groups} parameter groups"
    largest = float(rates_T.max())
    # of a few updates a cosine's last one is more than its share
    low = max(int(np.sum((rates_T > 0) & (rates_T < NEARLY_GONE * largest))) - 1, 0) / len(rates_T)
    values: dict[str, Any] = {"turns": points, "largest": largest, "low": low}
    if len(set(rates_T.tolist())) == 1:
        return f"{head} {rates_T[0]:.3g} at all {counted(len(steps), 'step')}", values | {"turns": points[:1]}
    words = " → ".join(texts if len(texts) <= MAX_TURNS else [*texts[: MAX_TURNS - 1], "…", texts[-1]])
    return f"{head} {words}", values


def skipped(run: Run) -> tuple[str, Any] | None:
    """Updates that were left out as the Plan's ``on_finding = "skip"`` asks, of all that were about to be made."""
    steps = [finding.step_first for finding in run.live_findings if finding.code == UPDATE_SKIPPED]
    if not steps:
        return None
    allowed, num_made = run.manifest.plan.get("most_skips"), len(run.steps)
    text = f"{counted(len(steps), 'update')} of {num_made + len(steps)} left out, as the Plan asks"
    return text, {"skipped": len(steps), "made": num_made, "most_skips": allowed, "before_steps": steps}


def rate_zero(run: Run) -> tuple[str, Any] | None:
    """Updates at which the learning rates of all parameter groups are 0, which change nothing."""
    steps, rates = _rates(run)
    zero = steps[[not rates_K.any() for rates_K in rates]]
    if not len(zero):
        return None
    share = len(zero) / len(steps)
    when = steps_text(zero.tolist(), among=steps.tolist())
    text = f"{len(zero)} of {counted(len(steps), 'update')} had the learning rate 0 ({share:.0%}): {when}"
    return text, {"updates": len(zero), "share": share}


def clipping(run: Run) -> tuple[str, Any] | None:
    """Calls that clip gradients by their norm, and how many of them did."""
    try:
        calls = clip_calls(run)
    except CannotTell:
        if not run.has("grad_norm"):
            raise
        return "no call of torch that clips by a norm was seen at sampled steps", {
            "calls": 0,
            "clipped": 0,
            "limits": [],
        }
    clipped = sum(call.clips for call in calls)
    # A call that clips what still has the loss scale is told by `clip-differs`.
    ratios = [call.reported_norm / call.max_norm for call in calls if call.max_norm > 0 and not call.scaled]
    ratios = [ratio for ratio in ratios if math.isfinite(ratio)]
    over = float(np.median(ratios)) if ratios else None
    limits = list(dict.fromkeys(f"{call.max_norm:.3g}" for call in calls))
    text = f"gradients are clipped at the norm {named_some(limits)}: {clipped} of {counted(len(calls), 'sampled call')}"
    text += " made them smaller"
    text += f"; the median norm is {over:,.0f} times the limit" if over and over >= HARD else ""
    return text, {"calls": len(calls), "clipped": clipped, "limits": limits, "times_the_limit": over}


def scaler(run: Run) -> tuple[str, Any] | None:
    """Updates that a GradScaler left out."""
    by_rank = Counter[int]()
    for column in ("loss_scaler", "closing_loss_scaler"):
        for (_, rank), values in run.lists(column).items():
            by_rank[rank] += int(values[0]) if len(values) else 0
    if not by_rank:
        return None
    num_left_out = max(by_rank.values())
    num_steps = len(run.steps) + num_left_out
    text = f"the GradScaler left out {counted(num_left_out, 'update')} of {counted(num_steps, 'step')}"
    return text, {"left_out": num_left_out, "steps": num_steps}


def rises_again(value: Mapping[str, Any]) -> bool:
    """Whether a learning rate that had fallen rises again: a schedule that began anew, or went on beyond its end."""
    rates = [rate for _, rate in value["turns"]]
    falls = [index for index in range(1, len(rates)) if rates[index] < rates[index - 1]]
    return any(rate > rates[falls[0]] for rate in rates[falls[0] :]) if falls else False


def still_rises(value: Mapping[str, Any]) -> bool:
    """Whether the learning rate rises up to the last update: a warm-up that is longer than the training."""
    rates = [rate for _, rate in value["turns"]]
    return len(rates) > 1 and rates[-1] > rates[-2] and rates[-1] >= value["largest"]


def nearly_gone(value: Mapping[str, Any]) -> bool:
    """Whether more updates than the end of a cosine had a rate below a thousandth of the largest."""
    return value["low"] > END_OF_COSINE


def leaves_out_many(value: Mapping[str, Any]) -> bool:
    """Whether a GradScaler left out more updates than it takes to come to a scale of 1, and then one for each time that
    it tries a greater one.
    """
    return value["left_out"] > HALVINGS + value["steps"] / GROWTH_INTERVAL


@memoized
def _rates(run: Run) -> tuple[np.ndarray, list[np.ndarray]]:
    """Steps [T] and the learning rates [K] of the parameter groups at each, on the first rank."""
    rates = {step: rates_K for (step, _), rates_K in run.lists("lr", ranks=data_parallel_ranks(run)[:1]).items()}
    rates = {step: rates_K for step, rates_K in rates.items() if len(rates_K)}
    if not rates:
        raise CannotTell("no optimizer with learning rates was seen")
    return np.array(list(rates)), list(rates.values())


def _turns(rates_T: np.ndarray) -> list[int]:
    """Indices of the first and last rate, and of those where it goes over from rising, falling or constant to another
    of these.
    """
    directions = np.sign(np.diff(rates_T))
    return sorted({0, len(rates_T) - 1, *(np.flatnonzero(directions[1:] != directions[:-1]) + 1).tolist()})
