"""The same work gave other bits: one pass of a batch is not like two more of it, or one device's is not.

What it finds
-------------
A device that computes wrongly now and then: a GPU or a core that flips bits, memory that forgets. Also kernels that do
not repeat themselves, where that is rare; a race between streams, or between a script's threads, in a forward pass.

Why it matters
--------------
Nothing fails. One wrong sum in a matrix goes through the reduction into the weights of all ranks, and the loss shows it
much later, or never.

How it decides
--------------
By equality of bits. At the steps that the plan's key `replay` names (`trueline run --plan audit`: every 100), a rank
runs its first micro-batch twice more before the update, from the same random streams, buffers and attributes of
modules, and compares the outputs of all modules without parts over three forward passes, and the gradients of all
parameters over two backward passes. Of three passes the one that has other bits is named. Everything that a pass
changes is put back, and the gradients of the training are not touched, so that training goes on bit for bit as it would
have.

Kernels that add up with atomics return other roundings each time. That is not a device that fails: where more than half
of what was done again differs on each rank, nothing is concluded, and the answer is *cannot tell*. Where it differs
more seldom, on one rank of several, chance puts all k differences on one of N ranks with probability N^(1-k); that is
the false-alarm rate of the finding. On all ranks, or in one process, it is a warning: the claim is that bits differ,
which is so, and whether a kernel or the device is why cannot be seen from inside.

What it may miss
----------------
A device that computes the same wrong result each time; errors in between two steps that are done again; what is
computed outside of the model, as the loss and the update. A model is left alone that is compiled, sharded (FSDP1,
ZeRO 3, tensor parallelism), called by its parts, or whose forward pass changes what nobody can put back (globals,
files, what it prints): `trueline check --all` says which of these. FSDP2 runs forward passes alone again.

Example
-------
The same work gave other bits on rank 2 (cuda:2) at 3 of 40 steps that were done again, first at step 310: the output of
layers.7.attn.qkv was another in the training's own pass than in two passes after it.

Wrong and right
---------------
Wrong:

```python
out = torch.empty_like(x)  # read before a kernel of another stream has written it
```

Right:

```python
torch.cuda.current_stream().wait_stream(side_stream)
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trueline.judge.compared_ranks import MAX_SITES, sites_of
from trueline.laws.replays.columns import Odd
from trueline.laws.replays.rows import Rows, looked_at
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "replay-differs"
QUESTION = "devices"
NEEDS: tuple[str, ...] = ("replayed",)
ACROSS_RANKS = False

_PASSES: Mapping[Odd, str] = {
    "training": "was another in the training's own pass than in two passes after it",
    "first": "was another in the first of two passes after the training's own",
    "second": "was another in the second of two passes after the training's own",
    "all": "was another in each of three passes",
    "": "was another in each of two backward passes",
}


def check(run: Run) -> list[Finding]:
    """Findings on what did not repeat itself; raises ``CannotTell`` where nothing was done again or nothing repeats."""
    rows = looked_at(run)
    # raises where no rank repeats itself: what two ranks make of one batch then says nothing either
    findings = _repeated(rows, run.ranks)
    try:
        findings += _of_neighbours(rows, run.ranks)
    except CannotTell:
        if not findings:
            raise
    return findings


def _repeated(rows: Rows, all_ranks: Sequence[int]) -> list[Finding]:
    """Findings on ranks that do not repeat their own work."""
    differing = {key: row for key, row in rows.items() if row.forward or row.backward}
    if not differing:
        return []
    ranks = tuple(sorted({rank for _, rank in differing}))
    shares = {
        rank: (sum(key[1] == rank for key in differing), sum(key[1] == rank for key in rows))
        for rank in sorted({rank for _, rank in rows})
    }
    if all(2 * differing > done for differing, done in shares.values()):
        first = differing[min(differing)]
        raise CannotTell(
            f"kernels of this job do not repeat themselves: of {counted(len(rows), 'step')} that were done again "
            f"{len(differing)} gave other bits, first at {first.forward or first.backward}. "
            "torch.use_deterministic_algorithms(True) makes them comparable",
            reason="undecidable",
        )
    return [_finding(differing, rows, ranks, all_ranks, num_ranks=len(shares))]


def _of_neighbours(rows: Rows, all_ranks: Sequence[int]) -> list[Finding]:
    """A Finding on a device that makes something else of another rank's batch than that rank does."""
    compared = {key: row for key, row in rows.items() if row.neighbour >= 0}
    differing = {key: row for key, row in compared.items() if row.neighbour_differs}
    if not differing:
        return []
    pairs = [{rank, row.neighbour} for (_, rank), row in differing.items()]
    suspects = set[int].intersection(*pairs)
    if not suspects and 2 * len(differing) > len(compared):
        raise CannotTell(
            f"ranks do not make the same bits of one batch: {len(differing)} of {len(compared)} that two ranks ran "
            f"differ, first at {differing[min(differing)].neighbour_differs}. Their devices, libraries or what their "
            "models keep are not alike",
            reason="undecidable",
        )
    ranks = tuple(sorted(suspects or set[int].union(*pairs)))
    # of two ranks neither is the right one, but where others agree with one of them
    is_one = len(ranks) == 1
    step, rank = min(differing)
    row = differing[step, rank]
    named = ranks_text(ranks, all_ranks=all_ranks).capitalize()
    other_ranks = ranks_text(sorted(set[int].union(*pairs) - set(ranks)))
    who = f"{named} makes, beside {other_ranks}," if is_one else f"{named} make"
    return [
        Finding(
            code=CODE,
            severity="error" if is_one else "warning",
            claim=f"{who} other bits of the same batch, {len(differing)} of {counted(len(compared), 'time')}, "
            f"first at {steps_text([step])}: the output of {row.neighbour_differs} differs.",
            ranks=ranks,
            step_first=step,
            step_last=max(differing)[0],
            sites=sites_of(step, ranks[:2], phase="fwd", names=[row.neighbour_differs])[:MAX_SITES],
            measured=float(len(differing)),
            expected=0.0,
            unit="batches of which two ranks made other bits",
            false_alarm_rate=0.0,
            evidence={
                "kind": "one_device" if is_one else "devices",
                "names": sorted({row.neighbour_differs for row in differing.values()})[:100],
                "steps": sorted({step for step, _ in differing})[:100],
            },
            next=(
                f"Take the device of {ranks_text(ranks)} out: `trueline trial vote` asks each device for the same work."
                if is_one
                else "Compare devices, drivers and libraries of both with `trueline diff`; a third rank says which.",
            ),
        )
    ]


def _finding(
    differing: Rows,
    rows: Rows,
    ranks: tuple[int, ...],
    all_ranks: Sequence[int],
    *,
    num_ranks: int,
) -> Finding:
    steps = sorted({step for step, _ in differing})
    row = differing[min(differing)]
    value = f"the output of {row.forward}" if row.forward else f"the gradient of {row.backward}"
    is_one = len(ranks) == 1 and num_ranks > 1
    device = f" ({row.device})" if is_one and row.device else ""
    done = sum(rank in ranks for _, rank in rows)
    return Finding(
        code=CODE,
        severity="error" if is_one else "warning",
        claim=f"The same work gave other bits on {ranks_text(ranks, all_ranks=all_ranks)}{device} at "
        f"{len(differing)} of {counted(done, 'step')} that were done again, first at {steps_text(steps[:1])}: "
        f"{value} {_PASSES[row.odd]}.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        sites=sites_of(
            steps[0], ranks[:2], phase="fwd" if row.forward else "grad", names=[row.forward or row.backward]
        )[:MAX_SITES],
        measured=float(len(differing)),
        expected=0.0,
        unit="steps whose work gave other bits",
        false_alarm_rate=float(num_ranks) ** (1 - len(differing)) if is_one else 0.0,
        evidence={
            "kind": "one_rank" if is_one else "ranks",
            "names": sorted({value.forward or value.backward for value in differing.values()})[:100],
            "steps": steps[:100],
            "passes": sorted({value.odd or "backward" for value in differing.values()}),
        },
        next=(
            f"Take the device of {ranks_text(ranks)} out and train on: `trueline trial vote` asks each device for the "
            "same work."
            if is_one
            else "Run once more with torch.use_deterministic_algorithms(True): what then still differs is the device.",
        ),
    )
