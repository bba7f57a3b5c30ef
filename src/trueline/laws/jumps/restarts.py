"""What begins anew where the job was started again: its weights, and the count of its updates, at a jump there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some
from trueline.store.reader import Run

_LOADED = (
    "Look at what is loaded where the job is started again: print what load_state_dict(…, strict=False) returns (its "
    "missing and unexpected keys), and a checksum of the weights before they are saved and after they are loaded."
)
_ANEW = "The weights are those that were left: look at what else begins anew at a start, such as the data or the loss."


def at_restart(run: Run, finding: Finding) -> Finding:
    """The finding of a jump, with what is known of the weights where it begins at the first step of a start of the job
    that went on: kinds ``at-restart``, and ``weights-other`` or ``weights-kept``; else ``within-start``.
    """
    step = finding.step_first
    if step is None or step not in run.restarts:
        return replace(finding, evidence={**finding.evidence, "kind": ["within-start"]})
    claim = f"{finding.claim} The job was started again at step {step}."
    changed = _changed(run, step)
    if changed is None:
        return replace(finding, claim=claim, evidence={**finding.evidence, "kind": ["at-restart"]})
    names, whole = changed
    evidence = {**finding.evidence, "kind": ["at-restart", "weights-other" if names else "weights-kept"]}
    if not names:
        claim = f"{claim} Its weights are as the start before had left them."
        return replace(finding, claim=claim, evidence=evidence, next=(_ANEW, *finding.next))
    what = "Its weights are" if len(names) == whole else f"Of {counted(whole, 'parameter')} {named_some(names)} are"
    first = ", but those that it first began with" if _as_at_first(run, step, names) else ""
    return replace(
        finding,
        claim=f"{claim} {what} not as the start before had left them{first}.",
        evidence={**evidence, "names": names[:100]},
        next=(_LOADED,),
    )


def _changed(run: Run, step: int) -> tuple[list[str], int] | None:
    """The parameters that are not as they were left at the step before, and of how many; None where nobody looked."""
    left = {rank: row for (at, rank), row in run.lists("closing_digests", steps=[step - 1]).items() if at == step - 1}
    begun = {rank: row for (at, rank), row in run.lists("param_digests", steps=[step]).items() if at == step}
    for rank in sorted(left.keys() & begun.keys() & run.env.keys()):
        names = [*run.env[rank].params, *run.env[rank].frozen]
        if len(left[rank]) == len(begun[rank]) == len(names):
            pairs = zip(names, left[rank], begun[rank], strict=True)
            return [name for name, old, new in pairs if old != new], len(names)
    return None


def _as_at_first(run: Run, step: int, names: Sequence[str]) -> bool:
    """Whether these parameters are, bit for bit, as they were at the first step of the Run."""
    first = int(run.steps[0])
    rows = run.lists("param_digests", steps=[first, step])
    for rank, env in run.env.items():
        old, new = rows.get((first, rank)), rows.get((step, rank))
        every = [*env.params, *env.frozen]
        if old is not None and new is not None and len(old) == len(new) == len(every):
            return all(old[every.index(name)] == new[every.index(name)] for name in names)
    return False
