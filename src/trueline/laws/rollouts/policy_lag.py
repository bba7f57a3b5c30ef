"""Rollouts were sampled by older weights than declared.

What it finds
-------------
Sequences whose weights are more versions behind the trainer's than `sampling={"lag": N}`
allows (0 unless declared), and how the gap between the two sides depends on it. Where versions say nothing of it:
tokens whose log-probabilities are those that the trainer had some steps earlier.

Why it matters
--------------
Off-policy data takes importance weights, and a bound on how old it may be. In a loop that is meant to be synchronous, a
lag is a sync that was forgotten or comes late.

How it decides
--------------
By the versions, exactly. The mean gap at each lag says whether lag is all: it should be that of rounding at lag 0, and
rise from there. Sequences that lag are left out by the other checks that judge gaps.

By tokens, where versions are unknown or all equal: the first eight after a prompt that comes again. Of sequences beyond
what rounding leaves, the engine's log-probability of a token is compared with the trainer's of the same token after the
same ones at earlier steps. As many steps back each time is a lag; one and the same step, after newer weights had
been there, is an engine that was loaded anew. The engine has to be ten times closer to these than to the weights of its
step, at two steps or more, and so that the chance of it is below e^-20 (`laws/rollouts/older_weights.py`).

What it may miss
----------------
Versions that are not recorded, or counted where weights are handed over instead of where they arrive, where no prompt
comes again (`prompt_ids`).

Example
-------
64 of 64 sequences of steps 4-20 were sampled by weights 1 version behind the trainer's; no lag was declared.

Wrong and right
---------------
Wrong:

```python
rollouts = engine.generate(prompts)
engine.load_weights(policy)  # after sampling: these were of the step before
```

Right:

```python
engine.load_weights(policy)
rollouts = engine.generate(prompts)
```
"""

from __future__ import annotations

import numpy as np

from trueline.laws.rollouts.evidence import finding, ratio_of_sums, span
from trueline.laws.rollouts.gaps import ceiling_of
from trueline.laws.rollouts.older_weights import Older, older_weights
from trueline.laws.rollouts.rows import Rows, rows_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "policy-lag"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False


def check(run: Run) -> list[Finding]:
    """The finding of rollouts that are too old; raises ``CannotTell`` where versions are unknown."""
    rows = rows_of(run)
    has_lag = np.isfinite(rows.lag)
    if not has_lag.any():
        if (older := older_weights(run, rows, ceiling_of(rows))) is not None:
            return [_older(older)]
        raise CannotTell("versions of the weights were not recorded: pass versions=(rollout, trainer) to rl.record")
    rows = rows.subset(has_lag)
    ahead = rows.subset(rows.lag < 0)
    late = rows.subset(rows.lag > rows.allowed)
    if not len(late):
        if len(ahead):
            return [_ahead(ahead)]
        older = older_weights(run, rows.subset(rows.lag == 0), ceiling_of(rows))
        return [] if older is None else [_older(older)]
    behind = int(np.median(late.lag))
    allowed = int(late.allowed[0])
    declared = f"at most {allowed} was declared" if allowed else "no lag was declared"
    gaps = _gap_at(rows)
    matters = any(gap > ceiling_of(rows) for lag, gap in gaps.items() if lag > allowed)
    return [
        finding(
            CODE,
            f"{len(late)} of {len(rows)} sequences of {span(late.step)} were sampled by weights "
            f"{counted(behind, 'version')} behind the trainer's; {declared}.",
            None,
            steps=(int(late.step.min()), int(late.step.max())),
            severity="warning",
            measured=float(behind),
            expected=float(allowed),
            unit="versions",
            evidence={"kind": ["lag", "gap-by-lag" if matters else "no-gap"], "gap_by_lag": gaps},
            next=(
                "Hand the weights over before sampling, and count the version where they arrive in the engine.",
                "If the loop is asynchronous on purpose, declare it and use importance weights: "
                f"sampling={{'lag': {int(late.lag.max())}}}.",
            ),
        )
    ]


def _older(older: Older) -> Finding:
    is_lag = older.lag is not None
    whose = f"{counted(older.lag, 'step')} earlier" if older.lag is not None else f"at step {older.step}"
    newer = "" if is_lag else ", though newer weights had been there in between"
    return finding(
        CODE,
        f"The engine's log-probabilities of {counted(older.tokens, 'token')} of steps {older.first}-{older.last} are "
        f"those that the trainer had {whose} of the same tokens after the same prompts{newer}.",
        None,
        steps=(older.first, older.last),
        measured=float(older.lag or 0),
        expected=0.0,
        unit="steps",
        evidence={"kind": ["lag", "gap-by-lag", "by-tokens"] if is_lag else "went-back", "weights_of": older.step},
        next=(
            "Hand the weights over before sampling, and count the version where they arrive in the engine.",
            "Look which engines answered these requests, whether one of them was started anew, and whether weights are "
            "sent to it.",
        )[slice(0, 1) if is_lag else slice(1, 2)],
    )


def _ahead(rows: Rows) -> Finding:
    return finding(
        CODE,
        f"{counted(len(rows), 'sequence')} of {span(rows.step)} say that newer weights sampled them than the trainer "
        "has.",
        None,
        steps=(int(rows.step.min()), int(rows.step.max())),
        measured=float(rows.lag.min()),
        expected=0.0,
        unit="versions",
        evidence={"kind": "ahead"},
        next=("Look at where versions are counted on each side.",),
    )


def _gap_at(rows: Rows) -> dict[int, float]:
    """The mean gap by lag, of the eight smallest lags."""
    lags = np.unique(rows.lag)[:8]
    selected = ((int(lag), rows.subset(rows.lag == lag)) for lag in lags)
    return {
        lag: ratio_of_sums(selected_rows.sums["beyond"], selected_rows.sums["room"]) for lag, selected_rows in selected
    }
