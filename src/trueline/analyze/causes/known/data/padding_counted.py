"""Padding counts in the loss: labels are not masked where the attention mask is 0.

Labels that are copies of padded input ids, a collator without -100, another `ignore_index` than the labels have.

What looks like it
------------------
Padding that attention sees (`padding-is-seen`): there outputs depend on it, here the loss does.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "padding-trained": "always",
    },
    needs=("padding-trained",),
    settles="Print labels[0] beside attention_mask[0] where the loss is computed: -100 must stand where the mask is 0.",
)
