"""The loss is divided by the micro-batches of an update twice.

What it finds
-------------
Gradient accumulation whose loop divides the loss by the micro-batches, and hands it to a `backward` that does so again:
that of DeepSpeed's engine, of Accelerate, of Lightning with `accumulate_grad_batches`, of Hugging Face's Trainer behind
a `compute_loss` of one's own. A loss that is divided by the tokens of all micro-batches, and by the micro-batches as
well. Gradients that are divided once more between backward and the update.

Why it matters
--------------
The gradient of an update is a quarter of what is meant with four micro-batches: the learning rate, the weight of what
does not divide, and the norm that clips are in effect others. The loss that is logged is right, or four times too
small, and nothing fails. Whoever changes the accumulation changes the training.

How it decides
--------------
By the graph of the loss, at the first sampled steps and then at gaps that double: down from what `backward` is called
on, through products with and quotients by numbers, to the mean that they are applied to. An update of n backward
passes, or of n batches, has a main term (a likelihood, a regression, or the only one) that is a mean, and two of its
divisors are n; or it is a sum, its targets weigh 1/n together, and one of its divisors is n. It is also said where one
divisor is n, and what the optimizer received at a few elements is 1/n of what backward left, at three steps or more and
all that tell. It must be so at every step of n passes that was looked at.

Another thing may have the same number. As many terms as n may be a mean of losses, and as many ranks a mean over these
where the reduction adds: both are left alone. For n = 2 a quotient of a likelihood that is the only term is asked for,
as 1/2 is a weight as well.

What it may miss
----------------
Losses in compiled code, and sums whose targets are not those of torch's cross-entropy; a last term that is weighted
among others; an accumulation by 2 of a regression; numbers that are multiplied before they divide.

Example
-------
The loss is divided by the 4 micro-batches of an update twice: its gradient is 1/4 of that of the mean over them.

Wrong and right
---------------
Wrong:

```python
with accelerator.accumulate(model):
    loss = criterion(model(x), y) / accelerator.gradient_accumulation_steps
    accelerator.backward(loss)  # divides as well
```

Right:

```python
with accelerator.accumulate(model):
    loss = criterion(model(x), y)
    accelerator.backward(loss)
```
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trueline.judge.compared_ranks import MAX_SITES, data_parallel_ranks
from trueline.laws.terms.columns import LIKELIHOODS, LossTerm
from trueline.laws.terms.loss_terms import StepRank, loss_terms
from trueline.laws.terms.term_not_divided import EQUAL, SUM, main_terms
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.schema.text.words import ranks_text, steps_text
from trueline.store.reader import Run

CODE = "divided-twice"
CALLS = {"": ("backward",)}
QUESTION = "weights"
NEEDS: tuple[str, ...] = ("loss_terms", "num_micro", "grads_factor", "group_reduce_factor")
ACROSS_RANKS = False

NEAR = 1e-3
"""Relative distance within which gradients are a whole share of those before, at a few elements."""
FEWEST_STEPS = 3
"""Steps at which gradients are divided again, for that to be no clipping."""

_CLAUSES = {
    "twice": "",
    "by-tokens-too": ", by their targets and by their number",
    "gradients-too": ", before backward and once more before the update",
}


@dataclass(frozen=True)
class _Update:
    """The main terms of one update on one rank, and by how many micro-batches they may be divided."""

    terms: Sequence[LossTerm]
    alone: bool
    micros: int


def check(run: Run) -> list[Finding]:
    """A Finding at most; raises ``CannotTell`` where no loss was read, no update has several passes, or the number of
    micro-batches is that of the ranks and what the reduction does is not known.
    """
    updates = _updates(run)
    if not updates:
        raise CannotTell("no update of several backward passes was seen", reason="by-design")
    for kind, is_so in (("twice", _is_divided_twice), ("by-tokens-too", _is_divided_by_tokens_too)):
        if all(is_so(update) for update in updates.values()):
            return _unless_of_ranks(run, updates, kind)
    again = _divided_again(run, updates)
    return _unless_of_ranks(run, again, "gradients-too") if again else []


def _updates(run: Run) -> Mapping[StepRank, _Update]:
    """Updates of as many passes as most have: the last one of an epoch may have fewer."""
    micros_TN, measured_TN = run.pivot("num_micro")
    rows = {int(step): row for row, step in enumerate(run.steps)}
    updates: dict[StepRank, _Update] = {}
    for (step, rank), terms in loss_terms(run).items():
        main = main_terms(terms) or list(terms)
        passes = {term.backward_pass for term in main}
        of_first = [term for term in terms if term.backward_pass == terms[0].backward_pass]
        at = rows[step], run.ranks.index(rank)
        batches = int(micros_TN[at]) if measured_TN[at] else 0
        # of two losses a batch, each has a backward pass of its own
        micros = batches if 1 < batches < len(passes) else len(passes)
        alone = sum(term.alike for term in of_first) == 1
        if micros > 1 and (alone or main_terms(terms)):
            updates[step, rank] = _Update(main, alone, micros)
    most = max((update.micros for update in updates.values()), default=0)
    return {key: update for key, update in updates.items() if update.micros == most}


def _is_divided_twice(update: _Update) -> bool:
    return all(term.is_mean and _num_divisions(term, update) >= 2 for term in update.terms) and not _is_mean(update)


def _is_divided_by_tokens_too(update: _Update) -> bool:
    """Whether the targets of all passes weigh 1/n together, where they weigh 1 without one division by n."""
    if any(term.targets is None or not _num_divisions(term, update) for term in update.terms) or _is_mean(update):
        return False
    total = sum((term.targets or 0) * term.alike * term.factor * term.common for term in update.terms)
    return abs(total * update.micros - 1) <= SUM


def _num_divisions(term: LossTerm, update: _Update) -> int:
    """How often a term is divided by the micro-batches, less how often it is multiplied by them. A factor of a term
    alone may be its weight among others.
    """
    quotients = sum(_is(divisor, update.micros) for divisor in (*term.all_over, *term.divisors))
    if update.micros == 2:
        return quotients if update.alone and term.function in LIKELIHOODS else 0
    multipliers = (*term.all_times, *term.multipliers) if update.alone else term.all_times
    products = sum(_is(factor, update.micros) for factor in multipliers)
    return quotients + sum(_is(factor, 1 / update.micros) for factor in multipliers) - products


def _is_mean(update: _Update) -> bool:
    """Whether there are as many main terms in a pass as micro-batches: one of the divisions may be over these."""
    in_pass = defaultdict[int, int](int)
    for term in update.terms:
        in_pass[term.backward_pass] += term.alike
    return max(in_pass.values()) == update.micros


def _divided_again(run: Run, updates: Mapping[StepRank, _Update]) -> Mapping[StepRank, _Update]:
    """The updates whose loss is divided by the micro-batches once, where all gradients are divided by them again."""
    factors_TN, measured_TN = run.pivot("grads_factor")
    rows = {int(step): row for row, step in enumerate(run.steps)}
    seen = {
        key: float(factors_TN[rows[key[0]], run.ranks.index(key[1])])
        for key in updates
        if measured_TN[rows[key[0]], run.ranks.index(key[1])]
    }
    again = {key: updates[key] for key in seen}
    if len({step for step, _ in seen}) < FEWEST_STEPS:
        return {}
    is_so = all(
        abs(factor * again[key].micros - 1) <= NEAR
        and not _is_mean(again[key])
        and all(term.is_mean and _num_divisions(term, again[key]) == 1 for term in again[key].terms)
        for key, factor in seen.items()
    )
    return again if is_so else {}


def _unless_of_ranks(run: Run, updates: Mapping[StepRank, _Update], kind: str) -> list[Finding]:
    """The Finding, unless one of the divisions may be that of a mean over ranks whose reduction adds."""
    ranks, micros = data_parallel_ranks(run), next(iter(updates.values())).micros
    of_one_model = len(run.ranks) // max(len(ranks), 1)
    if micros in (len(ranks), of_one_model) and (kind == "gradients-too" or not _averages(run, updates)):
        raise CannotTell(
            f"the loss is divided by {micros} twice, and there are {micros} micro-batches and {micros} ranks: one "
            "division may be over ranks",
            reason="undecidable",
        )
    return [_finding(run, updates, kind)]


def _averages(run: Run, updates: Mapping[StepRank, _Update]) -> bool:
    """Whether the reduction is known to average over ranks at these steps."""
    reduced = run.lists("group_reduce_factor", steps=sorted({step for step, _ in updates}))
    factors = [float(x) for row in reduced.values() for x in np.asarray(row, dtype=np.float64) if math.isfinite(x)]
    return bool(factors) and abs(float(np.median(factors)) - 1) <= SUM


def _is(number: float, whole: float) -> bool:
    return abs(number / whole - 1) <= EQUAL


def _finding(run: Run, updates: Mapping[StepRank, _Update], kind: str) -> Finding:
    steps, ranks = sorted({step for step, _ in updates}), tuple(sorted({rank for _, rank in updates}))
    micros = next(iter(updates.values())).micros
    looked = sorted({step for step, _ in loss_terms(run)})
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"The loss is divided by the {micros} micro-batches of an update twice{_CLAUSES[kind]}: its gradient is "
        f"1/{micros} of that of the mean over them ({ranks_text(ranks, all_ranks=run.ranks)}, "
        f"{steps_text(steps, among=looked)}).",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=tuple(str(Site(step, 0, rank, "loss", "all")) for step, rank in sorted(updates))[:MAX_SITES],
        measured=1 / micros,
        expected=1.0,
        unit="times the gradient of the mean over micro-batches",
        false_alarm_rate=0.0,
        evidence={"kind": kind, "micro_batches": micros, "steps": steps[:100]},
        next=(_ADVICE[kind],),
    )


_ADVICE = {
    "twice": "Divide in one place. engine.backward of DeepSpeed, accelerator.backward, Lightning's "
    "accumulate_grad_batches and Hugging Face's Trainer divide by themselves: hand them the loss as it is.",
    "by-tokens-too": "A sum over the targets of all micro-batches is divided by their number alone: leave out the "
    "division by the micro-batches, or take the mean of each.",
    "gradients-too": "Divide either the loss or the gradients by the micro-batches.",
}
