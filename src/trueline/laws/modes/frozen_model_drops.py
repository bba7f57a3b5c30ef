"""A model that nothing trains drops values: a teacher, a reference or a reward model was left in training mode.

What it finds
-------------
A second model beside the watched one, or a part of it beside the part that is trained, which is given the same batch,
returns nothing that has a gradient, has weights that stay as they are, and is in training mode, so that its dropout (or
stochastic depth) is on. `model.train()` of a module that holds the teacher turns the teacher's on, too. All ranks do so
alike as a rule, and comparing them shows nothing.

Why it matters
--------------
What it returns for one input is another each time: targets of a distillation, rewards, or log-probabilities of a
reference have noise in them that the trained model can only average away. It learns all the same, only worse, and a
divergence from a reference is never 0.

How it decides
--------------
By what is there, at the first sampled steps, then now and then: whether a call of another model drew random numbers of
torch, while a part of it that drops values was in training mode with a probability above 0, and returned nothing that
gradients come back through. It is a warning where that is so at three such steps or more, digests of some of its
weights were the same at all of them (gradients that it still has are those of a training before), and it was given a
tensor that the watched model was given, too. It is for information where its weights move, as those of an average of
the trained ones do (teachers of some methods are meant to drop: mean teachers), or where both models have no input in
common (a feature extractor whose noise may be wanted). Nothing is said of a model that is given one tensor several
times in a step, as Monte Carlo dropout is, or that is trained meanwhile, as the networks of a GAN.

A part of the watched model counts as such a model if none of its parameters has a gradient, it never returns what has
one, and in that step a part that is trained was given a tensor that it was given, too, and no part that is trained was
called afterwards on numbers that may be made of what it returned: on others than those of the batch, those that it or
they were given before, and those that they returned themselves. So nothing is said of a frozen backbone, with gradients
that pass through it or without, of layers under LoRA or an adapter, and of features in front of a head, also where
they are joined with others.

Batch normalisation in training mode is not dropout, and nothing is said of it: momentum teachers are meant to have it.

What it may miss
----------------
A teacher that is compiled, or is made after the first few steps; a copy of the batch, another augmentation of it, or
outputs that keep their gradient and are detached later; probabilities that no module has under a name such as `dropout`
or `drop_prob`. A teacher that is a part of the watched model, more than three modules deep, in a model of which a part
is compiled, or after which a part that is trained is called on something computed in between, as a pooled feature. A
frozen part whose output is added to that of a trained one, with nothing that is trained behind them, looks like a
teacher.

Example
-------
`Teacher` (called at train.py:57) is in training mode at 12 steps on all ranks, is called without gradients, and its
weights do not move: Teacher.drop and 2 more drop values (p up to 0.1), so that what it returns is noisy.

Wrong and right
---------------
Wrong:

```python
teacher.load_state_dict(torch.load("teacher.pt"))
with torch.no_grad():
    targets = teacher(x)
```

Right:

```python
teacher.load_state_dict(torch.load("teacher.pt"))
teacher.eval()
with torch.no_grad():
    targets = teacher(x)
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from trueline.judge.compared_ranks import sites_of
from trueline.laws.modes.columns import OtherModel, other_models
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, ranks_text
from trueline.store.reader import Run

CODE = "frozen-model-drops"
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("other_models",)
ACROSS_RANKS = False

MIN_STEPS = 3
"""Steps from which on it is no single call."""


@dataclass
class _ModelCalls:
    """A rank's calls of one model at ``steps``, with what they showed."""

    model: OtherModel
    steps: list[int] = field(default_factory=list[int])
    weights: set[int] = field(default_factory=set[int])
    shared: bool = False
    again: bool = False
    trained: bool = False

    def add(self, step: int, model: OtherModel, weights: int) -> None:
        """Add the calls of a step."""
        self.steps.append(step)
        self.weights.add(weights)
        self.shared |= model.shared
        self.again |= model.again
        self.trained |= model.trained

    @property
    def moves(self) -> bool:
        """True where its weights were not the same at all steps."""
        return len(self.weights) > 1

    @property
    def excused(self) -> bool:
        """True where it may drop on purpose."""
        # A model that has gradients and stays as it is was trained before, as a teacher is.
        return self.again or (self.trained and self.moves)


def check(run: Run) -> list[Finding]:
    """A Finding for each such model; raises ``CannotTell`` where nobody looked."""
    if not run.measured("other_models").any():
        raise CannotTell("no update was seen three steps or more after watching began", reason="not-recorded")
    calls_by_model: defaultdict[tuple[str, str, bool], dict[int, _ModelCalls]] = defaultdict(dict)
    for rank, models in _calls_by_rank(run).items():
        for calls in models.values():
            if len(calls.steps) >= MIN_STEPS and not calls.excused:
                # Without a tensor in common it may be a feature extractor, with weights that move an average.
                wrong = calls.shared and not calls.moves
                calls_by_model[calls.model.name, calls.model.called_at, wrong][rank] = calls
    return [_finding(run, by_rank, wrong=wrong) for (_, _, wrong), by_rank in calls_by_model.items()]


def _calls_by_rank(run: Run) -> Mapping[int, Mapping[int, _ModelCalls]]:
    """Calls by rank and model."""
    weights = run.lists("other_weights")
    calls_by_rank: defaultdict[int, dict[int, _ModelCalls]] = defaultdict(dict)
    for (step, rank), text in sorted(run.texts("other_models").items()):
        models = other_models(text)
        digests = weights.get((step, rank), ())
        if len(digests) == len(models):
            for model, digest in zip(models, digests, strict=True):
                calls_by_rank[rank].setdefault(model.key, _ModelCalls(model)).add(step, model, int(digest))
    return calls_by_rank


def _finding(run: Run, by_rank: Mapping[int, _ModelCalls], *, wrong: bool) -> Finding:
    ranks = tuple(sorted(by_rank))
    calls = by_rank[ranks[0]]
    model, moves = calls.model, calls.moves
    drops = listed([f"`{name}`" for name in model.drops])
    claim = (
        f"`{model.name}` (called at {model.called_at or 'an unknown line'}) is in training mode at "
        f"{counted(len(calls.steps), 'step')} on {ranks_text(ranks, all_ranks=run.ranks)} and is called without "
        f"gradients, and its weights {'move' if moves else 'do not move'}: {drops} drop values (p up to {model.p:g}), "
        "so that what it returns for one input is another each time."
    )
    eval_advice = (
        "Print model.training of it at its call: call model.eval() on it once, in front of the loop, and again after "
        "each train() of a module that holds it."
    )
    purpose_advice = (
        "If it is an average of the trained weights whose noise is meant (a mean teacher), leave it."
        if moves
        else "If its noise is meant, as in features for a model behind it, leave it."
    )
    return Finding(
        code=CODE,
        severity="warning" if wrong else "info",
        claim=claim,
        ranks=ranks,
        step_first=min(rank_calls.steps[0] for rank_calls in by_rank.values()),
        step_last=max(rank_calls.steps[-1] for rank_calls in by_rank.values()),
        sites=sites_of(calls.steps[0], ranks[:2], phase="fwd", names=("all",)),
        measured=float(len(calls.steps)),
        expected=0.0,
        unit="steps at which it drops values",
        false_alarm_rate=0.0,
        evidence={"kind": "moves" if moves else "still", "model": model.name, "called_at": model.called_at},
        next=(eval_advice,) if wrong else (eval_advice, purpose_advice),
    )
