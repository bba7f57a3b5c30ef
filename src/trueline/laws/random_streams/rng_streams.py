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
alarm about draws, at most 3.9 % (`studies/laws/own_draws.md`). Where the rows of the batch are filled from states
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
from trueline.laws.random_streams.own_draws import RepeatedDraw, any_draws, repeated_draws, shared_draws
from trueline.laws.random_streams.streams_again import may_begin_again, states_drawn, streams_again
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed, ranks_text, steps_text
from trueline.store.reader import Run

CODE = "rng-streams"
QUESTION = "streams"
OFTEN_SHARE = 0.75
"""Share of the steps between the first and the last that draw from one state from which on it is said of every step."""
OF_MODELS = ("torch", "device")
"""Streams that dropout and noise are drawn from; from the others loggers draw, too."""
STREAMS: tuple[str, ...] = ("python", "numpy", "torch", "device")
NEEDS: tuple[str, ...] = ("rng_python", "rng_numpy", "rng_torch", "rng_device", "rng_drawn", "own_draws")


@dataclass(frozen=True)
class _Stream:
    """A stream over the steps [T] at which two workers or more measured it."""

    name: str
    steps: NDArray[np.int64]
    equal: Bools
    is_drawn_from: bool
    merged: tuple[int, ...] = ()
    """Steps at which the job was started again and what was different became equal."""

    @property
    def state(self) -> str:
        """``equal``, ``different``, or ``mixed`` over the Run."""
        return "equal" if self.equal.all() else "mixed" if self.equal.any() else "different"


@dataclass(frozen=True)
class _FollowedStreams:
    """Follows the streams by which steps they were equal at, which state was first seen of each worker, and the states
    that were drawn from.
    """

    name: str = "random streams"

    def advance(self, stretch: Stretch, carried: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]] | None:
        """The arrays that are carried past the steps of ``stretch``; None where a stream may begin again, or there is
        one rank.
        """
        if stretch.run.world_size == 1 or any_draws(stretch.part):
            return None
        ranks, state = several_workers(stretch.run), dict(carried)
        drawn_SNK = states_drawn(stretch.part, ranks)
        state["drawn"] = np.concatenate([carried.get("drawn", drawn_SNK[:0]), drawn_SNK])
        if may_begin_again(state["drawn"]):
            return None
        for name in STREAMS:
            digests_TN, measured_TN = _states(stretch.part, ranks, name)
            rows = np.count_nonzero(measured_TN, axis=1) > 1
            stretch_values = (stretch.part.steps[rows], ~differs(digests_TN[rows], measured_TN[rows]))
            for key, values in zip(("steps", "equal"), stretch_values, strict=True):
                state[f"{key} {name}"] = np.concatenate([carried.get(f"{key} {name}", values[:0]), values])
            seen_N = carried.get(f"seen {name}", np.zeros(len(ranks), dtype=np.bool_))
            at_N = np.argmax(measured_TN, axis=0)
            # A stream is drawn from where a state is another than the first that was seen of the worker.
            first_N = np.where(seen_N, carried.get(f"first {name}", np.uint64(0)), digests_TN[at_N, range(len(ranks))])
            is_drawn_from = bool(np.any(measured_TN & (digests_TN != first_N))) or bool(
                carried.get(f"used {name}", np.False_)
            )
            state |= {f"seen {name}": seen_N | measured_TN.any(axis=0), f"first {name}": first_N}
            state[f"used {name}"] = np.array(is_drawn_from)
        return state

    def conclude(self, run: Run, carried: Mapping[str, NDArray[Any]]) -> list[Finding]:
        streams: list[_Stream] = []
        for name in STREAMS:
            steps, equal, is_drawn_from = (carried[f"{key} {name}"] for key in ("steps", "equal", "used"))
            streams.append(_Stream(name, steps, equal, bool(is_drawn_from), _merges(steps, equal, run.restarts)))
        return _judge(run, streams)


FOLLOWS = _FollowedStreams()


def check(run: Run) -> list[Finding]:
    """A warning where streams contradict the plan, or begin again, an info where they part while the job runs; raises
    ``CannotTell`` without digests.
    """
    steps_by_stream = streams_again(run)
    findings = [_again_finding(run, name, steps) for name, steps in (steps_by_stream or {}).items()]
    findings += [_own_again_finding(run, repeated) for repeated in repeated_draws(run)]
    # A single rank has nothing to compare: without states it is said why (``several_workers``).
    if run.world_size == 1 and (findings or steps_by_stream is not None):
        return findings
    if any(finding.severity == "warning" for finding in findings):
        return findings  # streams that begin again are equal, or different, by that alone
    ranks = several_workers(run)
    shared = [_shared_finding(run, repeated) for repeated in shared_draws(run)]
    return [*findings, *shared, *_judge(run, [_stream(run, ranks, name) for name in STREAMS])]


def _judge(run: Run, streams: Sequence[_Stream]) -> list[Finding]:
    ranks, measured_streams = several_workers(run), [stream for stream in streams if len(stream.steps)]
    if not measured_streams:
        raise CannotTell("no step has the state of a random stream from two workers")
    declared = run.manifest.plan.get("rng")
    wrong = [
        stream
        for stream in measured_streams
        if declared is not None and stream.is_drawn_from and stream.state != declared
    ]
    merged = [stream for stream in measured_streams if declared != "equal" and stream.is_drawn_from and stream.merged]
    findings = [_merged_finding(ranks, merged)] if merged else []
    # From streams of Python and NumPy loggers draw, too, each rank as it pleases.
    parted = [
        stream for stream in measured_streams if stream.is_drawn_from and stream.name in OF_MODELS and _changes(stream)
    ]
    if not wrong and (declared is not None or merged or not parted):
        return findings
    return [
        *findings,
        _contradiction_finding(ranks, measured_streams, wrong, declared) if wrong else _parted_finding(ranks, parted),
    ]


def _again_finding(run: Run, name: str, steps_by_rank: Mapping[int, Sequence[int]]) -> Finding:
    """The warning of a stream that begins again at these steps."""
    ranks, steps = tuple(sorted(steps_by_rank)), max(steps_by_rank.values(), key=len)
    subject = ranks_text(ranks, all_ranks=run.ranks)
    is_often = len(steps) >= OFTEN_SHARE * (steps[-1] - steps[0] + 1)
    draw_text = f"{counted(len(steps), 'step')} draw from one state"
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"Random numbers of {name} begin again at every step of {subject}: {draw_text}, so that "
        "their noise, dropout masks and augmentation are the same."
        if is_often
        else f"Random numbers of {name} begin again at {steps_text(steps)} of {subject}: these draw from one state, "
        "and what follows them repeats, as where an evaluation seeds and does not put the state back.",
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
            if is_often
            else "Give what runs at these steps a generator of its own, or put it under torch.random.fork_rng().",
        ),
    )


def _own_again_finding(run: Run, repeated: RepeatedDraw) -> Finding:
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
        step_first=min(rank_steps[0] for rank_steps in repeated.steps.values()),
        step_last=max(rank_steps[-1] for rank_steps in repeated.steps.values()),
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


def _shared_finding(run: Run, repeated: RepeatedDraw) -> Finding:
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


def _merged_finding(ranks: Sequence[int], streams: list[_Stream]) -> Finding:
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
    columns = columns_of(run, ranks)
    return digests[:, columns], measured[:, columns]


def _stream(run: Run, ranks: Sequence[int], name: str) -> _Stream:
    digests_TN, measured_TN = _states(run, ranks, name)
    rows = np.count_nonzero(measured_TN, axis=1) > 1
    is_drawn_from = any(len(np.unique(digests_TN[measured_TN[:, n], n])) > 1 for n in range(len(ranks)))
    steps, equal = run.steps[rows], ~differs(digests_TN[rows], measured_TN[rows])
    return _Stream(name, steps, equal, is_drawn_from, _merges(steps, equal, run.restarts))


def _merges(steps: NDArray[np.int64], equal: Bools, restarts: Sequence[int]) -> tuple[int, ...]:
    """The ``restarts`` before which no step since the start before was ``equal``, and after which the first one is."""
    merges: list[int] = []
    for begin, restart, end in zip([0, *restarts], restarts, [*restarts[1:], np.inf], strict=False):
        before = equal[(steps >= begin) & (steps < restart)]
        after = equal[(steps >= restart) & (steps < end)]
        merges += [restart] if len(before) and not before.any() and len(after) and after[0] else []
    return tuple(merges)


def _parted_finding(ranks: Sequence[int], streams: list[_Stream]) -> Finding:
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


def _contradiction_finding(
    ranks: Sequence[int], streams: list[_Stream], wrong: list[_Stream], declared: object
) -> Finding:
    return Finding(
        code=CODE,
        severity="warning",
        claim=f"{_contradiction_claim(wrong)}, and the plan declares {declared} ones.",
        ranks=tuple(ranks),
        step_first=min(_contradiction_step(stream, declared) for stream in wrong),
        step_last=max(int(stream.steps[-1]) for stream in wrong),
        measured=float(sum(stream.state == "equal" for stream in streams)),
        expected=None,
        unit="streams that are equal on all workers",
        false_alarm_rate=0.0,
        evidence={
            stream.name: {"state": stream.state, "used": stream.is_drawn_from, **_changes(stream)} for stream in streams
        },
        next=(
            "Seed every rank with seed + rank for different streams, with the same seed for equal ones, after the "
            "process group is up.",
        ),
    )


def _contradiction_claim(streams: list[_Stream]) -> str:
    words = {"equal": "equal on all ranks", "different": "different", "mixed": "sometimes equal"}
    names_by_word = {
        word: [stream.name for stream in streams if stream.state == state] for state, word in words.items()
    }
    return f"Random seeds: {', '.join(f'{listed(names)} {word}' for word, names in names_by_word.items() if names)}"


def _contradiction_step(stream: _Stream, declared: object) -> int:
    return int(stream.steps[int(np.argmax(stream.equal != (declared == "equal")))])


def _changes(stream: _Stream) -> dict[str, int]:
    """The first step at which the state of the comparison is another than at the start."""
    changed = np.flatnonzero(stream.equal != stream.equal[0])
    return {"changes_at": int(stream.steps[changed[0]])} if len(changed) else {}
