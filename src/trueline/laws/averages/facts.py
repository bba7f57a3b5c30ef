"""Facts of what a job holds beside its model that is like the weights."""

from __future__ import annotations

from typing import Any

from trueline.judge.facts.fact import Subject
from trueline.laws.averages.beside import CopyOfWeights, copies_of_weights
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted
from trueline.store.reader import Run


def copies_beside(run: Run) -> tuple[str, Any] | None:
    """Each copy of the last start with how many parameters it has and how it follows them, as one rank has it."""
    try:
        copies = copies_of_weights(run)
    except CannotTell:
        return None
    start = copies[-1].start
    rank = min(copy.rank for copy in copies if copy.start == start)
    shown = [copy for copy in copies if copy.start == start and copy.rank == rank and copy.relation != "other"]
    if not shown:
        return None
    num = len(run.env[rank].params) if rank in run.env else 0
    return "; ".join(_sentence(copy, num) for copy in shown), [_numbers(copy) for copy in shown]


def _sentence(copy: CopyOfWeights, num: int) -> str:
    kind = "average" if copy.relation == "average" else "copy"
    name = f" ({copy.name})" if copy.name != "the average" else ""
    head = f"1 {kind} of the weights{name}: {copy.num_params} of {counted(max(num, copy.num_params), 'parameter')}"
    return f"{head}, {_behaviour(copy)}"


def _behaviour(copy: CopyOfWeights) -> str:
    if copy.relation == "untouched":
        return f"as the weights were at step {copy.averagings[0].step}"
    if copy.relation == "equal":
        return "equal to them at every look"
    if copy.relation == "set":
        steps = [change.since for change in copy.changes if change.copy]
        return f"set to them {counted(len(steps), 'time')} in {counted(len(copy.changes), 'update')} that were seen"
    times = moves_of(copy)
    how_often = "" if times is None else "once for each update" if times == 1 else f"{times} times for each update"
    still = len(_still(copy))
    stays = "" if not still else f"{still} of which {'stays as it is' if still == 1 else 'stay as they are'}, "
    share = f"{stays}moves {100 * copy.share:.2g} % an update"
    return f"{share}, {how_often}" if how_often else share


def _still(copy: CopyOfWeights) -> set[str]:
    """Names of parameters that an average never moved where it moved others, though the model's are elsewhere."""
    moved, far = set[str](), set[str]()
    for averaging in copy.averagings:
        if averaging.moves:
            moved |= {piece.name for piece in averaging.params if piece.moves}
            far |= {piece.name for piece in averaging.params if piece.is_far.any()}
    return far - moved


def moves_of(copy: CopyOfWeights) -> int | None:
    """How often an average is updated for each update of the weights, where that is the same in most samples."""
    counts = [averaging.num_moves for averaging in copy.between if averaging.num_moves]
    usual = max(set(counts), key=counts.count, default=None)
    return usual if usual is not None and 2 * counts.count(usual) > len(counts) else None


def _numbers(copy: CopyOfWeights) -> dict[str, Any]:
    numbers: dict[str, Any] = {"name": copy.name, "is": copy.relation, "parameters": copy.num_params}
    if copy.relation == "average":
        numbers |= {"share": copy.share, "updates": moves_of(copy)}
    if copy.relation == "set":
        numbers |= {"steps": [change.since for change in copy.changes if change.copy]}
    return numbers


SUBJECTS = (Subject("weight-copies", "model", "copies of the weights beside the model", copies_beside),)
