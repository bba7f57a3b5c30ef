"""Calls that clip gradients by their norm, as a Run has them: the norm that they clipped by, and the one they had.

K elements of one slice.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trueline.judge.series.update_rules import TOLERANCE, Array
from trueline.judge.stats.memoize import memoized
from trueline.schema.errors import CannotTell
from trueline.schema.formats import FORMATS
from trueline.store.reader import Run

ADDED = 1e-6
"""Epsilon that ``clip_grad_norm_`` of torch adds to the norm that it divides by."""

_SINGLE = FORMATS["float32"].unit


@dataclass(frozen=True)
class ClipCall:
    """One call on ``rank`` at ``step``, the one of this ``number`` there. ``reported_norm`` is the norm that it clipped
    by, NaN where that shows in its elements only, and ``norm_type`` of which order that is, None if unseen. ``shards2``
    and ``whole2`` are the squared 2-norms of what the rank holds of its gradients in shards, and whole, NaN where they
    were not computed; ``in_shards`` says whether it holds any of them in shards. ``scaled`` says that they still had
    the loss ``scale``. ``largest`` are the elements of the largest gradient. ``is_complete`` is whether the Run has all
    of these gradients. ``before`` and ``after`` are elements [K] of the gradients ``names``, and ``next_values`` the
    same ones when what comes next begins (none where they are gone): ``then`` says whether that is a 'backward'
    pass, which has ``added`` to them, or the 'update'. ``late`` calls came when ``step`` was over: its update had used
    these gradients, and no backward pass had begun since.
    """

    step: int
    rank: int
    number: int
    max_norm: float
    norm_type: float | None
    num_params: int
    num_grads: int
    largest: int
    is_complete: bool
    scaled: bool
    scale: float
    dtype: str
    reported_norm: float
    shards2: float
    whole2: float
    names: Sequence[str]
    dtypes: Sequence[str]
    before: Sequence[Array]
    after: Sequence[Array]
    in_shards: bool = False
    then: str = ""
    added: bool = False
    next_values: Sequence[Array] = ()
    late: bool = False

    @property
    def clips(self) -> bool:
        """True if the call made gradients smaller."""
        return self.ratio < 1 - TOLERANCE * self.unit

    @property
    def factor_since(self) -> float:
        """The one factor that all elements were multiplied by since; NaN where there is none."""
        after, later = (np.concatenate([np.zeros(0), *slices]) for slices in (self.after, self.next_values))
        tells = np.isfinite(after) & (after != 0)
        if after.shape != later.shape or not tells.any():
            return math.nan
        ratios = later[tells] / after[tells]
        factor = float(np.median(ratios))
        return factor if np.all(np.abs(ratios - factor) <= TOLERANCE * self.unit * abs(factor)) else math.nan

    @property
    def unit(self) -> float:
        """The coarsest unit roundoff of the norm, the factor and the gradients."""
        units = [FORMATS[name].unit for name in (self.dtype, *self.dtypes) if name in FORMATS]
        return max(units, default=_SINGLE)

    @property
    def ratio(self) -> float:
        """The median of what elements were multiplied by; NaN where none tells."""
        before, after = (np.concatenate([np.zeros(0), *slices]) for slices in (self.before, self.after))
        tells = np.isfinite(before) & np.isfinite(after) & (before != 0)
        return (
            float(np.median(after[tells] / before[tells])) if before.shape == after.shape and tells.any() else math.nan
        )

    @property
    def factor(self) -> float:
        """Factor on all elements by the norm that the call reported; NaN where it reported none."""
        return min(1.0, self.max_norm / (self.reported_norm + ADDED)) if math.isfinite(self.reported_norm) else math.nan

    @property
    def clipped_by(self) -> float:
        """The norm that it clipped by, from its elements where it did not say; NaN where these stayed as they were."""
        if math.isfinite(self.reported_norm):
            return self.reported_norm
        ratio = self.ratio
        return self.max_norm / ratio - ADDED if 0 < ratio < 1 - TOLERANCE * self.unit else math.nan

    @property
    def slack(self) -> float:
        """Largest relative error of a norm by rounding: a few roundings of what it is kept in, and of a sum of
        ``largest`` squares in float32, whose error grows with the root of their number (Higham and Mary, SIAM J. Sci.
        Comput. 41(5), 2019).
        """
        return TOLERANCE * (self.unit + math.sqrt(self.largest) * _SINGLE)


@dataclass(frozen=True)
class ClipNorm:
    """Three norms of one call: the one it clipped by, that of its ``whole`` gradients, and that of the part of them
    which its rank holds (``of_rank``).
    """

    call: ClipCall
    clipped_by: float
    whole: float
    of_rank: float


@memoized
def clip_calls(run: Run) -> tuple[ClipCall, ...]:
    """Every call before an update that was seen, by step, then rank. Raises ``CannotTell`` where there is none."""
    calls = [call for call in _all_calls(run) if not call.late]
    if not calls:
        raise CannotTell(
            "no call of clip_grad_norm_ or clip_grads_with_norm_ of torch.nn.utils was seen at a sampled step",
            reason="by-design",
        )
    return tuple(calls)


def calls_at(run: Run, step: int, rank: int | None) -> list[ClipCall]:
    """Calls before the update of a ``step`` on a ``rank``, None: on the lowest; empty where none was seen."""
    by_rank = _by_step(run).get(step, {})
    return by_rank.get(min(by_rank, default=-1) if rank is None else rank, [])


def late_calls(run: Run) -> list[ClipCall]:
    """Calls after an update, before the next backward pass, by step, then rank."""
    return [call for call in _all_calls(run) if call.late]


@memoized
def _by_step(run: Run) -> Mapping[int, Mapping[int, list[ClipCall]]]:
    calls: defaultdict[int, defaultdict[int, list[ClipCall]]] = defaultdict(lambda: defaultdict(list))
    for call in _all_calls(run):
        if not call.late:
            calls[call.step][call.rank].append(call)
    return calls


@memoized
def _all_calls(run: Run) -> tuple[ClipCall, ...]:
    values = run.lists("clip_values")
    return tuple(
        call
        for key, text in run.texts("clip_facts").items()
        if key in values
        for call in _calls(key, json.loads(text), values[key])
    )


@memoized
def clip_norms(run: Run) -> tuple[ClipNorm, ...]:
    """The calls whose norm is known, and all of whose gradients are 2-normed here, over ranks where these hold shards.
    Raises ``CannotTell`` as ``clip_calls`` does.
    """
    calls_by_number: defaultdict[tuple[int, int], list[ClipCall]] = defaultdict(list)
    for call in clip_calls(run):
        if call.num_grads and call.is_complete:
            calls_by_number[call.step, call.number].append(call)
    return tuple(norm for calls in calls_by_number.values() for norm in _norms(run, calls))


def _norms(run: Run, calls: Sequence[ClipCall]) -> Iterator[ClipNorm]:
    keys = {rank: env.replica_key for rank, env in run.env.items()}
    shards = {keys.get(call.rank, ""): call.shards2 for call in calls}
    if any(call.shards2 for call in calls) and len(shards) != len(set(keys.values())):
        return  # some rank's shard is missing, so that the whole norm is not known
    for call in calls:
        whole = math.sqrt(sum(shards.values()) + call.whole2)
        of_rank = math.sqrt(call.shards2 + call.whole2)
        if math.isfinite(whole) and whole > 0 and math.isfinite(call.clipped_by):
            yield ClipNorm(call, call.clipped_by, whole, of_rank)


def _calls(key: tuple[int, int], facts_of_calls: Sequence[dict[str, Any]], values: np.ndarray) -> Iterator[ClipCall]:
    feed = iter(np.asarray(values, dtype=np.float64))

    def take(num: int) -> Array:
        return np.array([next(feed) for _ in range(num)])

    # The order of the numbers is that in which ``laws/clipping/probe.py`` writes them.
    for number, facts in enumerate(facts_of_calls):
        slices = facts.pop("slices")
        reported_norm, shards2, whole2, scale = take(4).tolist()
        before, after = ([take(num) for _, num, _ in slices] for _ in range(2))
        late, is_complete = facts.pop("late", None), facts.pop("known")
        yield ClipCall(
            step=key[0] if late is None else late,
            rank=key[1],
            # Calls after the update get numbers of their own: they must not be merged with those before it.
            number=number if late is None else -1 - number,
            is_complete=is_complete,
            **facts,
            late=late is not None,
            next_values=[take(num) for _, num, _ in slices] if facts.get("then") else (),
            reported_norm=reported_norm,
            shards2=shards2,
            whole2=whole2,
            scale=scale,
            names=[name for name, _, _ in slices],
            dtypes=[dtype for _, _, dtype in slices],
            before=before,
            after=after,
        )
