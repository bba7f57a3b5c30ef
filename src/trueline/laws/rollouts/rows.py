"""The rollouts of a Run, reduced to numbers per sequence: one pass over the table, a part at a time.

R sequences, T steps, N tokens, B bets, K columns. A token counts where the engine sampled it (``mask``) and both sides
have a finite log-probability for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.judge.stats.memoize import memoized
from trueline.laws.rollouts import e_values
from trueline.laws.rollouts.tokens import PROFILE, declared_in, tokens_of
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted
from trueline.store.reader import Run
from trueline.store.records.arrays import floats, to_numpy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_NOTES = 3
"""Kinds of note that are said of sequences."""
NUM_FLATTER = sum(map(len, (e_values.FLAT_BETS, e_values.OWN_SPREAD_BETS, e_values.AVOIDING_BETS, e_values.TAIL_BETS)))
LAW_BETS: Mapping[str, int] = {
    "above": len(e_values.HIGH_BETS),
    "below": len(e_values.LOW_BETS),
    "cut": len(e_values.CUT_BETS),
    "sharper": len(e_values.SHARP_BETS) + len(e_values.OWN_SPREAD_SHARP_BETS),
    "flatter": NUM_FLATTER,
    "own_sharper": len(e_values.SHARP_BETS) + len(e_values.OWN_SPREAD_SHARP_BETS),
    "own_flatter": NUM_FLATTER,
}


@dataclass(frozen=True, eq=False)
class Rows:
    """Numbers of R sequences, in the order of step, rank and row; sums are over tokens that count.

    ``sums`` has by name: ``tokens``; ``diff``, ``abs``, ``k3``, ``sq`` of d = logp_rollout - logp_train, ``beyond`` of
    |d| above what float32 loses of any; ``x`` of X = exp(-d), clipped; ``low`` tokens with d clearly negative; ``room``
    of 1 - p, which scales d; ``judged`` tokens with entropy, ``excess`` of surprise - entropy over them,
    ``varentropy``, ``outlying`` the same excess of those far beyond; ``padded`` tokens with a recorded log-probability
    of exactly 0 that the trainer thinks unlikely, ``padded_unlikely`` those that it would hardly sample, ``impossible``
    ones of which it is positive, -inf or NaN, ``lost`` those of the trainer; ``odds``, ``odds_rt``, ``odds_tt``,
    ``odds_rr`` of the log-odds; ``zeros`` tokens recorded with a log-probability of exactly 0 that the trainer thinks
    likeliest and not certain, ``trainer_cut`` such the other way round, and those that the trainer excludes; ``tail``
    tokens that no cut with their d leaves; ``likeliest``, ``unlikelier`` tokens where several are likely, with those of
    d clearly positive (``_high``); ``fine`` tokens that are as close as float32 alone computes, of ``roomy``
    ones that could show it; ``again``, ``fresh`` tokens that stood in the response before, and such as stood nowhere,
    with those of d below (``_low``) and above (``_high``) what rounding of logits leaves; ``top_again``, ``top_fresh``
    how much more often the trainer's likeliest token was sampled than it should, by where it stood, with the variances
    (``_var``); ``corr_0``, ``corr_ahead``, ``corr_behind`` of the two sides' log-probabilities, at the same token and
    shifted by one; ``own`` tokens of sequences of which the engine recorded nothing, ``own_excess`` of surprise -
    entropy over them. ``profile`` [R, len(PROFILE)] is ``beyond`` and ``profile_room`` sum 1 - p by position. ``law``
    are sums of log e-values [R, B]. ``begins`` is the place of the first token that is further apart than rounding
    leaves, inf for none. ``version`` is that of the weights that sampled and ``lag`` how many versions older
    these are than the trainer's, NaN unknown; ``allowed`` the lag that was declared.
    """

    step: Ints
    rank: Ints
    row: Ints
    sums: Mapping[str, Floats]
    law: Mapping[str, Floats]
    profile: Floats
    profile_room: Floats
    begins: Floats
    lag: Floats
    version: Floats
    allowed: Floats
    sampling: tuple[Mapping[str, Any], ...]
    sampling_index: Ints
    notes: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.step)

    def subset(self, keep_R: Bools) -> Rows:
        """Rows of the sequences where ``keep_R`` is true."""
        return Rows(
            step=self.step[keep_R],
            rank=self.rank[keep_R],
            row=self.row[keep_R],
            sums={name: values[keep_R] for name, values in self.sums.items()},
            law={name: values[keep_R] for name, values in self.law.items()},
            profile=self.profile[keep_R],
            profile_room=self.profile_room[keep_R],
            begins=self.begins[keep_R],
            lag=self.lag[keep_R],
            version=self.version[keep_R],
            allowed=self.allowed[keep_R],
            sampling=self.sampling,
            sampling_index=self.sampling_index[keep_R],
            notes=self.notes,
        )

    @property
    def gap(self) -> Floats:
        """[R] mean |d| over mean 1 - p: the size of an error of the logits that explains d (d of a token moves by
        (1 - p) times that of its logit). What float32 loses of any log-probability does not shrink with 1 - p, and is
        left out. NaN where no token counts.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.sums["tokens"] > 0, self.sums["beyond"] / np.maximum(self.sums["room"], 1e-9), np.nan)

    def declared(self, name: str) -> Any:
        """The value that all sequences were declared to be sampled with, None where they differ or do not say."""
        values = [self.sampling[int(index)].get(name) for index in np.unique(self.sampling_index)]
        return values[0] if values and all(value == values[0] for value in values) else None


@dataclass(frozen=True, eq=False)
class Means:
    """Of a log that has means alone: a row a step. NaN where the log has none."""

    step: Ints
    tokens: Floats
    diff: Floats
    k3: Floats
    abs: Floats


@memoized
def rows_of(run: Run) -> Rows:
    """The sequences of a Run; raises ``CannotTell`` where it has none with log-probabilities of both sides."""
    rows = _read_rollouts(run)[0]
    if not len(rows) or not rows.sums["tokens"].any():
        if len(rows) and rows.declared("engine") == "transformers":
            raise CannotTell("the trainer's own model samples: there is no second engine", reason="by-design")
        raise CannotTell(_why_none(run), reason="not-recorded" if not run.kept("rollouts") else "no-data")
    return rows


def own_rows_of(run: Run) -> Rows:
    """Sequences that the trainer's own weights sampled, of which the engine recorded nothing; there may be none."""
    rows = _read_rollouts(run)[0]
    return rows.subset((rows.lag == 0) & (rows.sums["own"] > 0)) if "own" in rows.sums else rows.subset(rows.lag < 0)


@memoized
def means_of(run: Run) -> Means:
    """The means of a log, by step."""
    return _read_rollouts(run)[1]


def unjudged_text(run: Run) -> list[str]:
    """Sentences on what of the rollouts could not be judged, the most frequent first; none where there is nothing."""
    if not run.kept("rollouts"):
        return []
    rows = _read_rollouts(run)[0]
    sentences = sorted(rows.notes.items(), key=lambda item: -item[1])
    says = [f"Rollouts: {note}, in {counted(number, 'sequence')}." for note, number in sentences[:MOST_NOTES]]
    if len(sentences) > MOST_NOTES:
        says.append(f"Rollouts: {counted(len(sentences) - MOST_NOTES, 'further note')} of this kind.")
    num_lost = int(rows.sums["lost"].sum()) if "lost" in rows.sums else 0
    if num_lost:
        says.append(
            f"Rollouts: the trainer has no finite log-probability of {counted(num_lost, 'sampled token')}, left out "
            "here."
        )
    return says


def _why_none(run: Run) -> str:
    if not run.kept("rollouts"):
        return "no rollouts were recorded: call trueline.rl.record, or import a log with `trueline import rl`"
    why = "no sampled token has log-probabilities of both sides, logp_rollout and logp_train"
    notes = _read_rollouts(run)[0].notes
    return f"{why}: {max(notes, key=lambda note: notes[note])}" if notes else why


@memoized
def _read_rollouts(run: Run) -> tuple[Rows, Means]:
    means, notes = list[Any](), dict[str, int]()
    parts: list[dict[str, Any]] = []
    for table in cast(Any, run.kept("rollouts")).pieces():
        of_means = to_numpy(table["mean_diff"].is_valid())
        if of_means.any():
            means.append(table.take(np.flatnonzero(of_means)))
            table = table.take(np.flatnonzero(~of_means))
        for declared in cast(list[str | None], table["note"].to_pylist()):
            for facts in declared.split("; ") if declared else ():
                notes[facts] = notes.get(facts, 0) + 1
        if table.num_rows:
            parts.append(_reduced(table))
    return _joined(parts, notes), _means(means)


def _reduced(table: Any) -> dict[str, Any]:
    tokens = tokens_of(table)
    columns: dict[str, Any] = {name: _int(table, name, -1) for name in ("step", "rank", "row")}
    columns |= {"sums": tokens.sums(), "law": tokens.laws()}
    columns["profile"], columns["profile_room"] = tokens.profile()
    columns["begins"] = tokens.begins()
    rollout, train = _float(table, "version_rollout"), _float(table, "version_train")
    columns["lag"], columns["version"] = train - rollout, rollout
    texts = [text or "{}" for text in cast(list[str | None], table["sampling"].to_pylist())]
    columns["sampling"] = texts
    return columns


def _joined(parts: Sequence[dict[str, Any]], notes: Mapping[str, int]) -> Rows:
    def joined(name: str, width: int = 0) -> Any:
        empty = np.zeros((0, width) if width else 0)
        return np.concatenate([empty, *(part[name] for part in parts)])

    step, rank, row = (joined(name).astype(np.int64) for name in ("step", "rank", "row"))
    order = np.lexsort((row, rank, step))
    names = list(parts[0]["sums"]) if parts else ["tokens"]
    sums = {name: np.concatenate([np.zeros(0), *(part["sums"][name] for part in parts)])[order] for name in names}
    law = {
        name: np.concatenate([np.zeros((0, width)), *(part["law"][name] for part in parts)])[order]
        for name, width in LAW_BETS.items()
    }
    texts = [text for part in parts for text in part["sampling"]]
    distinct = list(dict.fromkeys(texts))
    index = {text: offset for offset, text in enumerate(distinct)}
    sampling = tuple(declared_in(text) for text in distinct)
    sampling_index = np.array([index[text] for text in texts], dtype=np.int64)[order]
    lags = np.array([_number(declared.get("lag")) for declared in sampling] or [0.0])
    allowed = lags[sampling_index] if len(sampling_index) else np.zeros(0)
    return Rows(
        step=step[order],
        rank=rank[order],
        row=row[order],
        sums=sums,
        law=law,
        profile=joined("profile", len(PROFILE))[order],
        profile_room=joined("profile_room", len(PROFILE))[order],
        begins=joined("begins")[order],
        lag=joined("lag")[order],
        version=joined("version")[order],
        allowed=allowed,
        sampling=sampling,
        sampling_index=sampling_index,
        notes=notes,
    )


def _means(tables: Sequence[Any]) -> Means:
    names = ("tokens", "mean_diff", "mean_k3", "mean_abs_diff")
    step = np.concatenate([np.zeros(0, np.int64), *(_int(table, "step", -1) for table in tables)])
    columns = [np.concatenate([np.zeros(0), *(_float(table, name) for table in tables)]) for name in names]
    order = np.argsort(step, kind="stable")
    return Means(step[order], *(column[order] for column in columns))


def _int(table: Any, name: str, absent: int) -> Ints:
    return to_numpy(table[name], absent)


def _float(table: Any, name: str) -> Floats:
    return floats(table[name])


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def by_step(rows: Rows, values_R: Floats) -> tuple[Ints, Floats]:
    """The distinct steps [T], ascending, and the sums over the sequences of each [T, ...]."""
    steps, start = np.unique(rows.step, return_index=True)
    return steps, np.add.reduceat(values_R, start, axis=0) if len(start) else values_R[:0]
