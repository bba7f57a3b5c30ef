"""A schedule brings a learning rate of its own, and that of the optimizer is never in force.

What it finds
-------------
An optimizer that the script made with a learning rate (`AdamW(…, lr=2e-5)`), and a schedule by hand, or of a framework,
that sets another one: a warm-up with a peak of its own, a function that reads another constant.

Why it matters
--------------
The rate that is tuned, logged and written in the paper is not the one that trains: it may be fifty times as large.

How it decides
--------------
By comparing, and for you to confirm. The rate that the optimizer was made with is known where it is not the default of
its class; 0 and 1 are no rates, but what stands for one. No update since the start had it in the same group, nor a
multiple that ranks, micro-batches or samples of an update explain; the largest rate of the schedule is reached (three
updates have it, or later ones are lower); and it is more than twice the declared one, or less than half: who counts a
warm-up of two steps off by one comes to half. Nothing is said where a scheduler of torch sets rates, which begins from
those of the optimizer, or is given its own by name, as OneCycleLR; or where the rate stands in the command or in a
configuration in sight.

What it may miss
----------------
Optimizers that were made before `trueline.watch` where the job is not started by `trueline run`; rates that a warm-up
happens to pass through.

Example
-------
The optimizer was made with the learning rate 2e-05, and no update has it: the schedule, which is none of torch's, goes
from 0 to 0.001 at step 10, 50 times that.

Wrong and right
---------------
Wrong:

```python
optimizer = AdamW(model.parameters(), lr=2e-5)
scheduler = WarmupLR(optimizer, warmup_num_steps=10)  # its warmup_max_lr is 0.001 by default
```

Right:

```python
optimizer = AdamW(model.parameters(), lr=2e-5)
scheduler = WarmupLR(optimizer, warmup_max_lr=2e-5, warmup_num_steps=10)
```
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.series.command_rates import rates_of_command
from trueline.laws.schedule.by_hand import rates_by_hand
from trueline.laws.schedule.followed import UPDATES_AT_LEAST
from trueline.laws.schedule.scaled_rates import scale_factors
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.store.reader import Run

CODE = "rate-replaced"
CALLS = {"": ("optimizer",)}
QUESTION = "updates"
NEEDS: tuple[str, ...] = ("lr", "num_micro", "sample_digests")
ACROSS_RANKS = False

_RATE = re.compile(r"(?:^|[^a-z])lrs?(?:[^a-z]|$)|rate|Lr|LR")
_NEAR = 1e-6
"""Share by which a rate may differ from a product that a script computes in float32."""
OFF_BY_ONE = 2.0
"""Times that a rate is larger than the one which a warm-up of two steps comes to if it is counted off by one."""
NO_RATES = (0.0, 1.0)
"""What optimizers are made with whose schedule computes the whole rate."""


def check(run: Run) -> list[Finding]:
    """The Finding where the optimizer's own rate is never in force; raises ``CannotTell`` where nothing tells."""
    own_rates = _rates_made(run)
    steps_T, rates_TG = rates_by_hand(run)
    if run.manifest.attempts and run.manifest.attempts[0].updates:
        raise CannotTell("the optimizer held states when it was watched first", reason="by-design")
    if len(own_rates) != rates_TG.shape[1]:
        raise CannotTell("groups were added to the optimizer after it was made", reason="by-design")
    factors = scale_factors(run)
    replaced = [
        (rate, rates_TG[:, group])
        for group, rate in enumerate(own_rates)
        if rate not in NO_RATES and _is_reached(rates_TG[:, group]) and _is_other(rates_TG[:, group], rate, factors)
    ]
    largest = [float(rates_T.max()) for _, rates_T in replaced]
    declared_rates = [*_numbers(run)]
    if len(replaced) < len(own_rates) or any(_is_near(rate, number) for rate in largest for number in declared_rates):
        return []
    return [_finding(run, steps_T, *replaced[0])]


def _rates_made(run: Run) -> list[float]:
    rows = run.lists("rates_made", ranks=data_parallel_ranks(run)[:1]) if run.has("rates_made") else {}
    if not rows:
        raise CannotTell(run.manifest.only_from_start("with what rate an optimizer is made"), reason="by-design")
    own_rates = rows[max(rows)].tolist()
    if not own_rates:
        raise CannotTell("the optimizer was made with the learning rate of its class", reason="by-design")
    return own_rates


def _is_reached(rates_T: np.ndarray) -> bool:
    """True where a schedule has come to its largest rate."""
    largest = rates_T.max()
    return bool(rates_T[-1] < largest or np.sum(rates_T == largest) >= UPDATES_AT_LEAST)


def _is_other(rates_T: np.ndarray, rate: float, factors: set[float]) -> bool:
    ratio = float(rates_T.max()) / rate
    if 1 / OFF_BY_ONE <= ratio <= OFF_BY_ONE:
        return False
    return not any(_is_near(float(rate_T), rate * factor) for rate_T in np.unique(rates_T) for factor in factors)


def _is_near(rate: float, other: float) -> bool:
    return math.isclose(rate, other, rel_tol=_NEAR)


def _numbers(run: Run) -> Iterator[float]:
    """Rates of the command and of configurations in sight."""
    yield from (rate for _, rate in rates_of_command(run.manifest.command))
    for env in run.env.values():
        for options in env.facts.configs.values() if env.facts is not None else ():
            yield from _rates_in("", options)


def _rates_in(name: str, value: Any) -> Iterator[float]:
    """Numbers in ``value`` by names of a rate."""
    if isinstance(value, Mapping):
        for key, entry in cast("Mapping[str, Any]", value).items():
            yield from _rates_in(key, entry)
    elif isinstance(value, list):
        for entry in cast("list[Any]", value):
            yield from _rates_in(name, entry)
    elif isinstance(value, (int, float, str)) and _RATE.search(name):
        try:
            yield float(value)
        except ValueError:
            return


def _finding(run: Run, steps_T: np.ndarray, rate: float, rates_T: np.ndarray) -> Finding:
    largest = float(rates_T.max())
    at = int(steps_T[int(rates_T.argmax())])
    ratio = f"{largest / rate:,.3g} times that" if largest > rate else f"1/{rate / largest:,.3g} of that"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"The optimizer was made with the learning rate {rate:.4g}, and no update has it: the schedule, which is "
        f"none of torch's, goes from {float(rates_T[0]):.3g} to {largest:.3g} at step {at}, {ratio}.",
        ranks=tuple(data_parallel_ranks(run)),
        step_first=int(steps_T[0]),
        step_last=int(steps_T[-1]),
        measured=largest,
        expected=rate,
        unit="largest learning rate of an update (as the optimizer was made)",
        false_alarm_rate=None,
        evidence={"kind": "schedule", "rates": [rate, largest]},
        next=(
            "Give the schedule the rate of the optimizer (a warm-up of DeepSpeed takes it as warmup_max_lr), or make "
            "the optimizer with the rate that is meant.",
        ),
    )
