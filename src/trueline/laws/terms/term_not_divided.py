"""One term of the loss weighs as many times more as there are micro-batches.

What it finds
-------------
Gradient accumulation whose loss has a term beside the cross-entropy (the balance loss of a mixture of experts, a
z-loss, a divergence, a penalty), where only the cross-entropy is divided by the micro-batches, or by the tokens of all
of them. Hugging Face's Trainer divides what the model computes from its labels by the tokens of all micro-batches
(`num_items_in_batch`), and not what a model adds to that, as `router_aux_loss_coef`.

Why it matters
--------------
The gradients of micro-batches add up, and so does the term: with 8 of them it is 8 times what its coefficient says.
Nothing fails, and a change of the batch or of the number of GPUs changes what is trained.

How it decides
--------------
By the graph of the loss, at the first sampled steps and then at gaps that double: down from what `backward` is called
on through sums, and products and quotients of numbers. What the whole loss is multiplied or divided by is the same for
all terms and is left aside, as the division of Accelerate, Lightning or DeepSpeed and a loss scale are. The main term
is a cross-entropy, or else a regression. It is divided by the micro-batches where its own divisor is the number of
passes in the update that have it; or where it is a sum and its factor times the targets, added up over the update, and
over ranks if need be, is 1. A term beside it that is in each of these passes, and has neither that divisor nor one of
the main term's own, is a finding. It must be so at every step that was looked at.

The coefficient may have been divided before: 0.025 for 0.1 / 4. Where it is a shorter number times the micro-batches,
nothing is said, nor where factors add up to 1, as those of a weighted mean do.

What it may miss
----------------
Losses in compiled code; terms whose gradient a function of its own puts in (Megatron's `MoEAuxLossAutoScaler`); more
than 48 terms; coefficients that look as if they were divided; a cross-entropy of one's own whose divisor is another
than the micro-batches.

Example
-------
The loss divides its cross-entropy by the 4 micro-batches of an update, and not a term beside it (× 0.1): that counts
4 times in an update.

Wrong and right
---------------
Wrong:

```python
loss = cross_entropy(logits, y) / accumulation + 0.1 * balance
loss.backward()
```

Right:

```python
loss = (cross_entropy(logits, y) + 0.1 * balance) / accumulation
loss.backward()
```
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from trueline.judge.compared_ranks import MAX_SITES, data_parallel_ranks
from trueline.laws.terms.columns import LIKELIHOODS, REGRESSIONS, LossTerm
from trueline.laws.terms.loss_terms import StepRank, loss_terms
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.schema.text.words import ranks_text, steps_text
from trueline.store.reader import Run

CODE = "term-not-divided"
CALLS = {"": ("backward",)}
QUESTION = "weights"
NEEDS: tuple[str, ...] = ("loss_terms",)
ACROSS_RANKS = False

EQUAL = 1e-5
"""Relative distance within which a factor is a quotient of whole numbers: it may have been rounded to float32 three
times (2^-24 each), or to TensorFloat-32 nowhere."""
SUM = 1e-3
"""Relative distance within which the weights of all targets add up to 1: with 16 bits of a sum of losses, 2^-11."""
DIGITS = 6
"""Decimal digits of a coefficient: those of float32."""


@dataclass(frozen=True)
class _Undivided:
    """A ``term`` that is not divided by the ``micros`` micro-batches of an update, as ``main`` is; of several of one
    function the first.
    """

    main: str
    term: LossTerm
    micros: int


def check(run: Run) -> list[Finding]:
    """A Finding for each term that is not divided as the main one; raises ``CannotTell`` where no loss was read."""
    totals = _totals(run)
    seen = defaultdict[tuple[str, str], dict[StepRank, _Undivided]](dict)
    divided: list[StepRank] = []
    for key, terms in loss_terms(run).items():
        main, micros = _divided(terms, totals.get(key[0], math.nan))
        if not main:
            continue
        divided.append(key)
        for undivided in _undivided(terms, main, micros):
            seen[undivided.main, undivided.term.function][key] = undivided
    return [_finding(run, by_key, divided) for by_key in seen.values() if len(by_key) == len(divided)]


def _totals(run: Run) -> dict[int, float]:
    """By step, the weights that the targets of all ranks have together."""
    ranks, weights = data_parallel_ranks(run), defaultdict[int, list[float]](list)
    for (step, rank), terms in loss_terms(run).items():
        if rank in ranks:
            weights[step].append(sum(_weight(term) for term in main_terms(terms)))
    return {step: sum(of_ranks) for step, of_ranks in weights.items() if len(of_ranks) == len(ranks)}


def _weight(term: LossTerm) -> float:
    """What all targets of a summed cross-entropy weigh, beside what the whole loss is multiplied by; else NaN."""
    return math.nan if term.targets is None else term.targets * term.factor * term.alike


def main_terms(terms: Sequence[LossTerm]) -> list[LossTerm]:
    """Those that are the likelihood of targets, or else a regression to targets."""
    groups = ([term for term in terms if term.function in names] for names in (LIKELIHOODS, REGRESSIONS))
    return next((group for group in groups if group), list[LossTerm]())


def _divided(terms: Sequence[LossTerm], total: float) -> tuple[list[LossTerm], int]:
    """The main terms and the passes that have one, where they are divided by these, or by the targets of all of them;
    else none. ``total`` is what the targets of all ranks weigh.
    """
    main = main_terms(terms)
    in_pass = Counter(term.backward_pass for term in main for _ in range(term.alike))
    micros = len(in_pass)
    if micros < 2:
        return [], micros
    if all(_divides(term, micros) for term in main):
        # The mean of as many losses as there are passes is one of losses.
        return (main, micros) if max(in_pass.values()) != micros else ([], micros)
    is_one = any(abs(weight - 1) <= SUM for weight in (sum(map(_weight, main)), total))
    return (main, micros) if is_one else ([], micros)


def _divides(term: LossTerm, micros: int) -> bool:
    """Whether a term is divided by the micro-batches by itself. Of a regression only a quotient says so: 0.5 may be the
    weight of one of two.
    """
    by_factor = term.function not in REGRESSIONS and any(_is(factor, 1 / micros) for factor in term.multipliers)
    return by_factor or any(_is(divisor, micros) for divisor in term.divisors)


def _undivided(terms: Sequence[LossTerm], main: Sequence[LossTerm], micros: int) -> list[_Undivided]:
    """The terms in each pass that are not divided as the main ones are."""
    if _is_mean(terms):
        return []
    of_main = {term.backward_pass for term in main}
    terms = [term if term.backward_pass in of_main else _by_itself(term) for term in terms]
    places = Counter[tuple[int, str]]()
    others = defaultdict[tuple[str, int], list[LossTerm]](list)
    for term in terms:
        if term not in main:
            places[term.backward_pass, term.function] += 1
            others[term.function, places[term.backward_pass, term.function]].append(term)
    divisors = {divisor for term in main for divisor in term.divisors}
    is_exact = all(term.targets is not None for term in main)
    return [
        _Undivided(main[0].function, of_passes[0], micros)
        for of_passes in others.values()
        if len(of_passes) == micros
        and not any(_divides(term, micros) or divisors & set(term.divisors) for term in of_passes)
        and not _is_shared(of_passes)
        and (is_exact or not any(_may_be_folded(term, micros) for term in of_passes))
    ]


def _by_itself(term: LossTerm) -> LossTerm:
    """A term that another backward pass is called on than the main one: what is of all of that loss is its own."""
    multipliers, divisors = (*term.all_times, *term.multipliers), (*term.all_over, *term.divisors)
    return replace(term, all_times=(), all_over=(), multipliers=multipliers, divisors=divisors)


def _is_shared(of_passes: Sequence[LossTerm]) -> bool:
    """Whether a term is multiplied last by another number in each pass, as its share of the targets is one, or by
    numbers that add up to 1.
    """
    last = {(term.multipliers or term.divisors)[:1] for term in of_passes}
    sums = (sum(factors) for factors in zip(*(term.multipliers for term in of_passes), strict=False))
    return len(last) > 1 or any(abs(total - 1) <= SUM for total in sums)


def _is_mean(terms: Sequence[LossTerm]) -> bool:
    """Whether the terms of the first pass weigh 1 together, as those of a weighted mean of losses do."""
    first = [term for term in terms if term.backward_pass == terms[0].backward_pass]
    weights = [term.factor * term.alike if term.targets is None else _weight(term) for term in first]
    return _is(sum(weights), 1)


def _may_be_folded(term: LossTerm, micros: int) -> bool:
    """Whether a coefficient looks as one that was divided by the micro-batches before: times these it is shorter, or 1
    where it was another digit.
    """
    digits = [(_digits(factor), _digits(factor * micros)) for factor in term.multipliers]
    return any(len(undone) < len(now) or (undone == "1" != now and len(now) == 1) for now, undone in digits)


def _digits(number: float) -> str:
    """Decimal digits without zeros at the ends: "25" of 0.025."""
    return f"{abs(number):.{DIGITS - 1}e}".partition("e")[0].replace(".", "").strip("0")


def _is(number: float, whole: float) -> bool:
    return abs(number / whole - 1) <= EQUAL


def _finding(run: Run, by_key: Mapping[StepRank, _Undivided], divided: Sequence[StepRank]) -> Finding:
    steps, ranks = sorted({step for step, _ in by_key}), tuple(sorted({rank for _, rank in by_key}))
    undivided = max(by_key.values(), key=attrgetter("micros"))  # the last update of an epoch may have fewer
    micros, term = undivided.micros, undivided.term
    name = f"the {term.function}" if term.function else "a term"
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"The loss divides its {undivided.main} by the {micros} micro-batches of an update on "
        f"{ranks_text(ranks, all_ranks=run.ranks)}, and not {name} beside it{_factors_text(term)}: that counts "
        f"{micros} times in an update ({steps_text(steps, among=sorted({step for step, _ in divided}))}).",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=tuple(str(Site(step, 0, rank, "loss", "all")) for step, rank in sorted(by_key))[:MAX_SITES],
        measured=float(micros),
        expected=1.0,
        unit="times the term in an update",
        false_alarm_rate=0.0,
        evidence={"kind": term.function or "another-term", "micro_batches": micros, "steps": steps[:100]},
        next=(
            f"Divide the whole loss by the {micros} micro-batches, or the term as well; leave it if its "
            "coefficient was divided where it was set.",
        ),
    )


def _factors_text(term: LossTerm) -> str:
    """`` (× 0.1 × 4)``; '' for a term by itself."""
    words = [f"× {factor:.4g}" for factor in term.multipliers] + [f"/ {divisor:.4g}" for divisor in term.divisors]
    return f" ({' '.join(words)})" if words else ""
