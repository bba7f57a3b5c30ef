"""The engine samples from another distribution than the trainer's policy: another temperature, or a part of it.

What it finds
-------------
A temperature that one side applies and the other does not, and top-p, top-k or another cut after which the engine's
log-probabilities are of the rest alone (`processed_logprobs`) while the trainer's are of all. Where the engine recorded
no log-probabilities, as where the trainer's own model samples: tokens that are more or less probable under the trainer
than what is sampled from it.

Why it matters
--------------
The importance ratio is then wrong for each token, in one direction: after a cut by top-p 0.9 every recorded
log-probability is too high by -log 0.9 or so, and the trainer pushes all of them down.

How it decides
--------------
A cut: the mean of p_train / p_rollout over sampled tokens is the probability that the
trainer gives to what the engine could have sampled: 1, or the mass that was kept. Ratios are clipped at 20 and 1 % is
allowed for what lies beyond, and the bet on a mean below that is an e-process under the budget of the checks of
rollouts (`laws/rollouts/e_values.py`). It is called a cut where hardly any token is less likely to the engine than to
the trainer, and half of the mass is kept. Of a log of means (verl's) it is 1 + k3 - k1.

A fifth of the tokens that stood in the response before are off by more than rounding in one direction, and hardly any
of those that stood nowhere: that is a penalty on repetition. Where the part that a cut leaves is one token, it is
recorded as certain. Where several tokens are likely, what a cut leaves out moves the likeliest as it does the others;
where that is as it was and others are likelier, they have log-probabilities of other tokens. Where tokens come that the
trainer thinks less likely than all that would be left, there is no cut,
but rows that pad a vocabulary.

A temperature: with T, all log-odds of two tokens are those of the trainer divided by T, which nothing else does. Where
log-odds of both sides are recorded (the engine's two likeliest tokens: `logprobs=2`), the slope of one on the other is
1 / T and less than 1 % of their variance remains. Else the difference d is regressed on what a temperature makes of it,
(H - S) and V, and at least 90 % of its variance has to be explained; that holds for temperatures from 0.4 to 2.5. The
slope must be off 1 by 2 % or more, and the tokens not be of the trainer's distribution rather than of the recorded one.

Without the engine's log-probabilities, tokens that the trainer's own weights sampled (`versions` equal) are judged by
law 2 with the trainer's distribution in place of the recorded one: -log p is its entropy on average. Entropies are
needed, and varentropies or the number of words (`sampling={"vocabulary": 151936}`), which bounds them.

What it may miss
----------------
A cut that keeps more than 97 % (99 % in long runs). A temperature without log-odds
and without entropies. Where the log-probabilities are raw, nothing of this shows: that is `recorded-logprobs-wrong`.

Example
-------
The log-odds of the engine are 1.43 times those of the trainer at steps 0-9, and nothing else differs:
it samples at 0.70 times the trainer's temperature.

Wrong and right
---------------
Wrong:

```python
logp_train = log_softmax(logits, -1)  # the engine sampled at temperature 0.7
```

Right:

```python
logp_train = log_softmax(logits / 0.7, -1)
```
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from trueline.laws.rollouts import e_values
from trueline.laws.rollouts.cut_edges import never_sampled
from trueline.laws.rollouts.evidence import (
    Crossing,
    Law,
    declared_kinds,
    find_broken_law,
    find_crossing,
    finding,
    is_greedy,
    ratio_of_sums,
    rejects_engine,
    share_of_unique_runs,
    side_of,
)
from trueline.laws.rollouts.gap_shape import gap_of
from trueline.laws.rollouts.gaps import ceiling_of
from trueline.laws.rollouts.rows import Means, Rows, by_step, means_of, own_rows_of, rows_of
from trueline.laws.rollouts.temperatures import LEAST, slope_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "sampling-mismatch"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

_FEWEST = 200
"""Tokens for a slope."""
_CLIP_OF_MEANS = 1.25
"""Means over many tokens are clipped here, so that bets on a mean below 1 may be larger."""
_STOOD = ("again", "fresh")
_FEWEST_STOOD = 100
"""Tokens that stood in the response before, and as many that stood nowhere."""
_MANY, _FEW = 0.2, 0.02
"""Share of the repeated tokens that are off by more than rounding in one direction, and of the others that are: a token
that is not penalised is never less likely. What does not ask where a token stood moves both groups alike: by chance a
fifth of 100 and no more than 2 of 100 come once in 10^5 groups at most, whatever the share of all.
"""
_FEWEST_GAINS, _GAINS = 50, 3.0
"""Tokens of a kind, and times by which the others gain where the likeliest was penalised: of a cut, or of rows that pad
a vocabulary, they gain alike.
"""
_WITHOUT_PENALTIES = (
    "Sample one batch with repetition_penalty=1, presence_penalty=0 and frequency_penalty=0: if it is not found there, "
    "sample so, or apply the penalty to the trainer's logits too."
)
_FEWEST_ZEROS = 3
"""Tokens recorded with a log-probability of exactly 0, the probability 1, of which the trainer is not certain."""
_FEWEST_BEYOND = 3
"""Tokens to which the trainer gives likelier ones with more probability than the engine keeps."""
_PADDED_KEEPS = 0.8
"""Least probability that words keep beside rows that pad them. These are fewer than one in ten of all rows (up to 512
of 32,000 and more), and nobody trained them.
"""
_PADDING = (
    "Print the number of rows of both heads and of the tokenizer, and the logits of the rows behind its last word: set "
    "them to -inf before the softmax."
)
_CUT = (
    "Compute the trainer's log-probabilities over the same part of the vocabulary (top-p, top-k, bad words), or record "
    "those of the engine before the cut and sample without one.",
)


_UNLIKE: Mapping[Law, tuple[str, str]] = {"sharper": ("more", "below"), "flatter": ("less", "above")}
_NEXT_UNRECORDED: Mapping[Law, tuple[str, ...]] = {
    "sharper": (
        "Look at all that the sampler applies and the trainer does not: temperature, top_k (50 by default in some "
        "generation_config.json), top_p, min_p, penalties, forbidden words.",
        "Look at the mask: tokens that a tool or a forced stop wrote were not sampled, and must be masked.",
    ),
    "flatter": (
        "Generate greedily from one prompt: text without sense says that the sampler has other weights, or another "
        "prompt.",
        "Look at temperature and penalties of the sampler, and at the mask: tokens that a tool wrote were not sampled.",
    ),
}


def check(run: Run) -> list[Finding]:
    """Findings of cuts and temperatures; raises ``CannotTell`` where there is nothing to judge."""
    try:
        rows = rows_of(run)
    except CannotTell:
        means = means_of(run)
        if not np.isfinite(means.k3 - means.diff).any():
            if len(blamed := own_rows_of(run)):
                return _unlike(run, blamed)
            raise
        return _cut_of_means(run, means)
    if is_greedy(rows):
        raise CannotTell("greedy sampling was declared: no distribution is sampled from", reason="by-design")
    fresh = rows.subset(~(rows.lag > 0))
    if hot := _temperature(fresh):
        return [*hot, *_cut(run, rows, tempered=True)]
    return _penalties(fresh) or _of_others(fresh) or _cut(run, rows, tempered=False)


def _unlike(run: Run, rows: Rows) -> list[Finding]:
    """Sharper or flatter than the trainer's own distribution, whichever wins more."""
    best: dict[Law, Crossing] = {}
    for law in _UNLIKE:
        if (crossing := find_crossing(run, law, *by_step(rows, rows.law[f"own_{law}"]))) is not None:
            best[law] = crossing
    if not best:
        return []
    law, crossing = min(best.items(), key=lambda item: item[1].false_alarm_rate)
    blamed = crossing.select(rows)
    excess, unique = (
        ratio_of_sums(blamed.sums["own_excess"], blamed.sums["own"]),
        share_of_unique_runs(run, crossing),
    )
    if (excess < 0) != (law == "sharper"):
        return []
    more, where = _UNLIKE[law]
    runs = f" {100 * unique:.0f} % of the runs of four tokens of a response stand in it once." * (law == "flatter")
    return [
        finding(
            CODE,
            f"The tokens of steps {crossing.first}-{crossing.last} are {more} probable under the trainer than what is "
            f"sampled from it: -log p is {abs(excess):.2g} {where} the entropy on average.{runs}",
            crossing,
            measured=excess,
            expected=0.0,
            unit="nats that -log p is above the entropy",
            evidence={"kind": ["unrecorded", law], "unique_of_four": None if math.isnan(unique) else unique},
            next=_NEXT_UNRECORDED[law],
        )
    ]


def _penalties(rows: Rows) -> list[Finding]:
    """What depends on whether a token stood in the response before, and on nothing else."""
    number = {
        name: int(rows.sums[name].sum())
        for name in (*_STOOD, *(f"{group}_{side}" for group in _STOOD for side in ("low", "high")))
    }
    if min(number[name] for name in _STOOD) < _FEWEST_STOOD:
        return _penalties_by_gains(rows)
    for side, word in (("low", "less"), ("high", "more")):
        again, fresh = (number[f"{group}_{side}"] / number[group] for group in _STOOD)
        if again < _MANY or fresh > _FEW:
            continue
        first, last = int(rows.step.min()), int(rows.step.max())
        return [
            finding(
                CODE,
                f"Of {number['again']:,} tokens that stood in the response before, {number[f'again_{side}']:,} are "
                f"{word} likely to the engine than to the trainer at steps {first}-{last}, and of "
                f"{number['fresh']:,} that stood nowhere before {number[f'fresh_{side}']:,}: the engine applies a "
                "penalty on repetition, presence or frequency, and the trainer does not.",
                None,
                steps=(first, last),
                measured=again,
                expected=fresh,
                unit="share of tokens beyond rounding",
                evidence={"kind": ["penalties", *declared_kinds(rows)]},
                next=(_WITHOUT_PENALTIES,),
            )
        ]
    return []


def _penalties_by_gains(rows: Rows) -> list[Finding]:
    """Where few tokens come again: tokens that stood nowhere are likelier to the engine where the trainer's likeliest
    stood before, as a penalty takes from that, and hardly elsewhere.
    """
    number, gain = ({name: float(rows.sums[f"gain_{name}{part}"].sum()) for name in _STOOD} for part in ("_num", ""))
    if min(number.values()) < _FEWEST_GAINS:
        return []
    again, fresh = (gain[name] / number[name] for name in _STOOD)
    if again < ceiling_of(rows) or again < _GAINS * abs(fresh):
        return []
    first, last = int(rows.step.min()), int(rows.step.max())
    return [
        finding(
            CODE,
            "Where the trainer's likeliest token stood in the response before, others are likelier to the engine "
            f"by {again:.2g} nats at steps {first}-{last}, and by {fresh:.2g} where it stood nowhere: the engine "
            "applies a penalty on repetition, presence or frequency, and the trainer does not.",
            None,
            steps=(first, last),
            measured=again,
            expected=fresh,
            unit="nats",
            evidence={"kind": ["penalties", *declared_kinds(rows)]},
            next=(_WITHOUT_PENALTIES,),
        )
    ]


def _of_others(rows: Rows) -> list[Finding]:
    """Where others are likelier to the engine and the likeliest token is not, though several are likely: no cut does
    that, as what it leaves out moves all of the rest alike.
    """
    number = {name: float(rows.sums[name].sum()) for name in ("likeliest", "unlikelier")}
    if min(number.values()) < _FEWEST_STOOD:
        return []
    likeliest, others = (float(rows.sums[f"{name}_high"].sum()) / number[name] for name in number)
    if likeliest > _FEW or others < _MANY or side_of(rows) != ["engine-above"]:
        return []
    first, last = int(rows.step.min()), int(rows.step.max())
    return [
        finding(
            CODE,
            f"{100 * others:.0f} % of the tokens that are not the likeliest are likelier to the engine than to the "
            f"trainer at steps {first}-{last}, and {100 * likeliest:.0f} % of the likeliest: the engine recorded "
            "log-probabilities of likelier tokens than were sampled.",
            None,
            steps=(first, last),
            measured=others,
            expected=likeliest,
            unit="share of tokens beyond rounding",
            evidence={"kind": "others-recorded"},
            next=("Print the ids beside the log-probabilities that the engine returns: are they those of the tokens?",),
        )
    ]


def _cut(run: Run, rows: Rows, *, tempered: bool) -> list[Finding]:
    crossing = find_broken_law(run, rows, "cut")
    if crossing is not None and _is_cut(blamed := crossing.select(rows)):
        return [
            _kept_mass(
                ratio_of_sums(blamed.sums["x"], blamed.sums["tokens"]), crossing, *_cut_kinds(run, crossing, blamed)
            )
        ]
    if not tempered and (mean := _one_sided(rows)) is not None:
        first, last = int(rows.step.min()), int(rows.step.max())
        crossing = Crossing(first, last, first, 0.0)
        return [_kept_mass(mean, crossing, *_cut_kinds(run, crossing, rows))]
    crossing = find_broken_law(run, rows, "below")
    if crossing is None or tempered:
        return []
    blamed = crossing.select(rows)
    mean = ratio_of_sums(blamed.sums["x"], blamed.sums["tokens"])
    if not mean < 1 or mean > _clipped_mean(blamed):
        return []
    return [
        finding(
            CODE,
            f"The mean of p_train / p_rollout over the tokens of steps {crossing.first}-{crossing.last} is {mean:.3g}: "
            f"the trainer gives {100 * (1 - mean):.2g} % of the probability to tokens that the engine does not sample.",
            crossing,
            measured=mean,
            expected=1.0,
            unit="mean of p_train / p_rollout",
            evidence={"kind": "mean-below-one"},
            next=("Compare the tokens and the log-probabilities of one response on both sides, one by one.",),
        )
    ]


def _clipped_mean(rows: Rows) -> float:
    """The mean of X = p_train / p_rollout, clipped at ``CLIP``, that a gap of this size leaves by itself: that of a
    log-normal X of mean 1, P(Z < (log CLIP - s²/2) / s), with s² the mean square of d.
    """
    spread = math.sqrt(ratio_of_sums(rows.sums["sq"], rows.sums["tokens"]))
    if not spread > 0:
        return 1.0
    return NormalDist().cdf((math.log(e_values.CLIP) - spread**2 / 2) / spread)


def _one_sided(rows: Rows) -> float | None:
    """The mean of p_train / p_rollout where nearly every token is likelier to the engine, and by more than rounding
    explains: what is left out is then too little for a bet. None where it is not so.
    """
    rows = rows.subset(~(rows.lag > 0))
    if float(rows.sums["high"].sum()) < _FEWEST or side_of(rows) != ["engine-above"]:
        return None
    mass_kept = ratio_of_sums(rows.sums["x"], rows.sums["tokens"])
    return mass_kept if gap_of(rows) > ceiling_of(rows) and 0.5 < mass_kept < 1 else None


def _is_cut(rows: Rows) -> bool:
    """True if hardly any token is less likely to the engine, which keeps half of the mass or more, and not all."""
    low = ratio_of_sums(rows.sums["low"], rows.sums["low"] + rows.sums["high"])
    return low < 0.05 and 0.5 < ratio_of_sums(rows.sums["x"], rows.sums["tokens"]) < 1


def _cut_kinds(run: Run, crossing: Crossing, rows: Rows) -> list[str]:
    """``exact-zeros``: single tokens were left, and recorded as certain. ``tail-sampled``: tokens come that the trainer
    thinks less likely than all that a cut would have left together, as of words without the rows that pad them;
    ``words-left-out``: the same where more is left out than such rows can have, or words before the last never come.
    """
    kinds = declared_kinds(rows)
    if float(rows.sums["zeros"].sum()) >= _FEWEST_ZEROS:
        return [*kinds, "exact-zeros"]
    if float(rows.sums["tail"].sum()) >= _FEWEST_BEYOND:
        mass_kept = ratio_of_sums(rows.sums["x"], rows.sums["tokens"])
        is_declared = "declared-words" in kinds
        may_pad = mass_kept > _PADDED_KEEPS and not is_declared
        may_pad = may_pad and not never_sampled(run, crossing.first, crossing.last)
        kinds.append("tail-sampled" if may_pad else "words-left-out")
    return kinds


def _kept_mass(mean: float, crossing: Crossing, *kinds: str) -> Finding:
    single = " Where that part is one token, its log-probability was recorded as exactly 0."
    zeros = single if "exact-zeros" in kinds else ""
    tail = (
        " Tokens come that no top-p, top-k or min-p would leave: the part may be the words, without the rows that pad "
        "the vocabulary."
        if "tail-sampled" in kinds
        else ""
    )
    return finding(
        CODE,
        f"At steps {crossing.first}-{crossing.last} the engine samples from a part of the vocabulary to which the "
        f"trainer gives {mean:.3g} of the probability on average, and records log-probabilities within that part."
        f"{zeros}{tail}",
        crossing,
        measured=mean,
        expected=1.0,
        unit="probability kept",
        evidence={"kind": ["cut-support", *kinds] if kinds else "cut-support"},
        next=(_PADDING,) if "tail-sampled" in kinds else _CUT,
    )


def _cut_of_means(run: Run, means: Means) -> list[Finding]:
    x_T = 1 + means.k3 - means.diff
    measured_T = np.isfinite(x_T)
    bets = np.array([0.3, 1.0, 3.0])
    gain = 1 - e_values.TAIL - np.clip(x_T[measured_T], 0.0, _CLIP_OF_MEANS)
    crossing = find_crossing(run, "below", means.step[measured_T], np.log1p(np.multiply.outer(gain, bets)))
    if crossing is None:
        return []
    mean = float(x_T[measured_T & (means.step >= crossing.first) & (means.step <= crossing.last)].mean())
    return [_kept_mass(mean, crossing)] if mean < 1 else []


def _temperature(rows: Rows) -> list[Finding]:
    among = rows.subset(rows.gap > ceiling_of(rows))  # requests may have temperatures of their own
    slope, how = slope_of(among)
    if slope is None or abs(slope - 1) < LEAST or rejects_engine(among):  # then it is what was recorded that is wrong
        return []
    first, last = int(among.step.min()), int(among.step.max())
    part = "" if len(among) == len(rows) else f" in {len(among):,} of {counted(len(rows), 'sequence')}"
    return [
        finding(
            CODE,
            f"{how} {slope:.3g} times those of the trainer{part} at steps {first}-{last}, and nothing else differs: "
            "the engine "
            f"samples at {1 / slope:.3g} times the trainer's temperature.",
            None,
            steps=(first, last),
            measured=slope,
            expected=1.0,
            unit="slope of log-odds",
            evidence={"kind": "temperature", "temperature": 1 / slope},
            next=(
                f"Divide the trainer's logits by {1 / slope:.3g} where log-probabilities are computed, in both "
                "passes, or "
                "sample at temperature 1.",
            ),
        )
    ]
