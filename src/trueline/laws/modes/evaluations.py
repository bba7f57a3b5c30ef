"""What was seen of forward passes in evaluation mode, and of those before the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trueline.schema.columns.evaluations import UntrainedPass, untrained_passes
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


@dataclass(frozen=True)
class Looked:
    """A pass of ``rank`` that came before ``step``; ``norms`` has of each weight what it is divided by, and what its
    spectral norm is at least.
    """

    rank: int
    step: int
    is_first: bool
    """Whether it came before the first step."""
    of: UntrainedPass
    norms: Mapping[str, tuple[float, float]]


def looked_at(run: Run) -> list[Looked]:
    """All of a Run, by step; raises ``CannotTell`` without any."""
    found: list[Looked] = []
    values = run.lists("evaluation_values")
    for key, text in run.texts("evaluations").items():
        numbers = iter(values[key].tolist() if key in values else ())
        for one in untrained_passes(text):
            norms = {name: (float(next(numbers)), float(next(numbers))) for name in one.norms}
            step = key[0] if one.step is None else one.step
            is_first = one.step is None or step == run.steps[0]
            found.append(Looked(key[1], step, is_first, one, norms))
    if not found:
        raise CannotTell("no forward pass in evaluation mode was seen", reason="not-recorded")
    return sorted(found, key=lambda each: (each.step, each.rank))


def steps_of(run: Run, passes: Sequence[Looked]) -> tuple[int, int]:
    """The first and the last step that they came before, none behind the last of the Run."""
    last = int(run.steps[-1])
    return min(passes[0].step, last), min(passes[-1].step, last)


def when_text(passes: Sequence[Looked]) -> str:
    """``before the first step``, ``before step 20``, ``before steps 0 to 40``."""
    first, last = passes[0], passes[-1]
    if last.is_first:
        return "before the first step"
    return f"before step {first.step}" if first.step == last.step else f"before steps {first.step} to {last.step}"


def share_text(some: Sequence[Looked], every: Sequence[Looked]) -> str:
    """``all 6 that were looked at``, ``2 of 6 that were looked at``."""
    if len(every) == 1:
        return "the one that was looked at"
    return f"{f'all {len(every)}' if len(some) == len(every) else f'{len(some)} of {len(every)}'} that were looked at"
