"""Targets at positions that the attention mask leaves out count in the loss: padding is trained.

What it finds
-------------
`labels = input_ids.clone()` of padded rows, collators that pad labels with the id of the padding token instead of -100,
an `ignore_index` that is not the id that stands in the labels, or none at all. All ranks share such a fault, so that
comparing them shows nothing.

Why it matters
--------------
The model learns to predict padding, which is easy: the loss is far lower than that of the text, falls faster the more
rows are padded, and the text counts less the shorter it is.

How it decides
--------------
By counting, at the first 16 sampled steps and then now and then: targets of cross-entropies that average or add up over
all that count, at positions where `attention_mask` is 0, if they are the token there or the next one. It is a warning
where there are more of them than rows that have any: the first token behind a text may be its end, on purpose, and with
padding on the left the last one in front of it has the first word as its target. Losses that are computed without
reduction are left alone, since scripts multiply them by a mask afterwards. Where the model is given no mask, targets
are counted that are the token which fills rows of several lengths up: it ends them in runs and stands nowhere else.
That is to confirm.

What it may miss
----------------
Masks by other names, losses that are fused or compiled, targets that are neither as long as the mask nor one shorter,
labels that are no tokens of the input (classes of tokens, a decoder's text).

Example
-------
37 % of the targets that count in the loss of all ranks are padding, by the attention mask.

Wrong and right
---------------
Wrong:

```python
batch["labels"] = batch["input_ids"].clone()
```

Right:

```python
batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
```
"""

from __future__ import annotations

from collections.abc import Mapping

from trueline.laws.targets.loss_inputs import StepRank, loss_finding, loss_inputs
from trueline.schema.columns.loss_inputs import LossInputs
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.store.reader import Run

CODE = "padding-trained"
QUESTION = "mask"
NEEDS: tuple[str, ...] = ("loss_inputs",)
ACROSS_RANKS = False

_UNIT = "share of targets that are padding"


def check(run: Run) -> list[Finding]:
    """One Finding at most; raises ``CannotTell`` where no targets were seen beside an attention mask."""
    inputs = loss_inputs(run)
    masked = {key: losses for key, losses in inputs.items() if losses.targets}
    unmasked = {key: losses for key, losses in inputs.items() if losses.unmasked_targets}
    if not masked and unmasked:
        return _filled(run, unmasked)
    if not masked:
        raise CannotTell(
            "no targets of a cross-entropy were seen that stand beside an attention mask", reason="not-recorded"
        )
    # One in each row may be the end of its text, on purpose.
    trained = {key: losses for key, losses in masked.items() if losses.padded > losses.padded_rows}
    if not trained:
        return []
    share = sum(losses.padded for losses in trained.values()) / sum(losses.targets for losses in trained.values())
    claim = f"{share:.0%} of the targets that count in the loss of {{}} are padding, by the attention mask."
    advice = (
        "Put -100 into the labels where attention_mask is 0, or pass the ignore_index that the labels have there.",
    )
    return [
        loss_finding(run, CODE, "warning", claim, trained, kind="padding", advice=advice, measured=share, unit=_UNIT)
    ]


def _filled(run: Run, unmasked: Mapping[StepRank, LossInputs]) -> list[Finding]:
    """Of targets beside no mask."""
    # One in each row may be the end of its text here, too.
    trained = {key: losses for key, losses in unmasked.items() if losses.filled > losses.filled_rows}
    if not trained:
        return []
    num_targets = sum(losses.unmasked_targets for losses in trained.values())
    share = sum(losses.filled for losses in trained.values()) / num_targets
    claim = f"{share:.0%} of the targets that count in the loss of {{}} are the padding that fills up rows of several "
    claim += "lengths."
    advice = ("Pass the id of the padding to the loss as ignore_index, or put -100 into the targets there.",)
    return [
        loss_finding(run, CODE, "confirm", claim, trained, kind="filling", advice=advice, measured=share, unit=_UNIT)
    ]
