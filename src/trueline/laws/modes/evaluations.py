"""Forward passes in evaluation mode, and those before the first step, as they were seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trueline.schema.columns.evaluations import UntrainedPass, untrained_passes
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


@dataclass(frozen=True)
class SeenPass:
    """A pass of ``rank`` that came before ``step``; ``norms`` has of each weight its divisor, and the least that its
    spectral norm can be.
    """

    rank: int
    step: int
    is_first: bool
    """Whether it came before the first step."""
    facts: UntrainedPass
    norms: Mapping[str, tuple[float, float]]


def seen_passes(run: Run) -> list[SeenPass]:
    """The passes of a Run, by step; raises ``CannotTell`` without any."""
    passes: list[SeenPass] = []
    values = run.lists("evaluation_values")
    for key, text in run.texts("evaluations").items():
        numbers = iter(values[key].tolist() if key in values else ())
        for facts in untrained_passes(text):
            norms = {name: (float(next(numbers)), float(next(numbers))) for name in facts.norms}
            step = key[0] if facts.step is None else facts.step
            is_first = facts.step is None or step == run.steps[0]
            passes.append(SeenPass(key[1], step, is_first, facts, norms))
    if not passes:
        raise CannotTell("no forward pass in evaluation mode was seen", reason="not-recorded")
    return sorted(passes, key=lambda seen_pass: (seen_pass.step, seen_pass.rank))


def steps_of(run: Run, passes: Sequence[SeenPass]) -> tuple[int, int]:
    """The first and the last step that they came before, none behind the last of the Run."""
    last = int(run.steps[-1])
    return min(passes[0].step, last), min(passes[-1].step, last)


def when_text(passes: Sequence[SeenPass]) -> str:
    """``before the first step``, ``before step 20``, ``before steps 0 to 40``."""
    first, last = passes[0], passes[-1]
    if last.is_first:
        return "before the first step"
    return f"before step {first.step}" if first.step == last.step else f"before steps {first.step} to {last.step}"


def share_text(matching_passes: Sequence[SeenPass], all_passes: Sequence[SeenPass]) -> str:
    """``all 6 that were looked at``, ``2 of 6 that were looked at``."""
    if len(all_passes) == 1:
        return "the one that was looked at"
    num_chosen, num_all = len(matching_passes), len(all_passes)
    return f"{f'all {num_all}' if num_chosen == num_all else f'{num_chosen} of {num_all}'} that were looked at"
