"""Why engine and trainer disagree: which experiment takes the gap away.

Causes are ``weights`` (the gap comes with updates: a sync, a lag), ``cache`` (what the engine keeps of earlier tokens),
``decoding`` (the kernel for one token at a time, positions), ``batch`` (the engine computes a sequence otherwise beside
others), ``precision``, and ``model``: the two implementations, the tokens, or the weights that they begin with.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trueline.judge.check_run import check
from trueline.schema.law import codes_of_group
from trueline.store.reader import Run
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.runs import Way
from trueline.trials.frame.tree import TreeTrial
from trueline.trials.rollouts.experiments import experiments, reached

GAPS = "rollout-gap"
"""Findings that this trial looks into where it is asked about none (``Code.group``)."""
CAUSES = ("weights", "cache", "decoding", "batch", "precision", "model")
MEANS: Mapping[str, str] = {
    "weights": "the gap comes with updates, so a sync of weights leaves some out, or lags",
    "cache": "what the engine keeps of earlier tokens",
    "decoding": "how the engine computes one token at a time: its kernel, positions",
    "batch": "the engine computes a sequence otherwise beside others",
    "precision": "rounding in the engine",
    "model": "the two implementations, the tokens, or the weights that both begin with",
}
NEXT: Mapping[str, tuple[str, ...]] = {
    "weights": (
        "Record digests after each sync: trueline.rl.record_sync(step, model.named_parameters(), engine).",
        "Record versions of the weights: a lag is then told from a sync that leaves some out.",
    ),
    "cache": ("Look at the cache of keys and values: its dtype and scales, its size, prefixes that are shared.",),
    "decoding": ("Look at what decoding does otherwise than prefill: its kernel, and positions of the next token.",),
    "batch": (
        "Look at padding on the left and its position ids, and at kernels that depend on the batch (batch-invariant "
        "kernels, or one that is deterministic).",
    ),
    "precision": ("It is rounding: declare the coarser dtype in sampling={'dtype': …}, or correct by importance.",),
    "model": (
        "Compare one prompt as both sides have it, id by id, with its position ids; then the weights that both were "
        "loaded with; then both forward passes: trueline compare.",
    ),
}


@dataclass
class RolloutTrial(TreeTrial):
    """The tree of these causes."""

    causes: tuple[str, ...] = CAUSES
    means: Mapping[str, str] = field(default_factory=lambda: MEANS)
    then: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: NEXT)
    to_reach: str = "--way {}=OPTION=VALUE"


def prepare(asked: Asked, *, way: Sequence[str] = ()) -> Prepared:
    """Why do rollout engine and trainer disagree? ``way`` are ways to reach an experiment, ``NAME=OPTION=VALUE``.
    Raises ``InputError``.
    """
    if asked.code is None:  # what tells the gap from others of its kind cannot be judged of one token
        codes = {finding.code for finding in check(Run(asked.run)).findings}
        code = next((code for code in codes_of_group(GAPS) if code in codes), None)
        asked = replace(asked, code=code)
    known_experiments = experiments()
    commands = reached(asked.command, way, known_experiments)
    ways = {name: Way(name, environ, words) for name, (words, environ) in commands.items()}
    trial = RolloutTrial(
        asked.runs_for_finding(ways=list(way)),
        asked.question("Why is it that"),
        known_experiments,
        ways,
        asked.error,
        asked.seed,
    )
    plan = [
        *asked.says(),
        *(
            f"{experiment.name}: {shlex.join(commands[experiment.name][0])}"
            for experiment in known_experiments
            if experiment.name in commands
        ),
    ]
    open_ = [experiment.name for experiment in known_experiments if experiment.name not in commands]
    plan += [f"Cannot be reached: {', '.join(open_)} (name a way with --way)."] if open_ else []
    return asked.prepared(trial, plan, "4 to 20")
