"""Which random streams are equal on all workers, whether that is what was declared, and whether one begins again.

What it finds
-------------
For each stream of random numbers (Python, NumPy, torch on the host, torch on the device) whether all workers are in
the same state, when that changes, and whether it contradicts `plan.rng`.

Why it matters
--------------
Equal streams give equal dropout masks and equal augmentation on every worker; different ones give different initial
weights where nobody broadcasts them. Either may be wanted: only the user knows. A stream that was seeded by accident
on one rank only is a common reason for runs that do not reproduce. A stream that begins again at every step gives every
step the same noise, dropout masks and augmentation, and one that an evaluation seeds those of the stretch before; the
loss falls all the same.

How it decides
--------------
By 64-bit digests of the state of each stream, compared between workers step by step. Streams that are equal, or
different, from the first step to the last are nothing to report: either may be wanted. Where the plan declares
`rng = "equal"` or `"different"` and a stream that was drawn from contradicts it, the finding is a warning. Where
nothing is declared, and a stream of torch that is drawn from becomes equal on all workers, or ceases to be, while the
job runs, that is for information: somebody seeds, or one rank draws by itself. It is also a warning where a stream
that is drawn from differed at all steps before the job was restarted, and is equal on all workers at the first step
after: all ranks loaded the checkpoint of one, or all used one seed. A stream whose state never changes was not drawn
from and contradicts nothing. States are exact; a collision has a probability of 2^-64 a pair.

A stream of torch begins again where the first forward pass of three sampled steps or more of one start of the job
begins in one state, from which each of these steps drew; or, at whatever step, where `torch.manual_seed` left one state
in three steps or more, which was drawn from and not put back before the update, as `torch.random.fork_rng` does. That
is exact too, needs no second rank, and is a warning. Seeds that go by the step, streams that nobody draws from,
recomputation that restores the state, and an evaluation that puts it back are no such thing.

At the first sampled steps, then now and then, draws from a `torch.Generator` of the program's own are seen, too, with
their line. One that draws from one state at five steps or more, and at three quarters of those that were looked at,
begins again: it is made or seeded at every step. That is a warning where what it fills has the rows of the batch (noise
of a VAE, of diffusion, of a mask), and for information elsewhere, as in a random projection that is drawn anew on
purpose; a matrix that happens to have as many rows as the batch counts as noise. Of 75 healthy trainings none had an
alarm about draws, at most 3.9 % (`benchmarks/laws/own_draws.md`). Where the rows of the batch are filled from states
that all ranks have alike at every step, and that go on, that is for information, too: their noise is the same.

What it may miss
----------------
A generator that begins again by a state that is set rather than by a seed, where no forward pass draws from it, or
at steps that are not sampled.
Of generators of the program's own, those of other processes (a data loader worker's), of NumPy and of compiled code,
and permutations. Two streams with one seed that were drawn from a different number of times count as different.

Example
-------
Random seeds: torch different, and the plan declares equal ones.

Wrong and right
---------------
Wrong:

```python
torch.set_rng_state(checkpoint["rng"])  # that of rank 0, on every rank: equal dropout masks from here on
```

Right:

```python
torch.set_rng_state(checkpoint["rng"][rank])  # saved by every rank
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import Bools, columns_of, differs, several_workers
from trueline.judge.follows import Stretch
from trueline.laws.random_streams.own_draws import Repeated, any_draws, begins_again, shared_draws
from trueline.laws.random_streams.streams_again import may_begin_again, states_drawn, streams_again
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "rng-streams"
QUESTION = "streams"
EVERY = 0.75
"""Share of the steps between the first and the last that draw from one state from which on it is said of every step."""
OF_MODELS = ("torch", "device")
"""Streams that dropout and noise are drawn from; from the others loggers draw, too."""
STREAMS: tuple[str, ...] = ("python", "numpy", "torch", "device")
NEEDS: tuple[str, ...] = ("rng_python", "rng_numpy", "rng_torch", "rng_device", "rng_drawn", "own_draws")


@dataclass(frozen=True)
class _Stream:
    """One stream over the steps [T] at which two workers or more measured it."""

    name: str
    steps: NDArray[np.int64]
    equal: Bools
    used: bool
    merged: tuple[int, ...] = ()
    """Steps at which the job was started again and what was different became equal."""

    @property
    def state(self) -> str:
        """``equal``, ``different``, or ``mixed`` over the Run."""
        return "equal" if self.equal.all() else "mixed" if self.equal.any() else "different"


@dataclass(frozen=True)
class _SoFar:
    """Follows the streams by which steps they were equal at, which state was first seen of each worker, and the states
    that were drawn from.
    """

    name: str = "random streams"

    def further(self, stretch: Stretch, carried: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]] | None:
        """What is carried past the steps of ``stretch``; None where a stream may begin again, or is of one rank."""
        if stretch.run.world_size == 1 or any_draws(stretch.part):
            return None
        ranks, out = several_workers(stretch.run), dict(carried)
        drawn_SNK = states_drawn(stretch.part, ranks)
        out["drawn"] = np.concatenate([carried.get("drawn", drawn_SNK[:0]), drawn_SNK])
        if may_begin_again(out["drawn"]):
            return None
        for name in STREAMS:
            digests_TN, measured_TN = _states(stretch.part, ranks, name)
            rows = np.count_nonzero(measured_TN, axis=1) > 1
            now = (stretch.part.steps[rows], ~differs(digests_TN[rows], measured_TN[rows]))
            for key, each in zip(("steps", "equal"), now, strict=True):
                out[f"{key} {name}"] = np.concatenate([carried.get(f"{key} {name}", each[:0]), each])
            seen_N = carried.get(f"seen {name}", np.zeros(len(ranks), dtype=np.bool_))
            at_N = np.argmax(measured_TN, axis=0)
            first_N = np.where(seen_N, carried.get(f"first {name}", np.uint64(0)), digests_TN[at_N, range(len(ranks))])
            used = bool(np.any(measured_TN & (digests_TN != first_N))) or bool(carried.get(f"used {name}", np.False_))
            out |= {f"seen {name}": seen_N | measured_TN.any(axis=0), f"first {name}": first_N}
            out[f"used {name}"] = np.array(used)
        return out

    def said(self, run: Run, carried: Mapping[str, NDArray[Any]]) -> list[Finding]:
        """What ``check`` says."""
        every: list[_Stream] = []
        for name in STREAMS:
            steps, equal, used = (carried[f"{key} {name}"] for key in ("steps", "equal", "used"))
            every.append(_Stream(name, steps, equal, bool(used), _merges(steps, equal, run.restarts)))
        return _judge(run, every)


FOLLOWS = _SoFar()


def check(run: Run) -> list[Finding]:
    """A warning where streams contradict the plan, or begin again, an info where they part while the job runs; raises
    ``CannotTell`` without digests.
    """
    again = streams_again(run)
    found = [_again(run, name, steps) for name, steps in (again or {}).items()]
    found += [_own_again(run, repeated) for repeated in begins_again(run)]
    if run.world_size == 1 and (found or again is not None):
        return found
    if any(each.severity == "warning" for each in found):
        return found
    ranks = several_workers(run)
    shared = [_shared(run, repeated) for repeated in shared_draws(run)]
    return [*found, *shared, *_judge(run, [_stream(run, ranks, name) for name in STREAMS])]


def _judge(run: Run, every: Sequence[_Stream]) -> list[Finding]:
    ranks, streams = several_workers(run), [stream for stream in every if len(stream.steps)]
    if not streams:
        raise CannotTell("no step has the state of a random stream from two workers")
    declared = run.manifest.plan.get("rng")
    wrong = [stream for stream in streams if declared is not None and stream.used and stream.state != declared]
    merged = [stream for stream in streams if declared != "equal" and stream.used and stream.merged]
    found = [_merged(ranks, merged)] if merged else []
    parted = [stream for stream in streams if stream.used and stream.name in OF_MODELS and _changes(stream)]
    if not wrong and (declared is not None or merged or not parted):
        return found
    return [*found, _finding(ranks, streams, wrong, declared) if wrong else _parted(ranks, parted)]


def _again(run: Run, name: str, again: Mapping[int, Sequence[int]]) -> Finding:
    """Of the stream of this name; ``again`` are its steps by rank."""
    ranks, steps = tuple(sorted(again)), max(again.values(), key=len)
    who = ranks_text(ranks, all_ranks=run.ranks)
    often = len(steps) >= EVERY * (steps[-1] - steps[0] + 1)
    draw = f"{counted(len(steps), 'step')} draw from one state"
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"Random numbers of {name} begin again at every step of {who}: {draw}, so that "
        "their noise, dropout masks and augmentation are the same."
        if often
        else f"Random numbers of {name} begin again at {steps_text(steps)} of {who}: these draw from one state, and "
        "what follows them repeats, as where an evaluation seeds and does not put the state back.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        measured=float(len(steps)),
        expected=1.0,
        unit="steps that draw from one state",
        false_alarm_rate=0.0,
        evidence={"kind": "begins-again", "steps": list(steps[:100])},
        next=(
            "Look for `manual_seed`, `seed_everything` or `set_seed` inside of the loop: seed once, before the first "
            "step, or by the step's number."
            if often
            else "Give what runs at these steps a generator of its own, or put it under torch.random.fork_rng().",
        ),
    )


def _own_again(run: Run, repeated: Repeated) -> Finding:
    ranks, draw = tuple(sorted(repeated.steps)), repeated.draw
    steps = repeated.steps[ranks[0]]
    claim = (
        f"A generator of the program's own begins again at every step of {ranks_text(ranks, all_ranks=run.ranks)}: "
        f"`{draw.operation}` at {draw.called_at} fills {list(draw.shape)} from one state at "
        f"{counted(len(steps), 'step')}"
    )
    return Finding(
        code=CODE,
        severity="warning" if draw.of_rows else "info",
        claim=f"{claim}, so that each batch has the same noise." if draw.of_rows else f"{claim}.",
        ranks=ranks,
        step_first=min(each[0] for each in repeated.steps.values()),
        step_last=max(each[-1] for each in repeated.steps.values()),
        measured=float(len(steps)),
        expected=1.0,
        unit="steps that draw from one state",
        false_alarm_rate=0.0,
        evidence={"kind": "begins-again", "called_at": draw.called_at, "steps": steps[:100]},
        next=(
            f"Look at {draw.called_at}: make and seed the generator once, in front of the loop, or seed it by the "
            "step's number and the rank.",
            *(() if draw.of_rows else ("If these numbers are to be the same at each step, leave it.",)),
        ),
    )


def _shared(run: Run, repeated: Repeated) -> Finding:
    ranks, draw = tuple(sorted(repeated.steps)), repeated.draw
    steps = repeated.steps[ranks[0]]
    return Finding(
        code=CODE,
        severity="info",
        claim=f"All ranks fill {list(draw.shape)} by `{draw.operation}` at {draw.called_at} from the same states of "
        f"generators of their own at {counted(len(steps), 'step')}: the noise of their batches is the same.",
        ranks=ranks,
        step_first=steps[0],
        step_last=steps[-1],
        measured=float(len(steps)),
        expected=None,
        unit="steps that draw from states of all ranks",
        false_alarm_rate=0.0,
        evidence={"kind": "shared-draws", "called_at": draw.called_at},
        next=(f"Seed the generator at {draw.called_at} by seed + rank, unless ranks are to have the same noise.",),
    )


def _merged(ranks: Sequence[int], streams: list[_Stream]) -> Finding:
    step = min(stream.merged[0] for stream in streams)
    names = listed([stream.name for stream in streams])
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"The workers' random streams of {names} were different, and are equal since the job was started again "
        f"at step {step}.",
        ranks=tuple(ranks),
        step_first=step,
        step_last=max(int(stream.steps[-1]) for stream in streams),
        measured=float(len(streams)),
        expected=0.0,
        unit="streams that became equal on all workers",
        false_alarm_rate=0.0,
        evidence={stream.name: {"merged_at": list(stream.merged)} for stream in streams},
        next=(
            "Save and load the random states of every rank by itself, or seed every rank with seed + rank after the "
            "checkpoint was loaded.",
            "If they are meant to be equal, declare rng = 'equal' in the plan.",
        ),
    )


def _states(run: Run, ranks: Sequence[int], name: str) -> tuple[NDArray[np.uint64], Bools]:
    digests, measured = run.digests(f"rng_{name}")
    chosen = columns_of(run, ranks)
    return digests[:, chosen], measured[:, chosen]


def _stream(run: Run, ranks: Sequence[int], name: str) -> _Stream:
    digests_TN, measured_TN = _states(run, ranks, name)
    rows = np.count_nonzero(measured_TN, axis=1) > 1
    used = any(len(np.unique(digests_TN[measured_TN[:, n], n])) > 1 for n in range(len(ranks)))
    steps, equal = run.steps[rows], ~differs(digests_TN[rows], measured_TN[rows])
    return _Stream(name, steps, equal, used, _merges(steps, equal, run.restarts))


def _merges(steps: NDArray[np.int64], equal: Bools, restarts: Sequence[int]) -> tuple[int, ...]:
    """The ``restarts`` before which no step since the start before was ``equal``, and after which the first one is."""
    found: list[int] = []
    for begin, restart, end in zip([0, *restarts], restarts, [*restarts[1:], np.inf], strict=False):
        before = equal[(steps >= begin) & (steps < restart)]
        after = equal[(steps >= restart) & (steps < end)]
        found += [restart] if len(before) and not before.any() and len(after) and after[0] else []
    return tuple(found)


def _parted(ranks: Sequence[int], streams: list[_Stream]) -> Finding:
    """Streams that become equal on all workers, or cease to be, while the job runs."""
    first = min(streams, key=lambda stream: _changes(stream)["changes_at"])
    step, names = _changes(first)["changes_at"], listed([stream.name for stream in streams])
    now = "different" if first.equal[0] else "equal"
    return Finding(
        code=CODE,
        severity="info",
        claim=f"The workers' random streams of {names}, which are drawn from, become {now} at step {step}.",
        ranks=tuple(ranks),
        step_first=step,
        step_last=max(int(stream.steps[-1]) for stream in streams),
        measured=float(len(streams)),
        expected=None,
        unit="streams that change between equal and different",
        false_alarm_rate=0.0,
        evidence={stream.name: {"state": stream.state, "used": True, **_changes(stream)} for stream in streams},
        next=(
            "Declare what you want with rng = 'equal' or 'different' in the plan, and this check will hold you to it.",
        ),
    )


def _finding(ranks: Sequence[int], streams: list[_Stream], wrong: list[_Stream], declared: object) -> Finding:
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"{_claim(wrong)}, and the plan declares {declared} ones.",
        ranks=tuple(ranks),
        step_first=min(_contradiction_step(stream, declared) for stream in wrong),
        step_last=max(int(stream.steps[-1]) for stream in wrong),
        measured=float(sum(stream.state == "equal" for stream in streams)),
        expected=None,
        unit="streams that are equal on all workers",
        false_alarm_rate=0.0,
        evidence={stream.name: {"state": stream.state, "used": stream.used, **_changes(stream)} for stream in streams},
        next=(
            "Seed every rank with seed + rank for different streams, with the same seed for equal ones, after the "
            "process group is up.",
        ),
    )


def _claim(streams: list[_Stream]) -> str:
    words = {"equal": "equal on all ranks", "different": "different", "mixed": "sometimes equal"}
    named = {word: [stream.name for stream in streams if stream.state == state] for state, word in words.items()}
    return f"Random seeds: {', '.join(f'{listed(names)} {word}' for word, names in named.items() if names)}"


def _contradiction_step(stream: _Stream, declared: object) -> int:
    return int(stream.steps[int(np.argmax(stream.equal != (declared == "equal")))])


def _changes(stream: _Stream) -> dict[str, int]:
    """The first step at which the state of the comparison is another than at the start."""
    changed = np.flatnonzero(stream.equal != stream.equal[0])
    return {"changes_at": int(stream.steps[changed[0]])} if len(changed) else {}
