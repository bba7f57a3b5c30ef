"""Weights and states of the optimizer at a jump where the job was started again: as they were left, as they first
began, or neither.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some
from trueline.store.reader import Run

_LOOK_AT_LOADING = (
    "Look at what is loaded where the job is started again: print what load_state_dict(…, strict=False) returns (its "
    "missing and unexpected keys), and a checksum of the weights before they are saved and after they are loaded."
)
_LOOK_ELSEWHERE = (
    "The weights are those that were left: look at what else begins anew at a start, such as the data or the loss."
)
_LOOK_AT_STATES = (
    "Load the optimizer's state_dict where the job is started again, after its parameters are on their device: its "
    "first updates are otherwise as large as at the beginning of a training."
)
FILLING = 10
"""Updates over which Adam's mean of gradients fills at its usual beta of 0.9: 1 / (1 - beta)."""


def describe_restart(run: Run, finding: Finding) -> Finding:
    """The finding of a jump with the state of the weights, if it begins at the first step of a start of the job that
    went on: kinds ``at-restart``, and ``weights-other`` or ``weights-kept``. Kind ``states-gone``, if it begins there
    or soon after, and the optimizer has lost its states; else ``within-start``.
    """
    step = finding.step_first
    start = None if step is None else max((at for at in run.restarts if at <= step), default=None)
    is_soon = step is not None and start is not None and step - start <= FILLING
    change = _changed_params(run, start) if start is not None and is_soon else None
    if start is not None and change is not None and not change[0] and _has_lost_states(run, start):
        return replace(
            finding,
            claim=f"{finding.claim} The job was started again at step {start}, with an optimizer that holds none of "
            "the states that it had.",
            evidence={**finding.evidence, "kind": ["at-restart", "states-gone"]},
            next=(_LOOK_AT_STATES, *finding.next),
        )
    if step is None or step != start:
        return replace(finding, evidence={**finding.evidence, "kind": ["within-start"]})
    claim = f"{finding.claim} The job was started again at step {step}."
    if change is None:
        return replace(finding, claim=claim, evidence={**finding.evidence, "kind": ["at-restart"]})
    names, num_params = change
    evidence = {**finding.evidence, "kind": ["at-restart", "weights-other" if names else "weights-kept"]}
    if not names:
        claim = f"{claim} Its weights are as the start before had left them."
        return replace(finding, claim=claim, evidence=evidence, next=(_LOOK_ELSEWHERE, *finding.next))
    subject = (
        "Its weights are"
        if len(names) == num_params
        else f"Of {counted(num_params, 'parameter')} {named_some(names)} are"
    )
    initial_clause = ", but those that it first began with" if _are_initial(run, step, names) else ""
    return replace(
        finding,
        claim=f"{claim} {subject} not as the start before had left them{initial_clause}.",
        evidence={**evidence, "names": names[:100]},
        next=(_LOOK_AT_LOADING,),
    )


def _has_lost_states(run: Run, step: int) -> bool:
    """True where a rank goes on with no state of the optimizer, and had some."""
    opening, closing = (run.texts(name) for name in ("opening_states", "closing_states"))
    return any(
        json.loads(text) and not json.loads(opening.get((step, rank), "{}"))
        for (at, rank), text in closing.items()
        if at == step - 1
    )


def _changed_params(run: Run, step: int) -> tuple[list[str], int] | None:
    """Names of the parameters that are not as they were left at the step before, and the number of all; None where
    nobody looked.
    """
    closing = {
        rank: row for (at, rank), row in run.lists("closing_digests", steps=[step - 1]).items() if at == step - 1
    }
    opening = {rank: row for (at, rank), row in run.lists("param_digests", steps=[step]).items() if at == step}
    # One rank is enough: whether replicas differ is another check's question.
    for rank in sorted(closing.keys() & opening.keys() & run.env.keys()):
        names = [*run.env[rank].params, *run.env[rank].frozen]
        if len(closing[rank]) == len(opening[rank]) == len(names):
            pairs = zip(names, closing[rank], opening[rank], strict=True)
            return [name for name, before, after in pairs if before != after], len(names)
    return None


def _are_initial(run: Run, step: int, names: Sequence[str]) -> bool:
    """True where these parameters are, bit for bit, as they were at the first step of the Run."""
    first = int(run.steps[0])
    rows = run.lists("param_digests", steps=[first, step])
    for rank, env in run.env.items():
        before, after = rows.get((first, rank)), rows.get((step, rank))
        all_names = [*env.params, *env.frozen]
        if before is not None and after is not None and len(before) == len(after) == len(all_names):
            return all(before[all_names.index(name)] == after[all_names.index(name)] for name in names)
    return False
