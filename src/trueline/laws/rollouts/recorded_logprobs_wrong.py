"""Recorded log-probabilities are not those of the distribution that the tokens were sampled from.

What it finds
-------------
Tokens that cannot have been sampled from the distribution whose log-probabilities the engine recorded: they are too
likely (sampled at a lower temperature, from the top p or k, or greedily, while the log-probabilities are those before),
too unlikely (at a higher temperature, with a penalty), or the mean of p / q over them is above 1 (log-probabilities of
other tokens). And, exactly, log-probabilities that none can be: above 0, or -inf for a token that was sampled, or 0,
the probability 1, for many that are not the trainer's likeliest.

Why it matters
--------------
Importance weights, clipping and KL are computed of these numbers. Where they are those of another distribution, the
update is biased, and no metric of the difference of the two sides shows it: engines record `raw_logprobs` before
temperature by default (vLLM), and then both sides agree to the last bit.

How it decides
--------------
With p the trainer's distribution, q the recorded one and y the sampled token, the mean of
p(y) / q(y) is 1 whatever p and q are, and so is that of p(y) / q(y) times any function of y that has mean 1 under p.
The surprise -log p(y) has the entropy H as its mean under p, and the varentropy as its variance, both known from the
logits without estimation: so bets that tokens are likelier than H says, weighted by p / q, are e-values
(`laws/rollouts/e_values.py` has the proof), and lag, rounding and bugs of the model cancel. No threshold is drawn: the
bets win or they do not, under a budget of `false_alarms` (default 0.1) in 10,000 healthy steps for all checks of
rollouts together. The rounding of what was recorded is charged. Of a log that has means alone (verl's `kl` and `k3_kl`)
the mean of p / q is 1 + k3 - k1. Where the surprise is the entropy on average, to within a quarter of the gap, the
tokens are of the trainer's distribution, and what was recorded is not: the trainer divides by the temperature, and the
engine records what is before it (TRL issue 4159). So it is where all log-odds differ by one factor, and the product of
p / q over all tokens is above e^7, which has a chance of 1 in 1,000 for tokens of the recorded distribution.

Where nearly every token is less likely to the engine, the trainer normalises over less: over a cut, where the tokens
have an edge or one was declared, or without rows that pad the engine's vocabulary.

A cut that was made and not recorded shows as an edge: from some place on no token comes, and just before it they are as
dense as elsewhere, while a temperature thins them out on the way. Looked at are the probability above a token
(`mass_above`, top-p), that of the token over the likeliest's (`logp_top`, min-p), and its place in the order of all
(`words_above`, top-k).

Where the trainer's likeliest token and its log-probability p are recorded (`top_train`, `logp_top`), it has to come
with probability p. A penalty on repetition is that it comes too seldom where it stood in the response before (bets,
and 6 standard deviations for the word), and not where it stood nowhere. Where the probability above a token is recorded
(`mass_above`), a few that were hardly sampled are enough, as of a mask that is off by one. Words that are the trainer's
likeliest now and then and hardly ever come (chosen by other responses) were forbidden: that is no temperature.

What it may miss
----------------
Without entropy (`rl.of_logits`) only the mean above 1 is judged, and a temperature that both
sides leave out is invisible; without varentropy (the spread of the tokens takes its place) it takes more tokens.
Temperatures within a few percent of 1 take many tokens. Tokens that were not sampled (a tool's output, forced stops)
have to be masked, or they are reported; entropy has to be of the distribution that logp_train is of: at the declared
temperature, and of the cut distribution where the trainer reproduces top-p.

Example
-------
The tokens of steps 0-7 are more probable under the trainer than their recorded log-probabilities allow: -log p is 0.9
below the entropy on average, as if at a temperature of about 0.8.

Wrong and right
---------------
Wrong:

```python
llm = LLM(model)  # logprobs_mode="raw_logprobs": before temperature
llm.generate(prompts, SamplingParams(temperature=0.7, logprobs=0))
```

Right:

```python
llm = LLM(model, logprobs_mode="processed_logprobs")
llm.generate(prompts, SamplingParams(temperature=0.7, logprobs=0))
logp_train = log_softmax(logits / 0.7, -1)  # the trainer too
```
"""

from __future__ import annotations

import math

import numpy as np

from trueline.laws.rollouts import e_values
from trueline.laws.rollouts.cut_edges import never_sampled, read_cut
from trueline.laws.rollouts.evidence import (
    Crossing,
    as_trainer,
    declared_kinds,
    find_broken_law,
    find_crossing,
    finding,
    is_greedy,
    ratio_of_sums,
    rejects_engine,
    side_of,
    span,
)
from trueline.laws.rollouts.gaps import CEILING_OTHERWISE, ceiling_of
from trueline.laws.rollouts.rows import Means, Rows, means_of, rows_of
from trueline.laws.rollouts.temperatures import LEAST, slope_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

CODE = "recorded-logprobs-wrong"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

_FEWEST_PADDED = 4
"""Tokens, and at least one in 1,000."""
_FORCED = " Most of these tokens the trainer would hardly sample: the engine put them there, and they count as sampled."
_PENALTY = (
    "; the trainer's likeliest token comes too seldom where it stood in the response before, and only there, as with a "
    "penalty on repetition"
)
_LEAST_SPREAD = 0.05
"""Nats that tokens are too unlikely on average before it is asked which are: some come in healthy sampling, too."""
_FEWEST_CUT = 3
"""Tokens of which the trainer is certain, or that it excludes."""
_TOO_SELDOM = 6.0
"""Standard deviations below what is expected that repeated tokens come too seldom: one sum in 10^9 by chance."""
_NEXT = (
    "Look at which log-probabilities the engine returns (vLLM: logprobs_mode; SGLang: temp_scaled_logprobs): they must "
    "be those after temperature, top-p, top-k and penalties, or the trainer's and the engine's must both be without.",
    "Look at the mask: tokens that a tool or a forced stop wrote were not sampled, and must be masked.",
)


def check(run: Run) -> list[Finding]:
    """Findings of broken laws and impossible values; raises ``CannotTell`` where there is nothing to judge."""
    try:
        rows = rows_of(run)
    except CannotTell:
        means = means_of(run)
        if not np.isfinite(means.k3 - means.diff).any():
            raise
        return _of_means(run, means)
    padded = _padded(rows)
    laws = [] if is_greedy(rows) else [*_above(run, rows), *([] if padded else _unlike(run, rows) or _before(rows))]
    return [*_impossible(rows), *padded, *laws]


def _impossible(rows: Rows) -> list[Finding]:
    bad = rows.subset(rows.sums["impossible"] > 0)
    if not len(bad):
        return []
    number = int(bad.sums["impossible"].sum())
    return [
        finding(
            CODE,
            f"{counted(number, 'sampled token')} of {span(bad.step)} {'has' if number == 1 else 'have'} a recorded "
            "log-probability that no sampled token can have: above 0, or -inf.",
            None,
            steps=(int(bad.step.min()), int(bad.step.max())),
            severity="error",
            measured=float(number),
            expected=0.0,
            unit="tokens",
            evidence={"kind": "impossible"},
            next=("Look at what is recorded: probabilities instead of logarithms, or another token's?", *_NEXT[1:]),
        )
    ]


def _padded(rows: Rows) -> list[Finding]:
    """Missing values that were filled with 0. Greedy sampling has the probability 1 throughout, as was declared; a cut
    by top-p, top-k or min-p that leaves one token leaves the likeliest.
    """
    number, total = int(rows.sums["padded"].sum()), int(rows.sums["tokens"].sum())
    if is_greedy(rows) or number < max(_FEWEST_PADDED, total / 1000):
        return []
    blamed = rows.subset(rows.sums["padded"] > 0)
    are_forced = float(rows.sums["padded_unlikely"].sum()) > number / 2
    return [
        finding(
            CODE,
            f"{number:,} of {total:,} sampled tokens of {span(blamed.step)} have a recorded log-probability of exactly "
            "0, the probability 1, and the trainer has likelier ones, which no cut by top-p, top-k or min-p takes "
            "away: values that are missing, and filled with 0." + (_FORCED if are_forced else ""),
            None,
            steps=(int(blamed.step.min()), int(blamed.step.max())),
            severity="error",
            measured=float(number),
            expected=0.0,
            unit="tokens",
            evidence={"kind": ["padded", "hardly-sampled"] if are_forced else "padded"},
            next=(
                "Count the log-probabilities that the engine returns for one response, and its tokens: a stream may "
                "hand over each part once, and be read as if it held all so far.",
                _NEXT[1],
            ),
        )
    ]


def _above(run: Run, rows: Rows) -> list[Finding]:
    crossing = find_broken_law(run, rows, "above")
    if crossing is None:
        return []
    blamed = crossing.select(rows)
    mean = ratio_of_sums(blamed.sums["x"], blamed.sums["tokens"])
    kinds = (*declared_kinds(blamed), *side_of(blamed), *_trainer_cut(run, crossing, blamed))
    return [_mean_above(mean, crossing, *kinds)] if mean > 1 else []


def _mean_above(mean: float, crossing: Crossing, *declared: str) -> Finding:
    return finding(
        CODE,
        f"The mean of p_train / p_rollout over the tokens of steps {crossing.first}-{crossing.last} is {mean:.3g}, and "
        "cannot "
        "be above 1 for tokens that were sampled from the recorded distribution.",
        crossing,
        measured=mean,
        expected=1.0,
        unit="mean of p_train / p_rollout",
        evidence={"kind": ["mean-above-one", *declared]},
        next=_NEXT,
    )


def _unlike(run: Run, rows: Rows) -> list[Finding]:
    """Sharper or flatter than recorded, whichever wins more."""
    judged = {law: find_broken_law(run, rows, law) for law in ("sharper", "flatter")}
    best = {law: crossing for law, crossing in judged.items() if crossing is not None}
    if not best:
        return []
    law, crossing = min(best.items(), key=lambda item: item[1].false_alarm_rate)
    blamed = crossing.select(rows)
    excess = ratio_of_sums(blamed.sums["excess"], blamed.sums["judged"])
    slope = -ratio_of_sums(blamed.sums["excess"], blamed.sums["varentropy"])
    temperature = 1 / (1 + slope) if slope > -1 else math.inf  # NaN where no varentropy was recorded
    cut = read_cut(run, crossing.first, crossing.last) if law == "sharper" and not as_trainer(blamed) else None
    kinds = [
        law,
        *declared_kinds(blamed),
        *(["cut"] if cut else []),
        *(["cut-unseen"] if law == "sharper" and not cut and not float(blamed.sums["mass"].sum()) else []),
        *_trainer_cut(run, crossing, blamed),
        *(["repeats-avoided"] if _avoids_repeats(blamed) else []),
        *(_spread(blamed) if law == "flatter" else []),
        *(["same"] if _is_same_part(blamed) else ["apart"]),
    ]
    kinds += ["words-never"] if (num_never := never_sampled(run, crossing.first, crossing.last)) else []
    more, where = ("more", "below") if law == "sharper" else ("less", "above")
    side = f"The tokens of steps {crossing.first}-{crossing.last} are"
    if as_trainer(blamed):
        kinds.append("as-trainer")
        says = (
            f"{side} of the trainer's distribution, as -log p is its entropy on average, and their recorded "
            "log-probabilities of another."
        )
    else:
        as_if = f", as if at a temperature of about {temperature:.1f}" if math.isfinite(temperature) else ""
        as_if = f", as if {cut.says}" if cut else as_if
        as_if = _PENALTY if "repeats-avoided" in kinds else as_if
        as_if = (
            f"; {counted(num_never, 'word')} that should have come never did, as if forbidden" if num_never else as_if
        )
        on_average = f": -log p is {abs(excess):.2g} {where} the entropy on average{as_if}"
        fits = (excess < 0) == (law == "sharper")  # else only tokens weighted by p / q are so
        says = (
            f"{side} {more} probable under the trainer than their recorded log-probabilities allow"
            f"{on_average if fits else ''}."
        )
    return [
        finding(
            CODE,
            says,
            crossing,
            measured=excess,
            expected=0.0,
            unit="nats that -log p is above the entropy",
            evidence={
                "kind": kinds,
                "temperature": temperature if math.isfinite(temperature) else None,
                "kept": cut.mass if cut else None,
            },
            next=_NEXT,
        )
    ]


def _before(rows: Rows) -> list[Finding]:
    """All log-odds differ by one factor, and the tokens are of the trainer's distribution: what was recorded is before
    the temperature.
    """
    fresh = rows.subset(~(rows.lag > 0))
    slope, how = slope_of(fresh)
    if slope is None or abs(slope - 1) < LEAST or not rejects_engine(fresh):
        return []
    first, last = int(fresh.step.min()), int(fresh.step.max())
    return [
        finding(
            CODE,
            f"{how} {slope:.3g} times those of the trainer at steps {first}-{last}, and the tokens are of the "
            "trainer's distribution rather than of the recorded one: what was recorded is before a temperature.",
            None,
            steps=(first, last),
            measured=slope,
            expected=1.0,
            unit="slope of log-odds",
            evidence={
                "kind": ["flatter" if slope > 1 else "sharper", *declared_kinds(fresh), "spread-unknown", "as-trainer"],
                "temperature": slope,
            },
            next=_NEXT,
        )
    ]


def _is_same_part(rows: Rows) -> bool:
    """True if the two sides agree but for rounding, so that what was recorded is without the sampler's settings."""
    return ratio_of_sums(rows.sums["beyond"], rows.sums["room"]) < max(ceiling_of(rows), CEILING_OTHERWISE)


def _trainer_cut(run: Run, crossing: Crossing, rows: Rows) -> list[str]:
    """``trainer-cut`` where the trainer computes within a cut of its own: it is certain of tokens, or excludes some,
    that the engine is not; or nearly every token is less likely to the engine, and a cut was declared, or tokens end
    abruptly. Rows that pad the engine's vocabulary leave no edge.
    """
    is_certain = float(rows.sums["trainer_cut"].sum()) >= _FEWEST_CUT
    if is_certain or side_of(rows) != ["engine-below"]:
        return ["trainer-cut"] if is_certain else []
    # rows that pad the engine are sampled by nobody: its tokens thin out as they do elsewhere
    is_cut = "declared-cut" in declared_kinds(rows) or read_cut(run, crossing.first, crossing.last) is not None
    return ["trainer-cut"] if is_cut else []


def _avoids_repeats(rows: Rows) -> bool:
    """True if the trainer's likeliest token is sampled too seldom where it stood in the response before, and not where
    it stood nowhere.
    """
    again, fresh = (
        float(rows.sums[f"top_{name}"].sum()) / math.sqrt(max(float(rows.sums[f"top_{name}_var"].sum()), 1e-9))
        for name in ("again", "fresh")
    )
    return again < -_TOO_SELDOM and fresh > -_TOO_SELDOM / 2


def _spread(rows: Rows) -> list[str]:
    """``few-tokens`` where half of what the tokens are too unlikely, or more, is of some that were hardly sampled;
    ``all-tokens`` where it is not, and ``top-avoided`` where the trainer's likeliest comes too seldom also where it
    stood nowhere before.
    """
    excess = ratio_of_sums(rows.sums["excess"], rows.sums["judged"])
    if not float(rows.sums["varentropy"].sum()) > 0 or not excess > _LEAST_SPREAD:
        return ["spread-unknown"]
    few = float(rows.sums["outlying"].sum()) > float(rows.sums["excess"].sum()) / 2
    fresh = float(rows.sums["top_fresh"].sum()) / math.sqrt(max(float(rows.sums["top_fresh_var"].sum()), 1e-9))
    return ["few-tokens" if few else "all-tokens", *(["top-avoided"] if fresh < -_TOO_SELDOM else [])]


def _of_means(run: Run, means: Means) -> list[Finding]:
    x_T = 1 + means.k3 - means.diff
    measured_T = np.isfinite(x_T)
    slack = np.zeros(int(measured_T.sum()))
    crossing = find_crossing(
        run, "above", means.step[measured_T], e_values.mean_above_one(np.maximum(x_T[measured_T], 0.0), slack)
    )
    if crossing is None:
        return []
    mean = float(x_T[measured_T & (means.step >= crossing.first) & (means.step <= crossing.last)].mean())
    return [_mean_above(mean, crossing)] if mean > 1 else []
