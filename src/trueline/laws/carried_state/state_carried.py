"""A model begins each batch with what the batch before left, although batches are shuffled.

What it finds
-------------
A recurrent model that keeps its hidden state from batch to batch, in an attribute or as an argument that it returned
before. That is right for one long text that is cut into batches in order. Of samples that are shuffled, each row goes
on from the end of another sample that has nothing to do with it.

Why it matters
--------------
Nothing fails. The state is noise that depends on the order of batches: training learns to ignore it, predictions of a
sample depend on what was asked before, and an evaluation in another order has other results.

How it decides
--------------
At two early steps, by where values are in memory. A tensor with as many rows as there are samples is in an attribute of
the model before the forward pass, or the model is called with one that it returned the step before; an operation of the
loss keeps it for backward; and after the step the attribute has another. All of that at both steps, and the sampler of
the training data declares to shuffle. Registered buffers, masks and tables that stay, and queues that have no dimension
of as many as there are samples are left alone.

It is for you to confirm: some models are to have a memory beyond a batch.

What it may miss
----------------
States that are copied on their way, or within functions of their own; batches of one sample; data without a sampler of
torch; states that begin later.

Example
-------
The forward pass uses what the batch before left in state ([1, 8, 48]) at steps 4 and 5, and the samples are shuffled by
DistributedSampler.

Wrong and right
---------------
Wrong:

```python
out, state = self.rnn(x, self.state)
self.state = state.detach()
```

Right:

```python
out, _ = self.rnn(x)
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueline.judge.compared_ranks import MAX_SITES
from trueline.laws.carried_state.columns import CarriedState, carried_states
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.schema.text.words import named_some, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "state-carried"
QUESTION = "batch"
NEEDS: tuple[str, ...] = ("carried_state",)
ACROSS_RANKS = False

LOOKS = 2
"""Steps at which a state has to be used."""
SHUFFLING = ("RandomSampler", "WeightedRandomSampler", "SubsetRandomSampler")


def check(run: Run) -> list[Finding]:
    """A Finding on states that go from batch to batch; raises ``CannotTell`` where nobody knows how samples come."""
    texts = run.texts("carried_state")
    if not texts:
        raise CannotTell("no forward pass was looked at for what the batch before has left", reason="not-recorded")
    states: dict[tuple[CarriedState, int], list[int]] = {}
    for (step, rank), text in sorted(texts.items()):
        for state in carried_states(text):
            states.setdefault((state, rank), []).append(step)
    states = {key: steps for key, steps in states.items() if len(steps) >= LOOKS}
    ranks = tuple(sorted({rank for _, rank in states}))
    if not ranks:
        return []
    loaders = [run.env[rank].data for rank in ranks if rank in run.env and run.env[rank].data]
    settings: Mapping[str, Any] = loaders[0] if loaders else {}
    sampler = settings.get("sampler")
    if not sampler:
        raise CannotTell("no sampler of a DataLoader of torch was seen", reason="not-recorded")
    if sampler not in SHUFFLING and settings.get("shuffle") is not True:
        return []
    steps = sorted({step for of_state in states.values() for step in of_state})
    names = list(dict.fromkeys(f"{state.name} ({list(state.shape)})" for state, _ in states))
    return [
        Finding(
            code=CODE,
            severity="confirm",
            claim=f"The forward pass uses what the batch before left in {named_some(names)} at {steps_text(steps)} "
            f"({ranks_text(ranks, all_ranks=run.ranks)}), and the samples are shuffled by {sampler}: hidden state is "
            "carried between samples that do not follow each other.",
            ranks=ranks,
            step_first=steps[0],
            step_last=steps[-1],
            sites=tuple(str(Site(steps[0], 0, rank, "fwd", state.name)) for state, rank in states)[:MAX_SITES],
            measured=float(len(names)),
            expected=0.0,
            unit="tensors that are carried",
            false_alarm_rate=0.0,
            evidence={"kind": "shuffled", "names": [state.name for state, _ in states][:100]},
            next=(
                "Begin each batch at a state of zeros; or read the samples in order, each row going on where it was, "
                "if the state is meant.",
            ),
        )
    ]
