"""The target of a token is not the next one, as a language model's is.

What it finds
-------------
Labels that are shifted twice, by the collator and again in the model, so that each position is trained to predict the
token after the next; on all ranks or on some. Labels that are the token itself, or the one before, are told for
information where all ranks have them: an autoencoder or a copying task means them.

Why it matters
--------------
The loss falls, to a higher level, and what is trained predicts every other token. All ranks share it, and no curve
shows it. Models of transformers shift `labels` themselves; collators that shift them as well are a common mistake.

How it decides
--------------
By equality. At the first 16 sampled steps, and then now and then, the targets of the only cross-entropy below the loss
are compared with the token ids that the model was called on, 1 place before each position to 3 places after it. A place
counts where all targets that have a token there are equal to it, 64 or more, and not all are at the next one. Outputs
that are cut in front of the loss (`logits[:, 1:]`) are counted from where they begin. Labels
that are right are the next token wherever they count, whatever the text, so that there is no false alarm.

What it may miss
----------------
Labels of which some are something else; models that get embeddings, cross-entropies that are fused, compiled or several
(as for the tokens further on, which some models predict too); outputs that are cut at the wrong end before the loss.

Example
-------
Each target on all ranks is the token 2 places on: labels are shifted twice.

Wrong and right
---------------
Wrong:

```python
batch = {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}
loss = AutoModelForCausalLM.from_config(config)(**batch).loss  # shifts the labels again
```

Right:

```python
batch = {"input_ids": ids, "labels": ids}
```
"""

from __future__ import annotations

from collections.abc import Mapping

from trueline.judge.compared_ranks import sites_of
from trueline.judge.series.target_places import FEWEST, NEXT, target_places
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import ranks_text
from trueline.store.reader import Run

CODE = "labels-misplaced"
CALLS = {"": ("backward",)}
QUESTION = "mask"
NEEDS: tuple[str, ...] = ("target_places",)
ACROSS_RANKS = False

_TARGET_BY_OFFSET = {0: "the input token at the same place", -1: "the token before"}
_WHY_BY_OFFSET = {0: "labels are not shifted", -1: "labels are not those of the next token"}


def check(run: Run) -> list[Finding]:
    """A Finding for each wrong place; raises ``CannotTell`` where targets are no tokens of the input."""
    offsets = target_places(run)
    if all(offset is None for offset in offsets.values()):
        raise CannotTell(
            f"the targets of the cross-entropy are no tokens that the model was called on, or fewer than {FEWEST}"
            if offsets
            else "no targets of a single cross-entropy were seen that go with token ids that the model was called on",
            reason="undecidable" if offsets else "not-recorded",
        )
    wrong = {offset for offset in offsets.values() if offset is not None and offset != NEXT}
    return [_finding(run, offset, offsets) for offset in sorted(wrong)]


def _finding(run: Run, offset: int, offset_by_rank: Mapping[int, int | None]) -> Finding:
    ranks = tuple(sorted(rank for rank, rank_offset in offset_by_rank.items() if rank_offset == offset))
    steps = sorted({step for step, rank in run.lists("target_places") if rank in ranks})
    # Ranks of one job that are right show that the others are not meant to be as they are.
    ranks_differ = NEXT in offset_by_rank.values()
    target = _TARGET_BY_OFFSET.get(offset, f"the token {offset} places on")
    contrast = ", and the next one on the others" if ranks_differ else ""
    location = ranks_text(ranks) if ranks_differ or len(offset_by_rank) == 1 else "all ranks"
    # Other objectives, as an autoencoder's, have the token itself for a target; none has one further on.
    return Finding(
        code=CODE,
        severity="warning" if offset > NEXT or ranks_differ else "confirm",
        claim=f"Each target on {location} is {target}{contrast}: "
        f"{_WHY_BY_OFFSET.get(offset, 'labels are shifted twice')}.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(steps[0], ranks[:2], phase="loss", names=("all",)),
        measured=float(offset),
        expected=float(NEXT),
        unit="places from a token to its target",
        false_alarm_rate=0.0,
        evidence={"kind": "some-ranks" if ranks_differ else "all-ranks", "steps": steps[:100]},
        next=_advice(offset),
    )


def _advice(offset: int) -> tuple[str, ...]:
    if offset > NEXT:
        return (
            "Shift labels once, in the collator or in the model: models of transformers shift `labels` themselves, so "
            "pass labels=input_ids with -100 where nothing is to be learnt.",
        )
    return (
        "If the model is to predict the next token, shift: cross_entropy(logits[:, :-1].flatten(0, 1), "
        "labels[:, 1:].flatten()).",
    )
