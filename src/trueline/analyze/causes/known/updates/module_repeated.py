"""One module stands where several were meant: its layers share one set of weights.

`[Block()] * n` repeats one block and makes no others; so does a comprehension that puts in what was made before it. The
model has the depth that was meant and a fraction of its weights.

What looks like it
------------------
Layers that share their weights on purpose: then nothing is wrong.
"""

from trueline.analyze.causes.cause import Cause

CAUSE = Cause(
    shows={
        "init-differs": "always",
        "init-differs/one-module": "always",
    },
    needs=("init-differs",),
    settles="Print len(list(model.parameters())), and len({id(layer) for layer in layers}): it should be the number of "
    "layers.",
)
