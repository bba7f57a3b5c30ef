"""A rank receives something else than the other one has sent.

What it finds
-------------
Tensors that `send`, `isend`, `recv` and `irecv` of `torch.distributed` carry from one rank to another, alone or in a
batch, as activations and gradients between the stages of a pipeline: those that arrive with other bits than they had
as they were sent.

Why it matters
--------------
A model whose parts are on several devices computes with what arrives. Zeros or old values instead of an activation
give no error; the loss is worse, or NaN comes later and elsewhere. Some boards and drivers lose data of peer-to-peer
copies; and a buffer that is written again before its `isend` was waited for carries what was written.

How it decides
--------------
By 64-bit digests. Both sides count the transfers between them, by process group and tag, and digest the first 128 and
then each 64th: the sender before it sends, the receiver as `wait` returns. Watching may begin a few transfers later on
one side, so that the numbers of one are shifted until most digests agree; they do at one shift alone. What then differs
at one number, and is no other of the tensors that were sent, did not arrive as it was sent. Where a rank receives from
any rank (`recv` without a source), nothing with that tag is compared. There is no tolerance, and no false alarm but
for a collision (probability 2^-64 a pair).

What it may miss
----------------
A link on which less than half of what was compared arrives whole: then nothing is known to belong together. Collectives
(what DDP or a hand-written `all_reduce` receives is judged by `reduction-mismatch` and `replica-drift`), copies between
two devices of one process, tensors that are not contiguous, and receivers that wait for no work.

Example
-------
What rank 1 received of rank 0 is not what rank 0 sent in 14 of 80 transfers that were compared, first about step 3.

Wrong and right
---------------
Wrong:

```python
work = dist.isend(buffer, dst=1)
buffer.copy_(next_activation)  # may be what is sent
work.wait()
```

Right:

```python
work = dist.isend(buffer, dst=1)
work.wait()
buffer.copy_(next_activation)
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.laws.transfers.declared import COUNT_BITS
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.store.reader import Run

CODE = "received-differs"
QUESTION = "replicas"
NEEDS = ("sent", "received")
MAX_SHIFT = 16
"""Transfers by which the two sides may count apart: watching begins within one step on both."""
LEAST_EQUAL = 4
"""Transfers that must have arrived as they were sent for the numbers of both sides to be known to belong together."""
_WIDTH = 3

Transfers = dict[int, tuple[int, int]]
"""By number, the digest and the step of the row that has it."""


@dataclass(frozen=True)
class _Channel:
    """What ``receiver`` received of ``sender`` in one start of the job: how many transfers were compared, and at which
    steps those have come that differ.
    """

    sender: int
    receiver: int
    compared: int
    steps: tuple[int, ...]

    def __add__(self, channel: _Channel | None) -> _Channel:
        """What came through several groups, or with several tags."""
        if channel is None:
            return self
        steps = tuple(sorted([*self.steps, *channel.steps]))
        return _Channel(self.sender, self.receiver, self.compared + channel.compared, steps)


def check(run: Run) -> list[Finding]:
    """An error for each pair of ranks between which something was changed; raises ``CannotTell`` without transfers."""
    if not run.groups and run.beside:
        raise CannotTell("transfers between groups of ranks are judged with the first group", reason="by-design")
    runs = [run, *map(Run, run.groups)]
    sent, received = (_by_channel(runs, column) for column in ("sent", "received"))
    pairs = sorted(sent.keys() & received.keys())
    if not pairs:
        raise CannotTell("no rank was seen to send another one a tensor, which then received it", reason="by-design")
    judged: dict[tuple[int, int, int], _Channel] = {}
    for pair in pairs:
        channel = _compared(*pair[:2], sent[pair], received[pair])
        if channel is not None:
            judged[pair[:3]] = channel + judged.get(pair[:3])
    if not judged:
        raise CannotTell("of too few transfers between two ranks it is known which of the other side they are")
    return [_finding(channel) for channel in judged.values() if channel.steps]


def _by_channel(runs: Sequence[Run], column: str) -> dict[tuple[int, int, int, int], Transfers]:
    """By (sender, receiver, start of the job, group and tag) the transfers of ``column``."""
    channels: defaultdict[tuple[int, int, int, int], Transfers] = defaultdict(dict)
    for part in runs:
        for (step, rank), values in part.lists(column).items():
            start = int(np.searchsorted(part.restarts, step, side="right"))
            whole = len(values) // _WIDTH * _WIDTH
            for other_rank, number, digest in values[:whole].reshape(-1, _WIDTH).tolist():
                pair = (rank, other_rank) if column == "sent" else (other_rank, rank)
                channels[*pair, start, number >> COUNT_BITS][number] = (digest, step)
    return dict(channels)


def _compared(sender: int, receiver: int, sent: Transfers, received: Transfers) -> _Channel | None:
    """None where it is not known which of the transfers belong together."""
    sides = _numbers_and_digests(sent), _numbers_and_digests(received)
    shift = max(range(-MAX_SHIFT, MAX_SHIFT + 1), key=lambda shift: (_num_equal(*sides, shift), -abs(shift)))
    common = [number for number in received if number + shift in sent]
    num_equal = _num_equal(*sides, shift)
    if num_equal < LEAST_EQUAL or 2 * num_equal < len(common):
        return None
    all_sent = {digest for digest, _ in sent.values()}
    steps = [received[number][1] for number in common if received[number][0] not in all_sent]
    return _Channel(sender, receiver, len(common), tuple(sorted(steps)))


def _numbers_and_digests(transfers: Transfers) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """[N] by number."""
    numbers = np.array(sorted(transfers), dtype=np.int64)
    return numbers, np.array([transfers[number][0] for number in numbers.tolist()], dtype=np.uint64)


def _num_equal(
    sent: tuple[NDArray[np.int64], NDArray[np.uint64]],
    received: tuple[NDArray[np.int64], NDArray[np.uint64]],
    shift: int,
) -> int:
    """How many were received as what was sent ``shift`` numbers later."""
    _, in_sent, in_received = np.intersect1d(sent[0], received[0] + shift, assume_unique=True, return_indices=True)
    return int(np.count_nonzero(sent[1][in_sent] == received[1][in_received]))


def _finding(channel: _Channel) -> Finding:
    sender, receiver, steps = channel.sender, channel.receiver, channel.steps
    return Finding(
        code=CODE,
        severity="error",
        claim=f"What rank {receiver} received of rank {sender} is not what rank {sender} sent in {len(steps)} of "
        f"{channel.compared} transfers that were compared, first about step {steps[0]}.",
        ranks=tuple(sorted((sender, receiver))),
        step_first=steps[0],
        step_last=steps[-1],
        sites=(str(Site(steps[0], 0, receiver, "fwd", "recv")),),
        measured=float(len(steps)),
        expected=0.0,
        unit="transfers that arrived otherwise",
        false_alarm_rate=0.0,
        evidence={"kind": f"{sender}-{receiver}", "compared": channel.compared, "steps": list(steps[:100])},
        next=(
            "Run the job with NCCL_P2P_DISABLE=1: if it is gone, the link between the two devices loses data (driver, "
            "IOMMU, ACS of the PCIe bridges); p2pBandwidthLatencyTest and simpleP2P of cuda-samples show it alone.",
            "Look for a buffer that is written again before the work that isend returned was waited for.",
        ),
    )
