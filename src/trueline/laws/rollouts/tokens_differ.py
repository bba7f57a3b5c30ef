"""Engine and trainer do not see the same tokens.

What it finds
-------------
Token ids of prompt or response that differ on the two sides, exactly, where both were recorded. Lists that have
another length than there are tokens (log-probabilities, a mask, with one value more). And by the
log-probabilities alone: sides that are shifted by one token, and responses that agree up to a position and differ from
there on, as after a text was tokenised again. With `trueline check RUN --ref REF`: greedy responses whose first tokens
are others than the reference's.

Why it matters
--------------
The trainer then credits tokens that were not sampled. Text that is decoded and encoded again comes back as other tokens
now and then, a chat template clears tool calls or adds a second BOS, labels are shifted once too often.

How it decides
--------------
Ids: compared one by one. Lengths: as they were recorded; a list that does not fit is
judged by no other check. Shift: the log-probabilities of one side correlate with those of
the other one token further by more than 0.8, and at the same token by less than half as much, over all sequences. From
one position on: all |d| before it (3 tokens or more) are a tenth at most of the usual |d| behind it, which is above
0.05; reported where that is so in more than one sequence of ten, by an e-process under the budget of the checks of
rollouts, unless it is one position in nearly all, or one number of tokens of prompt and response. Other tokens are 20
times as likely to one side as to the other where they begin, nearly all of them, and fewer behind; hardly any token is
that was sampled. Where less than half are, what one side thinks of the tokens still tells of the other, and some
responses are spared, they are the same, and were computed otherwise.
Against a reference (`laws/rollouts/greedy.py`): the first 20 tokens of prompts that both answered
greedily. An error of s of each logit, s that of the tokens before and at most what rounding leaves in the dtype, makes
another token likelier than one that leads by m nats with probability Q(m / (s sqrt 2)); reported where others come at
margins above 4 s more often than that, with a probability of at most 1e-6.

What it may miss
----------------
Without ids of the trainer (`train_prompt_ids`, `train_response_ids`): a prompt that differs, unless `prefill-diverges`
sees it; differences in less than a tenth of the sequences.

Example
-------
The response ids of 12 of 64 sequences of step 3 differ between engine and trainer, first at token 21.

Wrong and right
---------------
Wrong:

```python
ids = tokenizer(tokenizer.decode(rollout.token_ids)).input_ids  # need not be what was sampled
```

Right:

```python
ids = rollout.token_ids
```
"""

from __future__ import annotations

import re
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.laws.rollouts.evidence import find_excess, finding, span
from trueline.laws.rollouts.gap_begins import FEWEST, REACHED, TIMES, begin_kinds
from trueline.laws.rollouts.gap_shape import are_ids_equal
from trueline.laws.rollouts.gaps import ceiling_of
from trueline.laws.rollouts.onsets import BEFORE, Onsets, onsets_of
from trueline.laws.rollouts.rows import Rows, rows_of
from trueline.schema.columns.rollouts import MISFIT
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run
from trueline.store.records.arrays import to_numpy

CODE = "tokens-differ"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

CHANCE = 0.1
_SHIFTS = {
    1: "the next token",
    -1: "the token before",
    2: "two tokens later",
    -2: "two tokens before",
    3: "three tokens later",
    -3: "three tokens before",
}
NEARLY_ALL = 0.8
"""Share of the responses that are shifted from their first tokens on, or that differ from one place on, to be called
all of them: some are too short to show it.
"""
MOST = 0.5
"""Share of the first tokens that differ which are far apart, and of what the sides would be apart if they knew nothing
of each other, below which tokens are the same ones.
"""
_TOKENS = {
    "other-tokens": " To the trainer these tokens are others than to the engine.",
    "as-sampled": " The tokens are as if sampled: the same ones on both sides.",
}
FEWEST_SHIFTED = 2
"""Responses that are shifted from a token on."""
_NEXT = (
    "Hand the engine's own token ids to the trainer: never decode and encode a text in between.",
    "Compare one prompt as both sides have it, id by id: BOS, chat template, tool calls, system prompt, truncation.",
)


def check(run: Run) -> list[Finding]:
    """Findings of tokens that differ; raises ``CannotTell`` where neither ids nor log-probabilities are there."""
    exact = [part for side in ("prompt", "response") if (part := _of_ids(run, side)) is not None]
    exact += _of_lengths(run)
    if any(part.evidence["kind"] == "response" for part in exact):
        return exact  # log-probabilities of other tokens say nothing more
    try:
        rows = rows_of(run)
    except CannotTell:
        if exact:
            return exact
        raise
    shifted = _shifted(rows)
    return [*exact, *(shifted or _from_one_position(run, rows))]


def _of_ids(run: Run, side: str) -> Finding | None:
    """Where the ids of both sides are there and differ."""
    steps: list[int] = []
    positions: list[int] = []
    total = 0
    for table in cast(Any, run.kept("rollouts")).pieces(["step", f"{side}_ids", f"train_{side}_ids"]):
        compared = to_numpy(table[1].is_valid()) & to_numpy(table[2].is_valid())
        kept_rows = cast(list[dict[str, Any]], table.take(np.flatnonzero(compared)).to_pylist())
        total += len(kept_rows)
        for row in kept_rows:
            recorded, retokenized = row[f"train_{side}_ids"], row[f"{side}_ids"]
            if recorded != retokenized:
                steps.append(row["step"])
                positions.append(
                    next(
                        (i for i, (a, b) in enumerate(zip(recorded, retokenized, strict=False)) if a != b),
                        min(len(recorded), len(retokenized)),
                    )
                )
    if not steps:
        return None
    return finding(
        CODE,
        f"The {side} ids of {len(steps)} of {total} sequences differ between engine and trainer at "
        f"{span(np.array(steps))}, "
        f"first at token {min(positions)}.",
        None,
        steps=(min(steps), max(steps)),
        severity="error",
        measured=float(len(steps)),
        expected=0.0,
        unit="sequences",
        evidence={"kind": side, "first_token": min(positions)},
        next=_NEXT,
    )


def _of_lengths(run: Run) -> list[Finding]:
    """Where a list has another length than there are tokens, or a batch has it of other sequences: a finding a list."""
    steps: dict[str, list[int]] = {}
    examples: dict[str, re.Match[str]] = {}
    total = 0
    for table in cast(Any, run.kept("rollouts")).pieces(["step", "note"]):
        total += table.num_rows
        for row in cast(list[dict[str, Any]], table.to_pylist()):
            for note in (row["note"] or "").split("; "):
                if (match := MISFIT.match(note)) is not None:
                    steps.setdefault(match[1], []).append(row["step"])
                    examples.setdefault(match[1], match)
    return [_misaligned(examples[name], of_name, total) for name, of_name in steps.items()]


def _misaligned(example: re.Match[str], steps: list[int], total: int) -> Finding:
    name, kind = example[1], example[3]
    number, needed = (int(example[group].replace(",", "")) for group in (2, 4))
    differs = f"{counted(abs(number - needed), kind)} {'more' if number > needed else 'less'}"
    side = f"({number:,} for {needed:,}, in the first)"
    if kind == "sequence":
        claim = (
            f"{name} has {differs} than the batch at {span(np.array(steps))} {side}: which belongs to which is unknown."
        )
    else:
        claim = (
            f"{name} has {differs} than there are tokens in {len(steps):,} of {total:,} sequences of "
            f"{span(np.array(steps))} {side}: which belongs to which token is unknown, and it was not judged there."
        )
    return finding(
        CODE,
        claim,
        None,
        steps=(min(steps), max(steps)),
        severity="error",
        measured=float(number),
        expected=float(needed),
        unit=f"{kind}s",
        evidence={"kind": "lengths", "list": name, "sequences": len(steps)},
        next=(
            f"Print the lengths of {name} and of response_ids of one sequence: is a value of the prompt's last token, "
            "or of the end of the text, among them? Cut both at the same place.",
        ),
    )


def _shifted(rows: Rows) -> list[Finding]:
    def total(name: str) -> float:
        return float(rows.sums[name].sum())

    scale = np.sqrt(total("corr_rr") * total("corr_tt"))
    if scale <= 0 or float(rows.sums["tokens"].sum()) < 200:
        return []
    equal, ahead, behind = (total(f"corr_{name}") / scale for name in ("0", "ahead", "behind"))
    best = max(ahead, behind)
    if best < 0.8 or equal > best / 2:
        return []
    side = "ahead of" if ahead > behind else "behind"
    return [
        finding(
            CODE,
            f"The trainer's log-probabilities are those of the engine one token {side} them at {span(rows.step)}: they "
            f"correlate by {best:.2g}, and at the same token by {equal:.2g}.",
            None,
            steps=(int(rows.step.min()), int(rows.step.max())),
            severity="error",
            measured=equal,
            expected=1.0,
            unit="correlation at the same token",
            evidence={"kind": "shifted"},
            next=(
                "Shift logits against labels exactly once, and cut prompt and response at the same place on both "
                "sides.",
            ),
        )
    ]


def _shifted_rows(rows: Rows, shift_R: NDArray[np.int64], before_R: NDArray[np.int64]) -> Finding:
    blamed = rows.subset(shift_R != 0)
    is_whole = len(blamed) > NEARLY_ALL * len(rows) and float(np.median(before_R[shift_R != 0])) <= 1
    among = int(np.isin(rows.step, blamed.step).sum())
    shifts, numbers = np.unique(shift_R[shift_R != 0], return_counts=True)
    shift = int(shifts[numbers.argmax()])
    others = " The other sequences are as they should be." if among > len(blamed) else ""
    return finding(
        CODE,
        f"{'T' if is_whole else 'From some token on, t'}he engine's log-probabilities are the trainer's of "
        f"{_SHIFTS[shift]} in {len(blamed):,} of {counted(among, 'sequence')} of {span(blamed.step)}.{others}",
        None,
        steps=(int(blamed.step.min()), int(blamed.step.max())),
        severity="error",
        measured=float(len(blamed)),
        expected=0.0,
        unit="sequences",
        evidence={"kind": "shifted" if is_whole else "row-shifted", "shift": shift},
        next=(
            "Print tokens, mask and both log-probabilities of one of these responses around the first token that "
            "differs: find the token that only one list has.",
        ),
    )


def _from_one_position(run: Run, rows: Rows) -> list[Finding]:
    onsets = onsets_of(run, rows)
    onset_R = onsets.onset
    if int((onsets.shift != 0).sum()) >= FEWEST_SHIFTED:
        return [_shifted_rows(rows, onsets.shift, onsets.before)]
    crossing = find_excess(run, "onset", rows, onset_R >= 0, chance=CHANCE)
    if crossing is None:
        return []
    blamed = crossing.in_steps(rows) & (onset_R >= 0)
    middle = float(np.median(onset_R[blamed]))
    is_one_place = float((np.abs(onset_R[blamed] - middle) <= 1).mean()) > NEARLY_ALL
    # a text is another from other places on
    if is_one_place or "from-a-length" in begin_kinds(run, rows, ceiling_of(rows)):
        return []
    num_spared = _num_spared(rows, crossing.in_steps(rows), onset_R)
    token_kind = "ids-equal" if are_ids_equal(run, "response") else _whose_tokens(onsets, blamed, num_spared)
    kinds = ["from-one-position", token_kind]
    num, among = int(blamed.sum()), int(crossing.in_steps(rows).sum())
    if not num > CHANCE * among:
        return []
    return [
        finding(
            CODE,
            f"{num} of {among} responses of steps {crossing.first}-{crossing.last} agree on both sides up to a token, "
            f"and differ from there on (in the middle case from token {int(middle)} on)."
            f"{_TOKENS.get(kinds[-1], '')}",
            crossing,
            measured=num / among,
            expected=0.0,
            unit="share of responses",
            evidence={"kind": kinds},
            next=_NEXT,
        )
    ]


def _num_spared(rows: Rows, among_R: NDArray[np.bool_], onset_R: NDArray[np.int64]) -> int:
    """Sequences that agree to the end, of those that are longer than nearly all were when they began to differ."""
    reached = float(np.quantile(onset_R[among_R & (onset_R >= 0)], REACHED))
    is_equal_R = rows.gap < ceiling_of(rows) / TIMES
    return int((among_R & is_equal_R & (rows.sums["tokens"] > reached + BEFORE)).sum())


def _whose_tokens(onsets: Onsets, blamed_R: NDArray[np.bool_], num_spared: int) -> str:
    """Whether the first tokens that differ are other ones than were sampled: these are far apart, as hardly any token
    is that was sampled, and more of them than of those behind, where the text goes on. An engine that is off without
    sense leaves all far apart. Or whether the tokens are surely the same: what one side thinks of them tells of the
    other. Nothing is said where no sequence is spared, as where newer weights arrive while all are sampled.
    """
    first, behind = onsets.far[blamed_R].mean(axis=0)
    if first > NEARLY_ALL and behind < NEARLY_ALL * first:
        return "other-tokens"
    distance, unrelated = onsets.spread[blamed_R].sum(axis=0)
    is_same = first < MOST and distance < MOST * unrelated
    return "as-sampled" if is_same and num_spared >= FEWEST else "tokens-unclear"
