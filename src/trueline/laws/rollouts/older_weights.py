"""Whether the engine sampled with the trainer's weights of an earlier step, by tokens that came again.

Prompts come again, and so do the first tokens after them. The same weights give the same token after the same tokens
the same log-probability, to within rounding; those of another step give another. So the engine's, where it is not the
trainer's of its own step, is compared with what the trainer had at earlier steps: as many steps back each time (a lag),
or at one and the same step (weights that were loaded anew).

Wherever an engine's value lies, it is closer than a share r of the gap to another value about as far away with a chance
of about r; so log 1 / r adds up to the nats by which agreement is no chance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.laws.rollouts import sync_rows
from trueline.laws.rollouts.rows import Rows
from trueline.store.reader import Run

Values = dict[int, dict[int, float]]
"""By a number for tokens up to one of a response, and by step."""

FIRST = 8
"""Tokens of a response that are looked at: hardly any two responses go on alike."""
MOST_SEQUENCES = 16_384
"""Sequences that are looked at."""
LEAST = 1e-3
"""Gap of a token that is compared, and a move of the trainer's log-probability that is one: a hundred times what
float32 leaves.
"""
CLOSER = 10.0
"""Times that the engine has to be closer to the older weights than to those of its step, over all tokens."""
CLOSEST = 1e-3
"""Least share of its gap that a token counts with: what is left of it is rounding."""
NATS = 20.0
"""Nats by which that may be no chance: 2 in 10^9, for each of the steps that it may be of."""
STEPS = 2
"""Steps at which it has to be so, which tells a lag from weights that stay."""

_COLUMNS = ("step", "rank", "row", "prompt_ids", "response_ids", "mask", "logp_rollout", "logp_train")


@dataclass(frozen=True)
class Older:
    """``lag`` steps back, or the weights of ``step`` again, to which it came ``back`` from newer ones; by so many
    ``tokens`` of steps ``first`` to ``last``.
    """

    lag: int | None
    step: int | None
    tokens: int
    first: int
    last: int


@dataclass
class _Agreement:
    """How far tokens are from the trainer's of their own step, and from those of an older one."""

    steps: set[int]
    gap: float = 0.0
    distance: float = 0.0
    nats: float = 0.0
    tokens: int = 0

    def add(self, step: int, gap: float, distance: float) -> None:
        self.steps.add(step)
        self.gap += gap
        self.distance += distance
        self.nats += math.log(gap / max(distance, CLOSEST * gap))
        self.tokens += 1

    @property
    def holds(self) -> bool:
        return self.nats > NATS and CLOSER * self.distance < self.gap and len(self.steps) >= STEPS


def older_weights(run: Run, rows: Rows, ceiling: float) -> Older | None:
    """The weights that the sequences beyond ``ceiling`` were sampled with, all of ``rows`` being of weights of their
    own step as far as was recorded; None where no token says so.
    """
    apart_R = rows.gap > ceiling
    if not apart_R.any():
        return None
    allowed = float(rows.allowed.max())
    engine, trainer = _values(run, rows, apart_R)
    lags, fixed = (
        defaultdict[int, _Agreement](lambda: _Agreement(set())),
        defaultdict[int, _Agreement](lambda: _Agreement(set())),
    )
    for now, then, gap, distance in _compared(engine, trainer):
        lags[now - then].add(now, gap, distance)
        fixed[then].add(now, gap, distance)
    # an engine that kept its weights since then did not go back to them: it was left out
    began = int(rows.step[apart_R].min())
    candidates = [(fits, lag, None) for lag, fits in lags.items() if fits.holds and lag > allowed]
    candidates += [
        (fits, None, step)
        for step, fits in fixed.items()
        if fits.holds and _moved_between(run, trainer, step, began, set(rows.step.tolist()))
    ]
    if not candidates:
        return None
    fits, lag, step = max(candidates, key=lambda candidate: candidate[0].nats)
    return Older(lag, step, fits.tokens, min(fits.steps), max(fits.steps))


def _compared(engine: Values, trainer: Values) -> Iterator[tuple[int, int, float, float]]:
    """Step and earlier step, the gap of a token, and how far the engine is from the trainer of the earlier step."""
    for tokens, of_steps in engine.items():
        train_at = trainer[tokens]
        for now, value in of_steps.items():
            gap = abs(value - train_at[now])
            # of a token that is as likely at both steps nothing follows
            if gap > LEAST:
                yield from ((now, then, gap, abs(value - train_at[then])) for then in train_at if then < now)


def _values(run: Run, rows: Rows, apart_R: NDArray[np.bool_]) -> tuple[Values, Values]:
    """The engine's log-probabilities of sequences with a gap, and the trainer's of all."""
    keys = zip(rows.step.tolist(), rows.rank.tolist(), rows.row.tolist(), strict=True)
    apart = dict(zip(keys, apart_R.tolist(), strict=True))
    engine, trainer = defaultdict[int, dict[int, float]](dict), defaultdict[int, dict[int, float]](dict)
    number = 0
    for table in cast(Any, run.kept("rollouts")).pieces(_COLUMNS):
        for row in cast(list[dict[str, Any]], table.to_pylist()):
            is_apart = apart.get((row["step"], row["rank"], row["row"]))
            if is_apart is None or not row["prompt_ids"]:
                continue
            if number >= MOST_SEQUENCES:
                return engine, trainer
            number += 1
            for tokens, rollout, train in _first_tokens(row):
                # all of a step are of the same weights, so that one is enough
                trainer[tokens].setdefault(row["step"], train)
                if is_apart:
                    engine[tokens].setdefault(row["step"], rollout)
    return engine, trainer


def _first_tokens(row: Mapping[str, Any]) -> Iterator[tuple[int, float, float]]:
    """A number for the tokens up to each of the first, and its log-probabilities, where it was sampled and has both."""
    so_far = hash(tuple(row["prompt_ids"]))
    ids, mask, *logps = (
        cast(list[Any] | None, row[name]) for name in ("response_ids", "mask", "logp_rollout", "logp_train")
    )
    if ids is None or None in logps:
        return
    sides = (ids, [1] * len(ids) if mask is None else mask, *(logp or [] for logp in logps))
    for token, sampled, rollout, train in zip(*(side[:FIRST] for side in sides), strict=False):
        # a masked token is part of what the next one depends on
        so_far = hash((so_far, token))
        if sampled and rollout is not None and train is not None and math.isfinite(rollout - train):
            yield so_far, rollout, train


def _moved_between(run: Run, trainer: Values, then: int, began: int, steps: set[int]) -> bool:
    """True if the trainer's weights moved from step ``then`` to one before ``began``, at which the engine had them."""
    newer = [step for step in steps if then < step < began]
    for train_at in trainer.values():
        if then in train_at and any(abs(train_at.get(step, train_at[then]) - train_at[then]) > LEAST for step in newer):
            return True
    # where no prompt came again at these steps, digests may tell
    digests: dict[int, set[Any]] = defaultdict(set)
    for row in sync_rows.rows_of(run):
        digests[row["step"]].add((row["name"], row["digest_train"]))
    syncs = [digests[step] for step in sorted(digests) if then <= step < began]
    return bool(newer) and any(before != after for before, after in pairwise(syncs))
