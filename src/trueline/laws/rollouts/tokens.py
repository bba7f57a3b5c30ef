"""The tokens of a part of the table ``rollouts``, one after the other, and what is summed up of them by sequence.

N tokens of R sequences, B bets.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.laws.rollouts import e_values
from trueline.laws.rollouts.gaps import ceiling
from trueline.laws.rollouts.seen_tokens import NONE, SeenTokens, keys_of
from trueline.store.records.arrays import floats, to_numpy

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PROFILE: tuple[str, ...] = ("token 0", "tokens 1-5", "first half", "second half")
"""Where in a response a token is: the first, which follows from the prompt alone; the next five; the others by half."""
CLEARLY = 3.0
"""d is clearly negative where it is below minus this many times the rounding of a float32 log-probability, or 1e-4."""
BFLOAT16 = 2.0**-9
FLOAT32 = 2.0**-24
"""Largest relative error of rounding to nearest (IEEE 754; bfloat16 has 8 bits of precision)."""

FINE, ROOMY = 1e-5, 0.05
"""|d| that is not 0 and below the first is float32's where 1 - p is above the second: an error of a logit of bfloat16,
2^-9 of 1 or more, moves d by 0.05 * 2^-9 = 1e-4 there.
"""
TAIL = 1e-4
"""Probability by which the mass down to a token has to be above what a cut would have kept, beyond what errors of
logits explain of d: float32 sums it up to within 1e-5.
"""
LOGITS = 2 * 32 * FLOAT32
"""What float32 loses of d where two log-softmaxes subtract logits of up to 32, however likely the token is: 3.8e-6."""

FLAT = math.log(0.5)
"""Log-probability of the likeliest token below which a cut leaves others beside it."""
PADDED = -0.1
"""A recorded log-probability of exactly 0, so a probability of 1, is no rounding where the trainer's is below this."""
LIKELIER = 1.5
"""Times the probability of a token that others have to have before it is called none of the likeliest: an error of 0.1
of two logits, as bfloat16 leaves, turns 1.2 round.
"""
SINGLE = 0.1
"""Least probability, where nothing else was recorded, of a token that top-p, top-k or min-p leave alone: top-p below
that is hardly used, and min-p of 0.1 leaves one of less only among more than ten others.
"""

HARDLY = 0.05
"""Probability of all words that are no likelier than a token which was hardly sampled: 1 in 20 is by chance."""
OUTLYING = 5.0
"""Standard deviations, and a nat, above the entropy of a token that was hardly sampled, at any usual temperature."""

_NAMES = (
    *("logp_rollout", "logp_train", "logp_update", "entropy", "varentropy", "odds_rollout", "odds_train"),
    *("mass_above", "words_above", "logp_top"),
)


@dataclass(frozen=True)
class Tokens:
    """``columns`` has those of ``_NAMES`` as [N] arrays, NaN where not measured; ``sequence`` [N] is the index of the
    sequence, ``position`` that in it, ``length`` [R]; ``sampled`` [N] what the mask says. ``repeats`` says which of
    them, and of the trainer's likeliest, stood before. ``rounding`` [R] is the error of a logit that rounding may leave
    in the declared dtype, ``most_varentropy`` [R] a bound by the declared vocabulary, or by that of the largest models,
    and ``log_words`` [R] the logarithm of its size.
    """

    columns: Mapping[str, Floats]
    sequence: Ints
    position: Ints
    length: Ints
    sampled: Bools
    rounding: Floats
    most_varentropy: Floats
    log_words: Floats
    repeats: SeenTokens

    @property
    def counts(self) -> Bools:
        """[N] sampled, with a finite log-probability of both sides."""
        return self.sampled & np.isfinite(self.columns["logp_rollout"]) & np.isfinite(self.columns["logp_train"])

    @property
    def is_trainer_only(self) -> Bools:
        """[N] sampled, of a sequence of which the engine recorded nothing, so that the trainer's distribution alone can
        judge it.
        """
        has_rollout = self.total(np.isfinite(self.columns["logp_rollout"]).astype(np.float64)) > 0
        has_entropy = np.isfinite(self.columns["logp_train"]) & np.isfinite(self.columns["entropy"])
        return self.sampled & has_entropy & ~has_rollout[self.sequence]

    def varentropy(self) -> Floats:
        """[N] as recorded, else the bound by the vocabulary."""
        recorded = self.columns["varentropy"]
        return np.where(np.isfinite(recorded), np.maximum(recorded, 0.0), self.most_varentropy[self.sequence])

    def diff(self) -> Floats:
        """[N] logp_rollout - logp_train; 0 where a token does not count."""
        with np.errstate(invalid="ignore"):
            return np.where(self.counts, self.columns["logp_rollout"] - self.columns["logp_train"], 0.0)

    def beyond(self) -> Floats:
        """[N] by how much |d| is above what float32 loses of any log-probability."""
        return np.maximum(np.abs(self.diff()) - LOGITS, 0.0)

    def total(self, values_N: Floats) -> Floats:
        """[R, ...] sums by sequence."""
        return _total(values_N, self.sequence, len(self.length))

    def sums(self) -> dict[str, Floats]:
        """The sums of ``Rows``."""
        counts, d = self.counts, self.diff()
        p = np.exp(np.minimum(np.where(counts, self.columns["logp_train"], 0.0), 0.0))
        judged = counts & np.isfinite(self.columns["entropy"])
        rollout, train = self.columns["logp_rollout"], self.columns["logp_train"]
        present = self.sampled & np.isfinite(self.length[self.sequence])
        # a sequence of which the trainer has nothing was not lost by it: it was never asked
        has_train = self.total(np.isfinite(train).astype(np.float64))[self.sequence] > 0
        with np.errstate(over="ignore", invalid="ignore"):
            x = np.exp(np.minimum(-d, 50.0))
            # above 0 by more than rounding, or a token that the engine says it cannot have sampled
            impossible = present & ~np.isnan(rollout) & ((rollout > 1e-3) | np.isneginf(rollout))
            wide = _clear(self)
            columns: dict[str, Any] = {
                "tokens": counts,
                "diff": d,
                "abs": np.abs(d),
                "beyond": self.beyond(),
                "sq": d**2,
                "k3": np.where(counts, x - 1 + d, 0.0),
                "x": np.where(counts, np.minimum(x, e_values.CLIP), 0.0),
                "low": counts & (d < -wide),
                "high": counts & (d > wide),
                "room": np.where(counts, 1 - p, 0.0),
                "impossible": impossible,
                "padded": counts & (rollout == 0) & (train < PADDED) & self._has_likelier(),
                "lost": present & ~np.isnan(rollout) & (np.isneginf(train) | (np.isnan(train) & has_train)),
            }
            columns |= self._surprises(judged, d)
            columns |= self._odds() | self._shifts(counts) | self._updates()
            beyond = np.maximum(wide, self.rounding[self.sequence] * (1 - p))
            columns |= self._repeats(counts & (d < -beyond), counts & (d > beyond)) | self._likeliest()
            columns |= self._gains(d, beyond)
            columns["trainer_cut"] = (
                present & np.isfinite(rollout) & (np.isneginf(train) | ((train == 0) & (rollout < PADDED)))
            )
            roomy = counts & (1 - p > ROOMY)
            columns |= {"roomy": roomy, "fine": roomy & (d != 0) & (np.abs(d) < FINE)}
            # what is left out of a position's words moves all of the rest alike, the likeliest as well
            is_flat = counts & (self.columns["logp_top"] < FLAT)
            is_top = self.repeats.is_top if is_flat.any() else is_flat
            for name, which in (("likeliest", is_flat & is_top), ("unlikelier", is_flat & ~is_top)):
                columns |= {name: which, f"{name}_high": which & (d > wide)}
            # a cut keeps exp(-d) of the probability, and with it all that is likelier than the token
            surely = d - self.rounding[self.sequence] * (1 - p)
            upto = np.where(counts, self.columns["mass_above"] + p, np.nan)
            columns["tail"] = (surely > TAIL) & (upto > np.exp(-surely) + TAIL)
            columns["padded_unlikely"] = columns["padded"] & self._is_hardly_sampled()
            columns["zeros"] = counts & (rollout == 0) & (train < PADDED) & ~columns["padded"]
            columns |= {
                "own": self.is_trainer_only,
                "own_excess": np.where(self.is_trainer_only, -train - self.columns["entropy"], 0.0),
            }
        return {name: self.total(np.asarray(values, dtype=np.float64)) for name, values in columns.items()}

    def laws(self) -> dict[str, Floats]:
        """Sums of log e-values [R, B] by law; 0 where a token does not count."""
        counts, d = self.counts, self.diff()
        judged, alone = counts & np.isfinite(self.columns["entropy"]), self.is_trainer_only
        slack = np.where(counts, np.expm1(np.minimum(_rounding(self), 1.0)), 0.0)
        x = np.exp(np.clip(-d, -50.0, 50.0))
        surprise, entropy, varentropy = (
            np.where(judged | alone, values, 0.0)
            for values in (-self.columns["logp_train"], self.columns["entropy"], self.varentropy())
        )
        log_words = self.log_words[self.sequence]
        # a logit that is off by so much moves the surprise by that times the spread of the others
        moved, zero = self.rounding[self.sequence] * np.sqrt(varentropy), np.zeros_like(d)
        logs = {
            "above": np.where(counts[:, None], e_values.mean_above_one(x, slack), 0.0),
            "below": np.where(counts[:, None], e_values.mean_below_one(x, slack), 0.0),
            "cut": np.where(counts[:, None], e_values.cut(x, slack), 0.0),
            "sharper": np.where(judged[:, None], _sharper(d, surprise, entropy, varentropy, log_words), 0.0),
            "flatter": np.concatenate(
                [
                    np.where(judged[:, None], _flatter(d, surprise, entropy, varentropy, zero), 0.0),
                    self._avoiding(d),
                    self._hardly_sampled(d),
                ],
                1,
            ),
            "own_sharper": np.where(
                alone[:, None], _sharper(zero, surprise + moved, entropy, varentropy, log_words), 0.0
            ),
            "own_flatter": np.concatenate(
                [
                    np.where(alone[:, None], _flatter(zero, surprise, entropy, varentropy, moved), 0.0),
                    self._avoiding(),
                    self._hardly_sampled(),
                ],
                1,
            ),
        }
        return {name: self.total(values) for name, values in logs.items()}

    def _avoiding(self, d: Floats | None = None) -> Floats:
        """[N, B] bets that a likeliest token which stood before is sampled too seldom; without ``d`` of sequences of
        which the engine recorded nothing.
        """
        logp = self.columns["logp_top"]
        measured = np.isfinite(logp)
        if not measured.any():
            return np.zeros((len(logp), len(e_values.AVOIDING_BETS)))
        measured &= self.counts if d is not None else self.is_trainer_only
        p = np.exp(np.minimum(np.where(measured, logp, 0.0), 0.0))
        moved = p * (1 - p) * self.rounding[self.sequence] if d is None else np.zeros_like(p)
        logs = e_values.avoiding(np.zeros_like(p) if d is None else d, self.repeats.is_top, p - moved)
        return np.where((measured & self.repeats.top_again)[:, None], logs, 0.0)

    def _hardly_sampled(self, d: Floats | None = None) -> Floats:
        """[N, B] bets that tokens come which hardly should; without ``d`` of sequences of which the engine recorded
        nothing, whose logits may be off by rounding.
        """
        mass = self.columns["mass_above"]
        measured = np.isfinite(mass) & (self.is_trainer_only if d is None else self.counts)
        if not measured.any():
            return np.zeros((len(mass), len(e_values.TAIL_BETS)))
        moved = np.exp(2 * self.rounding[self.sequence]) if d is None else 1.0
        tail = np.where(measured, 1 - mass, 1.0) * moved
        return np.where(measured[:, None], e_values.hardly_sampled(np.zeros_like(mass) if d is None else d, tail), 0.0)

    def profile(self) -> tuple[Floats, Floats]:
        """[R, len(PROFILE)] sums of what |d| is ``beyond``, and of 1 - p, by position."""
        # short sequences have no late tokens
        late = self.position >= np.maximum(self.length[self.sequence] / 2, 6)
        where = np.select([self.position == 0, self.position <= 5, ~late], [0, 1, 2], 3)
        counts, d = self.counts, self.beyond()
        room = 1 - np.exp(np.minimum(np.where(counts, self.columns["logp_train"], 0.0), 0.0))
        at = np.equal.outer(where, np.arange(len(PROFILE))) & counts[:, None]
        return self.total(np.where(at, d[:, None], 0.0)), self.total(np.where(at, room[:, None], 0.0))

    def begins(self) -> Floats:
        """[R] the place of the first token that is further apart than rounding leaves; inf for none."""
        d, counts = np.abs(self.diff()), self.counts
        room = 1 - np.exp(np.minimum(np.where(counts, self.columns["logp_train"], 0.0), 0.0))
        is_beyond = counts & (d > np.maximum(_clear(self), self.rounding[self.sequence] * room))
        places = np.full(len(self.length), np.inf)
        np.minimum.at(places, self.sequence[is_beyond], self.position[is_beyond].astype(np.float64))
        return places

    def _is_hardly_sampled(self) -> Bools:
        """[N] whether a token is one that the trainer would hardly sample, by the probability of all no likelier ones,
        else by how far it is beyond the entropy.
        """
        tail, varentropy = 1 - self.columns["mass_above"], np.maximum(self.varentropy(), 0.0)
        surplus = -self.columns["logp_train"] - self.columns["entropy"]
        return np.where(np.isfinite(tail), tail < HARDLY, surplus > OUTLYING * np.sqrt(varentropy) + 1)

    def _has_likelier(self) -> Bools:
        """[N] whether the trainer surely has tokens that are likelier, so that no cut leaves this one alone: by the
        mass above it, else as the likeliest has a probability of exp(-entropy) or more, else by its own.
        """
        p, mass = np.exp(np.minimum(self.columns["logp_train"], 0.0)), self.columns["mass_above"]
        likeliest = np.exp(-np.maximum(self.columns["entropy"], 0.0))
        by_entropy = np.where(np.isfinite(likeliest), likeliest > LIKELIER * p, p < SINGLE)
        return np.where(np.isfinite(mass), mass > LIKELIER * p, by_entropy)

    def _surprises(self, judged: Bools, d: Floats) -> dict[str, Any]:
        surprise = np.where(judged, -self.columns["logp_train"], 0.0)
        excess = np.where(judged, surprise - self.columns["entropy"], 0.0)
        measured = judged & np.isfinite(self.columns["varentropy"])
        varentropy, surplus = np.where(measured, self.columns["varentropy"], 0.0), np.where(measured, excess, 0.0)
        diff = np.where(measured, d, 0.0)
        mass = np.where(self.counts & np.isfinite(self.columns["mass_above"]), self.columns["mass_above"], np.nan)
        columns: dict[str, Any] = {"judged": judged, "excess": excess, "varentropy": varentropy}
        columns |= {
            "d_excess": diff * surplus,
            "excess_sq": surplus**2,
            "d_var": diff * varentropy,
        }
        columns |= {
            "var_sq": varentropy**2,
            "excess_var": surplus * varentropy,
            "d_sq": diff**2,
            "d_own": diff,
        }
        outlying = measured & (surplus > OUTLYING * np.sqrt(np.maximum(varentropy, 0.0)) + 1)
        columns["outlying"] = np.where(outlying, surplus, 0.0)
        return columns | {"mass": np.isfinite(mass)}

    def _odds(self) -> dict[str, Any]:
        rollout, train = self.columns["odds_rollout"], self.columns["odds_train"]
        measured = self.sampled & np.isfinite(rollout) & np.isfinite(train)
        r, t = np.where(measured, rollout, 0.0), np.where(measured, train, 0.0)
        return {"odds": measured, "odds_rt": r * t, "odds_tt": t * t, "odds_rr": r * r}

    def _shifts(self, counts: Bools) -> dict[str, Any]:
        """Products of centred log-probabilities, at the same token and at the next and the last of the other side."""
        number = np.maximum(self.total(counts.astype(np.float64)), 1)[self.sequence]
        sides: list[Floats] = []
        for name in ("logp_rollout", "logp_train"):
            values = np.where(counts, np.clip(np.where(counts, self.columns[name], 0.0), -20.0, 0.0), 0.0)
            mean = self.total(values)[self.sequence] / number
            sides.append(np.where(counts, values - mean, 0.0))
        r, t = sides
        in_sequence = np.zeros(len(r), dtype=np.bool_)
        if len(r):
            in_sequence[:-1] = self.sequence[1:] == self.sequence[:-1]
        ahead, behind = np.zeros(len(r)), np.zeros(len(r))
        ahead[:-1], behind[:-1] = r[:-1] * t[1:], r[1:] * t[:-1]
        return {
            "corr_0": r * t,
            "corr_ahead": np.where(in_sequence, ahead, 0.0),
            "corr_behind": np.where(in_sequence, behind, 0.0),
            "corr_rr": r * r,
            "corr_tt": t * t,
        }

    def _repeats(self, low: Bools, high: Bools) -> dict[str, Any]:
        """Tokens that stood in this response before, and those that stood nowhere before, by the sign of d."""
        if (low | high).any():
            again, fresh = self.counts & self.repeats.again, self.counts & self.repeats.fresh
        else:  # two engines that agree: nobody asks where tokens stood before
            again = fresh = np.zeros(len(low), np.bool_)
        return {
            "again": again,
            "again_low": again & low,
            "again_high": again & high,
            "fresh": fresh,
            "fresh_low": fresh & low,
            "fresh_high": fresh & high,
        }

    def _gains(self, d: Floats, beyond: Floats) -> dict[str, Any]:
        """How much likelier to the engine tokens are that stood nowhere before, by whether the trainer's likeliest
        stood in the response: what a penalty takes from that the others have more of.
        """
        names = ("again", "fresh")
        columns: dict[str, Any] = {}
        if not (np.abs(d) > beyond).any():
            return dict.fromkeys((f"gain_{name}{part}" for name in names for part in ("", "_num")), np.zeros(len(d)))
        fresh = self.counts & self.repeats.fresh
        for name, stood in zip(names, (self.repeats.top_again, self.repeats.top_fresh), strict=True):
            columns[f"gain_{name}"] = np.where(fresh & stood, d, 0.0)
            columns[f"gain_{name}_num"] = fresh & stood
        return columns

    def _likeliest(self) -> dict[str, Any]:
        """How much more often the trainer's likeliest token was sampled than it should, where it stood before in this
        response and where it stood nowhere, and the variance of that.
        """
        logp, train = self.columns["logp_top"], self.columns["logp_train"]
        measured = self.sampled & np.isfinite(logp) & np.isfinite(train)
        names = ("again", "fresh")
        if not measured.any():
            return dict.fromkeys((*(f"top_{name}" for name in names), *(f"top_{name}_var" for name in names)), measured)
        p = np.exp(np.minimum(np.where(measured, logp, 0.0), 0.0))
        more = self.repeats.is_top - p
        columns: dict[str, Any] = {}
        for name, stood in zip(names, (self.repeats.top_again, self.repeats.top_fresh), strict=True):
            columns[f"top_{name}"] = np.where(stood & measured, more, 0.0)
            columns[f"top_{name}_var"] = np.where(stood & measured, p * (1 - p), 0.0)
        return columns

    def _updates(self) -> dict[str, Any]:
        update, train = self.columns["logp_update"], self.columns["logp_train"]
        measured = self.sampled & np.isfinite(update) & np.isfinite(train)
        return {"updates": measured, "update_abs": np.where(measured, np.abs(update - train), 0.0)}


def _sharper(d: Floats, surprise: Floats, entropy: Floats, varentropy: Floats, log_words: Floats) -> Floats:
    """[N, B] all bets on sharper sampling."""
    by_bound = e_values.sharper(d, surprise, entropy, varentropy)
    return np.concatenate([by_bound, e_values.sharper_by_own_spread(d, surprise, entropy, log_words)], axis=1)


def _flatter(d: Floats, surprise: Floats, entropy: Floats, varentropy: Floats, moved: Floats) -> Floats:
    """[N, B] all bets on flatter sampling, where rounding may have raised the surprise by ``moved``."""
    by_bound = e_values.flatter(d, surprise - moved, entropy, varentropy)
    return np.concatenate([by_bound, e_values.flatter_by_own_spread(d, surprise - moved, entropy, moved)], axis=1)


def tokens_of(table: Any) -> Tokens:
    """The tokens of a table with the columns of ``rollouts``: a list that is missing is NaN throughout."""
    rollout, train = _lengths(table, "logp_rollout"), _lengths(table, "logp_train")
    length = np.maximum(np.maximum(rollout, train), _lengths(table, "response_ids"))
    sequence = np.repeat(np.arange(len(length)), length)
    starts = np.cumsum(length) - length
    position = np.arange(len(sequence)) - starts[sequence]
    values = {name: _values(table, name, length, np.nan) for name in _NAMES}
    sampled = _values(table, "mask", length, 1.0) > 0
    declared, index = sampling_of(table)
    rounding = np.array([ceiling(facts.get("dtype")) for facts in declared] or [0.0])[index]
    log_words = np.array([e_values.log_words(facts.get("vocabulary")) for facts in declared] or [0.0])[index]
    bound = np.array([e_values.most_varentropy(facts.get("vocabulary")) for facts in declared] or [0.0])[index]

    def prompts() -> Ints:
        ids = floats(table["prompt_ids"].combine_chunks().flatten()).astype(np.int64)
        return keys_of(np.repeat(np.arange(len(length)), _lengths(table, "prompt_ids")), ids)

    repeats = SeenTokens(lambda name: _values(table, name, length, NONE).astype(np.int64), prompts, sequence, position)
    return Tokens(values, sequence, position, length, sampled, rounding, bound, log_words, repeats)


def per_token(table: Any, name: str, tokens: Tokens) -> Floats:
    """[N] a further column of lists of ``table``, of which ``tokens`` are; NaN where a sequence has none."""
    return _values(table, name, tokens.length, np.nan)


def sampling_of(table: Any) -> tuple[list[Mapping[str, Any]], Ints]:
    """What was declared of the sampling, each once, and [R] which of these a sequence has."""
    texts: Any = table["sampling"].fill_null("{}").combine_chunks().dictionary_encode()
    return [declared_in(text) for text in texts.dictionary.to_pylist()], to_numpy(texts.indices).astype(np.int64)


def declared_in(text: str) -> Mapping[str, Any]:
    """What a row of column ``sampling`` says; nothing where that is no object of JSON."""
    try:
        facts = json.loads(text)
    except ValueError:
        return {}
    return cast(Mapping[str, Any], facts) if isinstance(facts, dict) else {}


def _values(table: Any, name: str, length_R: Ints, absent: float) -> Floats:
    """[N] a column of lists, ``absent`` where a sequence has none or one of another length."""
    lengths, column = _lengths(table, name), table[name].combine_chunks()
    flat = floats(column.flatten())
    # as in nearly every log: no copy of all tokens
    if np.array_equal(lengths, length_R):
        return flat
    fits = lengths == length_R
    values = np.full(int(length_R.sum()), absent)
    values[np.repeat(fits, length_R)] = flat[np.repeat(fits, lengths)]
    return values


def _lengths(table: Any, name: str) -> Ints:
    return to_numpy(table[name].combine_chunks().value_lengths(), 0).astype(np.int64)


def _rounding(tokens: Tokens) -> Floats:
    """[N] by how much rounding may have moved d: both log-probabilities were kept in float32, or in bfloat16 where
    none of a side has more bits than that.
    """
    total = np.zeros(len(tokens.sequence))
    for name in ("logp_rollout", "logp_train"):
        values = tokens.columns[name]
        finite = np.isfinite(values)
        bits = np.where(finite, values, 0.0).astype(np.float32).view(np.uint32)
        coarse = bool(finite.any()) and not (bits & 0xFFFF).any()
        total += np.where(finite, np.abs(np.where(finite, values, 0.0)), 0.0) * (BFLOAT16 if coarse else FLOAT32)
    return total + 8 * FLOAT32


def _clear(tokens: Tokens) -> Floats:
    """[N] |d| above which two log-probabilities surely are no longer equal."""
    return np.maximum(CLEARLY * _rounding(tokens), 1e-4)


def _total(values_N: Floats, sequence_N: Ints, count: int) -> Floats:
    totals = np.zeros((count, *values_N.shape[1:]))
    if len(sequence_N):
        first = np.flatnonzero(np.concatenate([[True], np.diff(sequence_N) != 0]))
        totals[sequence_N[first]] = np.add.reduceat(values_N, first, axis=0)
    return totals
