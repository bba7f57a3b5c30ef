"""The first tokens of responses that two Runs sampled greedily from the same prompts: where the first other token is,
and whether rounding explains it by the margin that the likeliest token has there.

N positions that both judge, of which the tokens before are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from trueline.laws.rollouts.evidence import finding
from trueline.laws.rollouts.gaps import ceiling
from trueline.laws.rollouts.tokens import declared_in
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted
from trueline.store.reader import Run

FIRST = 20
"""Tokens of a response that are compared: after the first other one all are of another text."""
REAL = 4.0
"""Times the error of a logit, from which on a margin is no matter of rounding."""
LEAST = 1e-6
"""Least error of a logit that is reckoned with: what float32 loses of logits (``LOGITS`` in ``tokens``) and less."""
CHANCE = 1e-6
"""Most probability of a finding in a healthy pair of Runs, errors of logits taken as Gaussian."""


@dataclass(frozen=True)
class _Response:
    ids: tuple[int, ...]
    margin: tuple[float, ...]
    logp: tuple[float, ...]
    rounding: float
    step: int


@dataclass(frozen=True)
class _Prompt:
    """One prompt: the index of the first token that differs, -1 for none, with the margin there; margins of all that
    were compared; errors of logits, by d / (1 - p), of equal tokens; the rounding of the coarser dtype.
    """

    at: int
    margins: tuple[float, ...]
    errors: tuple[float, ...]
    rounding: float
    step: int


def first_tokens(run: Run, ref: Run) -> list[Finding]:
    """What the first tokens of greedy responses say of two Runs. Raises ``CannotTell`` where none can be compared."""
    if not run.kept("rollouts") or not ref.kept("rollouts"):
        raise CannotTell("not both Runs have rollouts", reason="not-recorded")
    ref_responses = dict(_greedy(ref))
    prompts = [
        _compare_responses(response, ref_responses[prompt])
        for prompt, response in _greedy(run)
        if prompt in ref_responses
    ]
    if not prompts:
        raise CannotTell(
            "no prompt was answered greedily in both Runs: declare sampling={'temperature': 0}, and sample some "
            "prompts alike",
            reason="no-data",
        )
    return _judge(prompts)


def _judge(prompts: list[_Prompt]) -> list[Finding]:
    rounding = max(prompt.rounding for prompt in prompts)
    errors = np.array([value for prompt in prompts for value in prompt.errors])
    error = max(min(float(np.sqrt((errors**2).mean())), rounding), LEAST) if len(errors) else rounding
    margins = np.array([margin for prompt in prompts for margin in prompt.margins])
    differing = [prompt for prompt in prompts if prompt.at >= 0]
    if differing and not any(prompt.margins[-1] for prompt in differing):
        raise CannotTell(
            f"greedy responses to {counted(len(differing), 'prompt')} differ from the reference's, and by what the "
            "likeliest token leads was not recorded: record odds_rollout, or log-probabilities of temperature 1",
            reason="not-recorded",
        )
    real = [prompt for prompt in differing if prompt.margins[-1] > REAL * error]
    certain = margins[margins > REAL * error] / (math.sqrt(2) * error)
    expected = float(sum(0.5 * math.erfc(value / math.sqrt(2)) for value in certain))
    if not real or _at_least(len(real), expected) > CHANCE:
        return []
    at_once = any(prompt.at == 0 for prompt in real)
    kinds = ["greedy", *(["at-once"] if at_once else ["later"] if len(real) >= FIRST else [])]
    first, steps = min(real, key=lambda prompt: prompt.at), np.array([prompt.step for prompt in real])
    return [
        finding(
            "tokens-differ",
            f"{len(real)} of {counted(len(prompts), 'prompt')} answered greedily in both Runs have another token than "
            f"the reference among the first {FIRST}, where rounding cannot choose between two: first token {first.at}, "
            f"where the likeliest one leads by {first.margins[-1]:.2g} nats and logits are {error:.1g} apart.",
            None,
            steps=(int(steps.min()), int(steps.max())),
            severity="error",
            measured=float(len(real)),
            expected=0.0,
            unit="prompts",
            evidence={
                "kind": kinds,
                "first_token": first.at,
                "margin": first.margins[-1],
                "error_of_logits": error,
                "by_rounding": len(differing) - len(real),
            },
            next=(
                "Compare prompt ids and weights first: the first token follows from these alone."
                if at_once
                else "Compare, in this order: prompt ids, digests of the weights of both engines, one prompt alone and "
                "in a batch, the engine without its cache, both in float32.",
            ),
        )
    ]


def _at_least(count: int, mean: float) -> float:
    """A bound on the probability of so many events where ``mean`` are expected (Poisson): mean^count / count!."""
    return math.exp(min(0.0, count * math.log(mean) - math.lgamma(count + 1))) if mean > 0 else 0.0


def _compare_responses(response: _Response, ref_response: _Response) -> _Prompt:
    length = min(len(response.ids), len(ref_response.ids), FIRST)
    at = next((i for i in range(length) if response.ids[i] != ref_response.ids[i]), -1)
    judged = length if at < 0 else at + 1
    margins = tuple(
        max((m for m in pair if not math.isnan(m)), default=0.0)
        for pair in zip(response.margin[:judged], ref_response.margin[:judged], strict=True)
    )
    equal_logps = zip(
        response.logp[: length if at < 0 else at], ref_response.logp[: length if at < 0 else at], strict=True
    )
    errors = tuple(
        (a - b) / max(1 - math.exp(min(b, 0.0)), 1e-6)
        for a, b in equal_logps
        if math.isfinite(a) and math.isfinite(b) and b < -1e-3
    )
    return _Prompt(at, margins, errors, max(response.rounding, ref_response.rounding), response.step)


def _greedy(run: Run) -> Iterator[tuple[tuple[int, ...], _Response]]:
    """Prompts, each once, and what was answered greedily, of the first step that has them."""
    names = ["step", "prompt_ids", "response_ids", "mask", "logp_rollout", "odds_rollout", "sampling"]
    prompts = set[tuple[int, ...]]()
    for table in cast(Any, run.kept("rollouts")).pieces(names):
        for row in cast(list[dict[str, Any]], table.to_pylist()):
            declared = declared_in(row["sampling"] or "{}")
            prompt = tuple(cast(list[int], row["prompt_ids"] or []))
            is_greedy = declared.get("temperature") == 0 or declared.get("top_k") == 1
            if not is_greedy or not prompt or prompt in prompts or not row["response_ids"]:
                continue
            prompts.add(prompt)
            ids = tuple(cast(list[int], row["response_ids"]))[:FIRST]
            logp, odds = (_first_values(row[name], len(ids)) for name in ("logp_rollout", "odds_rollout"))
            margin = tuple(max(map(_known_lead_or_zero, (_lead(p), o))) for p, o in zip(logp, odds, strict=True))
            yield prompt, _Response(ids, margin, logp, ceiling(declared.get("dtype")), row["step"])


def _first_values(values: list[float] | None, count: int) -> tuple[float, ...]:
    return tuple(values[:count]) if values is not None and len(values) >= count else (math.nan,) * count


def _lead(logp: float) -> float:
    """The least by which the likeliest token leads: the others share 1 - p."""
    return logp - math.log(-math.expm1(logp)) if logp < 0 else math.nan


def _known_lead_or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else max(value, 0.0)
