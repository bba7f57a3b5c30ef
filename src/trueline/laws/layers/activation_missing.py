"""Two linear layers follow each other with nothing between them that is not linear: together they are one.

What it finds
-------------
A forgotten activation: `Linear` after `Linear`, with nothing but dropout, a scaling, a reshape or a transpose between
them; convolutions likewise, and a linear layer that reads all that a convolution returns.

Why it matters
--------------
Two linear maps in a row are one linear map. The model has fewer layers than are written down: a network of two such
layers is linear regression, and no training makes more of it. The loss falls all the same.

How it decides
--------------
By the graph of the loss, at the third sampled step, which says what each layer is computed from. It is told where one
layer could do the same with no more weights: where the width between is no less than the smaller of the outer ones
(of a convolution, times the positions of its kernel). A narrower layer between two is meant: low-rank factors,
adapters, the code of an autoencoder. So is what is used elsewhere too (a residual, a norm, a second head, the loss),
what attention and recurrent layers have of their own, a branch that is added to a layer of the same input, and two
layers that do not always follow each other. Grouped and transposed convolutions are left alone, and those of one
position that keep the number of channels.

It is for you to confirm: linear networks are studied, too, and a head may stand on a model that ends in a layer.

What it may miss
----------------
What is compiled, in a reentrant checkpoint, or in code of a library's own; layers with frozen, normalised or computed
weights; averages, sums and choices of rows by index between the layers; pairs of which the first has several readers;
convolutions of several positions whose width is less than what their kernels cover.

Example
-------
fc1 and fc2 are one linear map of [784 → 10]: nothing but dropout is between them.

Wrong and right
---------------
Wrong:

```python
x = self.dropout(self.fc1(x))
y = self.fc2(x)
```

Right:

```python
x = self.dropout(functional.relu(self.fc1(x)))
y = self.fc2(x)
```
"""

from __future__ import annotations

from collections.abc import Sequence

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.layers.columns import LayersInRow, TwoLayers
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, ranks_text
from trueline.store.reader import Run

CODE = "activation-missing"
CALLS = {"": ("backward",)}
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("layers_in_a_row",)
ACROSS_RANKS = False

MAX_NAMED = 3
"""Rows of layers that the claim names beside the first."""


def check(run: Run) -> list[Finding]:
    """One Finding on all layers; raises ``CannotTell`` where no layer was seen, or not all of a graph."""
    looks = [
        (step, rank, LayersInRow.from_json(text)) for (step, rank), text in sorted(run.texts("layers_in_a_row").items())
    ]
    if not looks:
        raise CannotTell("no graph of a loss was looked at", reason="not-recorded")
    for step, _, look in looks:
        if chains := _chains([pair for pair in look.pairs if pair.is_one]):
            ranks = tuple(rank for _, rank, same_look in looks if same_look.pairs == look.pairs)
            return [_finding(run, step, ranks, chains)]
    if not any(look.complete for _, _, look in looks):
        raise CannotTell("the graph of the loss is too large to be looked at as a whole", reason="undecidable")
    return []


def _chains(pairs: Sequence[TwoLayers]) -> list[list[TwoLayers]]:
    """Pairs that go on from each other, in order."""
    by_first = {pair.first: pair for pair in pairs}
    seconds = {pair.second for pair in pairs}
    chains: list[list[TwoLayers]] = []
    for pair in pairs:
        if pair.first in seconds:
            continue
        chain = [pair]
        while (following := by_first.get(chain[-1].second)) is not None and following not in chain:
            chain.append(following)
        chains.append(chain)
    return chains


def _names(chain: Sequence[TwoLayers]) -> list[str]:
    return [chain[0].first, *(pair.second for pair in chain)]


def _finding(run: Run, step: int, ranks: tuple[int, ...], chains: Sequence[Sequence[TwoLayers]]) -> Finding:
    chain = chains[0]
    first, last = chain[0], chain[-1]
    names = _names(chain)
    words_between = listed(list(dict.fromkeys(word for pair in chain for word in pair.between)))
    contrast = f"nothing but {words_between} is between them" if words_between else "nothing is between them"
    claim = f"{listed(names)} are one linear map of [{first.taken or first.inputs} → {last.outputs}]: {contrast}"
    # a line names a few, the evidence all
    further_texts = [listed(_names(further)) for further in chains[1 : 1 + MAX_NAMED]]
    num_left = len(chains) - 1 - len(further_texts)
    if further_texts:
        further_texts += [f"{num_left:,} more"] if num_left else []
        claim += f". So are {'; '.join(further_texts)}"
    location = "" if len(run.ranks) == len(ranks) else f" ({ranks_text(ranks, all_ranks=run.ranks)})"
    return Finding(
        code=CODE,
        severity="confirm",
        claim=f"{claim}{location}.",
        ranks=ranks,
        step_first=step,
        step_last=step,
        sites=sites_of(step, ranks[:2], phase="forward", names=names[:MAX_SITES]),
        measured=float(sum(len(chain) for chain in chains)),
        expected=0.0,
        unit="layers with nothing but linear maps in front of them",
        false_alarm_rate=0.0,
        evidence={"kind": "linear", "names": [name for chain in chains for name in _names(chain)][:100]},
        next=(
            f"Put an activation (nn.ReLU(), nn.GELU()) between {names[0]} and {names[1]}; if they are meant to be one "
            f"map, {_instead(chain)}.",
        ),
    )


def _instead(chain: Sequence[TwoLayers]) -> str:
    first, last = chain[0], chain[-1]
    if any(kernel for pair in chain for kernel in pair.kernels):
        return "one layer does the same with fewer weights"
    weights = first.weights + sum(pair.width * pair.outputs for pair in chain[1:])
    num_weights = first.inputs * last.outputs
    instead = f"with {counted(num_weights, 'weight')} in place of {weights:,}"
    return f"one layer of [{first.inputs} → {last.outputs}] does the same {instead}"
