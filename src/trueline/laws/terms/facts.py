"""What the loss of a micro-batch is the sum of, as a fact of a training; all facts of this law."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.facts.fact import Mark, Subject
from trueline.laws.terms.chance import chance, is_far_above_chance
from trueline.laws.terms.classes import classes, is_never_target, never_targets
from trueline.laws.terms.columns import LossTerm
from trueline.laws.terms.loss_terms import loss_terms
from trueline.laws.terms.ratios import clipping_of_ratios
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import listed
from trueline.store.reader import Run

MAX_TERMS = 6
"""Terms that one line has."""
FEWEST_LOOKS = 3
"""Steps at which terms were looked at, of which one is long after the first ones."""


def terms(run: Run) -> tuple[str, Any]:
    """What ``backward`` is called on, term by term, at the first step of the first rank that was looked at."""
    rows = loss_terms(run)
    ranks = data_parallel_ranks(run)[:1]
    keys = sorted(key for key in rows if key[1] in ranks)
    if not keys:
        raise CannotTell("no loss of the first rank was read")
    step, row = keys[0][0], rows[keys[0]]
    num_passes = len({term.backward_pass for term in row})
    first = [term for term in row if term.backward_pass == row[0].backward_pass]
    words = [_words(term, first) for term in first[:MAX_TERMS]]
    words += [f"{len(first) - MAX_TERMS} more"] if len(first) > MAX_TERMS else []
    text = " + ".join(words)
    common = _factors(first[0].all_times, first[0].all_over)
    text = f"({text}){common}" if common and len(first) > 1 else text + common
    if num_passes > 1:
        text += f", in the first of {num_passes} backward passes of an update"
    numbers = [
        {
            "function": term.function or None,
            "alike": term.alike,
            "factor": term.factor * term.common,
            "targets": term.targets,
            "value": _value(term, first),
        }
        for term in first
    ]
    value = {"terms": numbers, "passes": num_passes, "loss": row[0].loss}
    looks = [rows[key] for key in keys if len(rows[key]) == len(row)]
    never = [index for index in range(len(row)) if all(look[index].factor == 0 for look in looks)]
    if never and len(looks) >= FEWEST_LOOKS:
        # The weight of a term may begin at 0 and grow, so that one step says nothing.
        value |= {"times_zero": [row[index].function or None for index in never], "looks": len(looks)}
    return f"backward is called on {text} (step {step})", value


def counts_nothing(value: Mapping[str, Any]) -> str:
    """What is to be confirmed of terms that are multiplied by 0."""
    names = listed(list(dict.fromkeys(str(name or "a term") for name in value["times_zero"])))
    return f"{names} of the loss is multiplied by 0 at all {value['looks']} steps that were looked at"


def _words(term: LossTerm, of_pass: Sequence[LossTerm]) -> str:
    value = _value(term, of_pass)
    name = term.function or ("a loss" if len(of_pass) == 1 else "another term")
    alike = f"{term.alike} times " if term.alike > 1 else ""
    number = "" if value is None else f" {value:.4g}"
    targets = "" if term.targets is None else f" × {term.targets:.0f} targets"
    return alike + name + number + targets + _factors(term.multipliers, term.divisors)


def _value(term: LossTerm, of_pass: Sequence[LossTerm]) -> float | None:
    """The value of a term: measured, or, of the only one that was not, what it leaves of the whole loss."""
    if term.value is not None:
        return term.value
    unknown = [summand for summand in of_pass if summand.value is None]
    if len(unknown) > 1 or not term.factor * term.common:
        return None
    rest = term.loss / term.common
    for summand in of_pass:
        if summand.value is not None:
            number = summand.alike * (1 if summand.targets is None else summand.targets)
            rest -= summand.value * summand.factor * number
    return rest / (term.factor * term.alike)


def _factors(times: Sequence[float], divisors: Sequence[float]) -> str:
    return "".join([f" × {factor:.4g}" for factor in times] + [f" / {divisor:.4g}" for divisor in divisors])


SUBJECTS = (
    Subject(
        "loss-terms",
        "loss",
        "what backward is called on",
        terms,
        (
            Mark(
                "term-times-zero",
                lambda value: "times_zero" in value,
                counts_nothing,
                advice="Look at the weight of that term: with 0 it trains nothing.",
            ),
        ),
    ),
    Subject(
        "chance",
        "loss",
        "the loss without a look at the inputs",
        chance,
        # That last losses are not lower is no mark: of short trainings it says that they are short.
        (
            Mark(
                "first-loss-above-chance",
                is_far_above_chance,
                advice=(
                    "Look at how the last layer is drawn, whether logits are scaled, and whether labels are those "
                    "of the classes."
                ),
            ),
        ),
    ),
    Subject(
        "classes",
        "data",
        "classes that are targets",
        classes,
        (
            Mark(
                "class-never-target",
                is_never_target,
                never_targets,
                advice="Look at the labels: a class may be missing in the data, or labels may begin at 1.",
            ),
        ),
    ),
    Subject("probability-ratios", "loss", "ratios of probabilities", clipping_of_ratios),
)
