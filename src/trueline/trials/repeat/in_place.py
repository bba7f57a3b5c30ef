"""Which operations of a job's first steps do not repeat themselves, each called several times where it is.

The rule, fixed before the run: the job runs once; every operation that torch's dispatcher sees is called so many times
on copies of its inputs, with random streams set back (``capture.trial.repeated_calls``). Calls are pooled by operation,
shapes, dtypes and strides, as layers repeat the same. An operation of which a call differs is named, with the share of
its calls that do (Clopper and Pearson, 95 %). As a call is given the very same tensors, no input can be to blame.
"""

from __future__ import annotations

import fnmatch
import json
import math
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trueline.capture.child_env import CHANGES, environment
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.trials.frame.chance import Counts, least_rate, most_rate
from trueline.trials.frame.runs import JobFails, Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import Job, TrialAnswer, how_it_ended

ARM = "in place"
QUESTION = "Which operations of the first steps do not return the same bits for the same inputs?"
BY_ROUNDING = 8.0
"""Times sqrt(elements) unit roundoffs that another order of a sum explains: the probabilistic bound of a sum of n terms
is lambda sqrt(n) u (Higham and Mary, SIAM J. Sci. Comput. 41, 2019).
"""
_MOST_NAMED = 5
_UNWATCHED = {"preset": "workers", "steps": [10**9, 10**9 + 1]}
"""A Plan under which nothing is watched: its operations would be repeated, too."""


@dataclass(frozen=True)
class InPlaceJob:
    """Runs ``job`` for ``steps`` steps, each operation ``times`` times. ``codes`` of its outcome are the pools of calls
    in which one differed, as JSON, after the number of operations, of calls, and of those of the least called.
    """

    job: Job
    steps: int
    seed: int
    times: int

    def __call__(self, way: Way, run_folder: Path) -> Outcome:
        """Run it; raises ``OSError`` where the command cannot be started."""
        folder = (run_folder / "repeated").absolute()
        folder.mkdir()
        environ = environment(out=str(run_folder / "run"), plan=dict(_UNWATCHED), overwrite=True, base=dict(os.environ))
        changes = {"updates": self.steps, "seed": self.seed, "repeat": {"times": self.times, "folder": str(folder)}}
        ended = self.job.run({**environ, CHANGES: json.dumps(changes)}, printed=run_folder / "printed.txt")
        pools = [pool for path in sorted(folder.glob("repeated-*.json")) for pool in json.loads(path.read_text())]
        if not pools:
            return Outcome(None, how_it_ended(ended) or "no training step was seen")
        if why := how_it_ended(ended):
            return Outcome(None, why)
        merged = _merged(pools)
        differing = [pool for pool in merged if pool["differ"]]
        calls = [pool["calls"] for pool in merged]
        head = json.dumps([len(merged), sum(calls), min(calls)])
        return Outcome(bool(differing), codes=(head, *(json.dumps(pool) for pool in differing)))


@dataclass
class InPlaceTrial:
    """Runs the job once through ``runs``; ``times`` is how often each operation is called."""

    runs: Runs
    times: int

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            if self.runs.outcome(Way(ARM)) is None:
                return self._undecided(self.runs.last_why())
        except JobFails as fails:
            return self._undecided(fails.why)
        head, *differing = (json.loads(code) for code in self.runs.log[0]["codes"])
        num, calls, least = head
        scope = f"{counted(calls, 'call')} of {counted(num, 'operation')} (by shapes, dtypes and strides)"
        if not differing:
            bound = most_rate(Counts(least))
            says = (
                f"{scope}, each {self.times} times: all bits are the same. That is an upper bound and no proof: of an "
            )
            says += f"operation with {counted(least, 'call')}, the fewest, up to {bound:.0%} of calls may differ."
            return self._end(TrialAnswer("repeat", QUESTION, "excluded", (says,), self.runs.arms))
        worst = sorted(differing, key=lambda pool: (pool["step"], -pool["differ"]))
        says = [f"{scope}, each {self.times} times.", *(_says(pool) for pool in worst[:_MOST_NAMED])]
        if len(worst) > _MOST_NAMED:
            says.append(f"{counted(len(worst) - _MOST_NAMED, 'further operation')} differ, too: see trial.json.")
        then = tuple(dict.fromkeys(f"{pool['op']}: {advice_of(pool['op'])}" for pool in worst))
        names = tuple(_name_of(pool) for pool in worst)
        answer = TrialAnswer("repeat", QUESTION, "confirmed", tuple(says), self.runs.arms, then, names)
        return self._end(answer, findings=tuple(_finding(pool) for pool in worst))

    def _undecided(self, why: str) -> TrialAnswer:
        says = (f"The job does not run so: {why or 'it left nothing'}.",)
        return self._end(TrialAnswer("repeat", QUESTION, "undecided", says, self.runs.arms, ("Run it by itself.",)))

    def _end(self, answer: TrialAnswer, findings: tuple[Finding, ...] = ()) -> TrialAnswer:
        return self.runs.end(replace(answer, findings=findings))


def advice_of(op: str) -> str:
    """Advice about an operation, ``aten.index_add.default`` say, from ``deterministic_forms.toml``."""
    table = tomllib.loads((Path(__file__).parent / "deterministic_forms.toml").read_text(encoding="utf-8"))
    space, _, rest = op.partition(".")
    name = f"{space}.{rest.rpartition('.')[0] or rest}"
    return next(entry["form"] for pattern, entry in table.items() if fnmatch.fnmatchcase(name, pattern))


def _merged(pools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pools of one operation on all ranks, merged; ``step`` is the earliest."""
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for pool in pools:
        key = (pool["op"], *pool["form"])
        whole = merged.setdefault(key, {**pool, "calls": 0, "differ": 0})
        for name in ("calls", "differ"):
            whole[name] += pool[name]
        whole["rel"] = max(whole["rel"], pool["rel"])
        if pool["step"] is not None and (whole["step"] is None or pool["step"] < whole["step"]):
            whole |= {name: pool[name] for name in ("step", "where", "rank")}
    return list(merged.values())


def _is_rounding(pool: dict[str, Any]) -> bool:
    sizes = [math.prod(json.loads(part[part.index("[") : part.index("]") + 1])) for part in pool["form"]]
    return pool["unit"] > 0 and pool["rel"] <= BY_ROUNDING * math.sqrt(max(sizes, default=1)) * pool["unit"]


def _name_of(pool: dict[str, Any]) -> str:
    return f"{pool['op']}({', '.join(pool['form'])})"


def _says(pool: dict[str, Any]) -> str:
    counts = Counts(pool["calls"], pool["differ"])
    size = "as another order of a sum makes" if _is_rounding(pool) else "more than rounding explains"
    at = f", first in step {pool['step']} on rank {pool['rank']}{f' at {where}' if (where := pool['where']) else ''}"
    low, high = least_rate(counts, confidence=0.975), most_rate(counts, confidence=0.975)
    return (
        f"{_name_of(pool)}: {pool['differ']} of {counted(pool['calls'], 'call')} differ, so {low:.1%} to {high:.1%} "
        f"do, by {pool['rel']:.2g} ({size}){at}."
    )


def _finding(pool: dict[str, Any]) -> Finding:
    return Finding(
        code="nondeterministic-op",
        severity="info" if _is_rounding(pool) else "warning",
        claim=_says(pool),
        ranks=(pool["rank"],),
        step_first=pool["step"],
        step_last=pool["step"],
        measured=pool["differ"] / pool["calls"],
        expected=0.0,
        unit="share of calls",
        false_alarm_rate=0.0,
        evidence={name: pool[name] for name in ("op", "form", "calls", "differ", "rel", "where")},
        next=(advice_of(pool["op"]),),
    )
