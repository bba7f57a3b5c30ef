"""The call, weight or input where the first NaN or infinity of a recorded step came from.

What it finds
-------------
In the first recorded step in which a NaN or an infinity does harm: where it began, on which rank, in which line of
code, and by which calls it reached the loss. It needs recorded steps (`trueline run --plan mix`; `ops` names calls
too, `modules` names modules).

Why it matters
--------------
One value that is not finite makes everything after it so within one step, and after the update on every rank. The
result, a loss of NaN, is the same whatever caused it: a weight that was damaged, a call that overflowed in
float16, a row of attention with nothing to attend to, a gradient that grew from layer to layer.

How it decides
--------------
Exactly, from the counts of NaN, +inf and -inf of every recorded value, in the order of execution:

- a call whose inputs and weights were finite and whose output is not is an origin (critical, an error);
- so is a parameter, an input of the model, or another value that was not finite before anything used it;
- so is a call that got a finite gradient and passed on one that is not; where several calls used that value, its
  gradient is their sum, and all that could have done it are named;
- so is a collective to which all ranks sent finite values, or a gradient that is finite after backward on every rank
  and is not when the optimizer gets it;
- a call whose inputs were not finite propagates, and is only counted;
- where the names or calls in a plan are too few to see who made a value: "high" (a warning) if the call that used it
  first returned such values too, "medium" (an info) if it is seen as an input only. Compiled calls count as unseen.

Of several ranks, the one that has an origin of its own is named, not those that received the value from it.

Healthy models hold infinities: attention masks of -inf, scores of experts that were not chosen, padding. So an origin
is reported only if its values reach a gradient, a parameter, the state of the optimizer, a value of one element that
backward began at, or, where a step has no gradients at all, the last output or what the model returned. A mask
whose -inf goes into a softmax that returns finite numbers reaches none of them. Infinities that an argument asks for
(`masked_fill(mask, -inf)`, `torch.full(..., -inf)`), and tensors from outside of the step that have nothing but
-inf, are taken for masks: a call that returns NaN, or infinities of the other sign, from nothing worse than them is
the origin itself (a row of attention that is masked throughout), unless it is a matrix product, a convolution, a
normalisation or an embedding, to which nobody gives a mask: then what made the infinity is.

A gradient scaler overflows on purpose and skips the step. Under float16 with a scaler, values that are not finite in
backward alone are an info, unless they last for more than 16 recorded steps in a row (see `worker-nonfinite`).

What it may miss
----------------
What overflows and is clamped, masked or skipped before it reaches anything. What happens in a step or on a rank that
was not recorded: then a weight or a received value is the earliest thing there is. The parts of a compiled region.
What memory holds that a call is to write into (`out=`) is not looked at: a weight under FSDP2 is judged by its shard.
Views taken by an attribute (`x.T`, `x.data`) are recognised by their statistics, so a value with the same counts and
extremes is taken for a copy. A float mask that is wrong in itself, but whose -inf stays -inf, shows at the call where
it becomes NaN.

Example
-------
Call blocks.0.mlp.0.linear#0 returned 3 +inf of 2,048 elements from finite inputs on rank 0 at step 4 (train.py:31);
they reached the loss.

Wrong and right
---------------
Wrong:

```python
scores = (q @ k.transpose(-2, -1)) / math.sqrt(q.shape[-1])  # in float16 the product overflows first
```

Right:

```python
scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
```
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trueline.judge.actions import record_step
from trueline.judge.compared_ranks import MAX_SITES
from trueline.judge.recorded.step_values import Call, CallKey, StepValues, Value, key_of, read_step
from trueline.judge.recorded.steps import is_scaled, nonfinite_steps
from trueline.laws.overflow.nonfinite_advice import FaultyCall, backward_advice, forward_advice
from trueline.laws.overflow.nonfinite_origin import NonfiniteFlow, Origin
from trueline.laws.overflow.nonfinite_reach import ReachedEnd, reached_ends
from trueline.schema.errors import RunError
from trueline.schema.finding import Finding, Severity
from trueline.schema.text.words import capitalized, counted, listed, ranks_text
from trueline.store.reader import Run

CODE = "overflow-origin"
QUESTION = "recorded"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

Grade = Literal["critical", "high", "medium"]
_SEVERITY: dict[Grade, Severity] = {"critical": "error", "high": "warning", "medium": "info"}

_HALVINGS = 16
"""torch.amp.GradScaler starts at 2**16 and halves at each overflow."""

_MAX_PATH = 6


@dataclass(frozen=True)
class _RankOrigin:
    """The first origin of one rank's step that reaches something."""

    flow: NonfiniteFlow
    reached: ReachedEnd
    num_more: int

    @property
    def step(self) -> StepValues:
        return self.flow.step

    @property
    def rank(self) -> int:
        return self.step.ranks[0]

    @property
    def origin(self) -> Origin:
        return self.reached.origin

    @property
    def value(self) -> Value:
        return self.origin.value

    @property
    def call(self) -> Call | None:
        return self.flow.made_by(self.origin)

    @property
    def is_foreign(self) -> bool:
        """True where the value may have come from another rank."""
        return self.origin.kind in ("received", "reduced")

    @property
    def signature(self) -> tuple[Any, ...]:
        """A key that is equal on ranks that show the same origin."""
        return self.origin.kind, *key_of(self.value), self.value.site.slot


def check(run: Run) -> list[Finding]:
    """The Finding of the first step that shows an origin, and an info on a gradient scaler at work before it.

    Raises ``CannotTell`` where no step was recorded, or none with statistics.
    """
    steps = nonfinite_steps(run)
    recorded: list[int] = run.record_steps.tolist()
    findings: list[Finding] = []
    scaling: list[int] = []
    for step in steps:
        rank_origins = _own_origins(_rank_origins(run, step))
        if not rank_origins:
            continue
        # Only at recorded steps in a row is it one search for a scale.
        continues = not scaling or recorded.index(step) == recorded.index(scaling[-1]) + 1
        scaling = [*(scaling if continues else ()), step] if _is_scaling(run, rank_origins) else []
        if scaling and len(scaling) <= _HALVINGS:
            findings = findings or [_finding(run, rank_origins, scaled=True)]
            continue
        return [_finding(run, rank_origins, scaled=False)]
    return findings


def _rank_origins(run: Run, step: int) -> list[_RankOrigin]:
    rank_origins: list[_RankOrigin] = []
    for rank in run.record_ranks:
        flow = NonfiniteFlow(read_step(run, step, rank))
        origins = reached_ends(flow)
        if origins:
            rank_origins.append(_RankOrigin(flow, origins[0], len(origins) - 1))
    return rank_origins


def _own_origins(rank_origins: Sequence[_RankOrigin]) -> list[_RankOrigin]:
    """Origins of the ranks that have the earliest one, without the ranks that received it from another."""
    # In order: ranks whose value is surely their own, those to which nobody sent it, or all.
    candidates = (
        [rank_origin for rank_origin in rank_origins if not rank_origin.is_foreign]
        or [rank_origin for rank_origin in rank_origins if not _was_sent(rank_origin, rank_origins)]
        or list(rank_origins)
    )
    if not candidates:
        return []
    first = min(candidates, key=lambda candidate: (candidate.value.site.micro, candidate.origin.at))
    return [rank_origin for rank_origin in candidates if rank_origin.signature == first.signature]


def _was_sent(received: _RankOrigin, rank_origins: Sequence[_RankOrigin]) -> bool:
    """True where another rank put what is not finite into the collective that a value was received by."""
    other_flows = [rank_origin.flow for rank_origin in rank_origins if rank_origin is not received]
    sent = ((flow, flow.made_by(received.origin)) for flow in other_flows)
    return any(call is not None and any(map(flow.bad, call.ins)) for flow, call in sent)


def _is_scaling(run: Run, rank_origins: Sequence[_RankOrigin]) -> bool:
    """True where a gradient scaler that looks for its scale explains the origin."""
    for rank_origin in rank_origins:
        in_backward = rank_origin.origin.kind in ("backward", "unseen gradient", "reduced", "received")
        if not in_backward or rank_origin.value.site.phase == "fwd" or not is_scaled(run, rank_origin.step):
            return False
    return True


def _grade(run: Run, rank_origin: _RankOrigin) -> Grade:
    kind, value = rank_origin.origin.kind, rank_origin.value
    if kind in ("made", "turned", "backward", "param"):
        return "critical"
    if kind in ("received", "reduced"):
        # The value may have come from a rank that was not recorded.
        return "critical" if set(run.record_ranks) == set(range(run.world_size)) else "high"
    if kind == "given":
        plan = run.manifest.plan
        records_all_names = plan.get("names", ["*"]) == ["*"] and not plan.get("between")
        sightings = rank_origin.step.values
        has_calls = any(sighting.kind == "op" for sighting in sightings) and not any(
            "compiled" in sighting.flags for sighting in sightings
        )
        if (value.kind == "module" and not value.module) or (records_all_names and has_calls):
            return "critical"
        user = rank_origin.call
        return "high" if user is not None and any(map(rank_origin.flow.bad, user.outs)) else "medium"
    return "high"


def _finding(run: Run, rank_origins: Sequence[_RankOrigin], *, scaled: bool) -> Finding:
    first = rank_origins[0]
    step = first.step.step
    grade = _grade(run, first)
    ranks = tuple(rank_origin.rank for rank_origin in rank_origins)
    end_texts = {"loss": "the loss", "output": "the last output", "gradient": "gradients", "parameter": "a parameter"}
    end_clause = "" if first.origin.kind == "param" else f"; they reached {end_texts[first.reached.end]}"
    scaler_clause = ". A gradient scaler is at work: it skips such a step and lowers its scale" if scaled else ""
    where = f"on {ranks_text(ranks)} at step {step}"
    return Finding(
        code=CODE,
        severity="info" if scaled else _SEVERITY[grade],
        claim=capitalized(f"{_fact_text(first)} {where}{_line_text(run, first)}{end_clause}{scaler_clause}."),
        ranks=ranks,
        step_first=step,
        step_last=step,
        sites=_sites(rank_origins),
        measured=float(sum(first.value.counts)),
        expected=0.0,
        unit="elements that are not finite",
        false_alarm_rate=0.0,
        evidence=_evidence(run, rank_origins, grade),
        next=_advice(first, _line_text(run, first).strip(" ()")),
    )


def _fact_text(rank_origin: _RankOrigin) -> str:
    """The fact in words, up to where it was seen."""
    origin, value = rank_origin.origin, rank_origin.value
    counts = _counts_text(value)
    if origin.kind == "made":
        return f"call {_call_text(origin.call)} returned {counts} from finite inputs"
    if origin.kind == "turned":
        mask_counts = _counts_text(origin.maker.value) if origin.maker is not None else "infinities"
        return f"call {_call_text(origin.call)} returned {counts} from a mask with {mask_counts}"
    if origin.kind == "param":
        return f"parameter {value.site.name} held {counts} before anything used it"
    if origin.kind == "given":
        return f"input {value.site.slot} of {_call_text(origin.call)} held {counts}, which no recorded call returned,"
    if origin.kind == "backward":
        calls = [_call_text(call) for call in (origin.call, *origin.further_calls)]
        backward = f"the backward of {calls[0]}" if len(calls) == 1 else f"the sum of the backward of {listed(calls)}"
        return f"{backward} passed on {counts} for {_target(value)} from a finite gradient"
    if origin.kind == "unseen gradient":
        return f"the gradient of {_target(value)} had {counts}, and its use was not recorded,"
    if origin.kind == "received":
        return f"collective {_call_text(origin.call)} returned {counts} from finite values"
    return f"the gradient of {value.site.name} is finite after backward and had {counts} when the optimizer got it"


def _target(value: Value) -> str:
    site = value.site
    return site.name if value.kind == "param" else f"{site.slot} of {site.name}#{site.call}"


def _call_text(call: CallKey | None) -> str:
    return "a call" if call is None else f"{call[2]}#{call[3]}"


def _counts_text(value: Value) -> str:
    """``12 +inf and 3 NaN of 4,096 elements``."""
    kinds = zip(value.counts, ("NaN", "+inf", "-inf"), strict=True)
    parts = [f"{count:,} {kind}" for count, kind in kinds if count]
    return f"{listed(parts)} of {counted(value.numel, 'element')}"


def _stack_frames(run: Run, rank_origin: _RankOrigin) -> tuple[str, ...]:
    number = (rank_origin.value if rank_origin.call is None else rank_origin.call.first).stack
    if number is None:
        return ()
    try:
        return run.stack_frames(rank_origin.rank, number)
    except RunError:
        return ()


def _line_text(run: Run, rank_origin: _RankOrigin) -> str:
    frames = _stack_frames(run, rank_origin)
    if not frames or rank_origin.origin.kind == "param":
        return ""
    return f" ({frames[0].partition(' ')[0].replace(chr(92), '/').rpartition('/')[2]})"


def _sites(rank_origins: Sequence[_RankOrigin]) -> tuple[str, ...]:
    """The origin on each rank, then what used it, then what it reached, of the first."""
    first = rank_origins[0]
    user = first.call if first.origin.kind in ("param", "given", "backward") else None
    user_values = [] if user is None else (user.outs or user.ins)[:1]
    origin_values = [rank_origin.value for rank_origin in rank_origins]
    values = [*origin_values[: MAX_SITES - 2], *user_values, first.reached.path[-1]]
    return tuple(dict.fromkeys(str(value.site) for value in values))[:MAX_SITES]


def _evidence(run: Run, rank_origins: Sequence[_RankOrigin], grade: Grade) -> dict[str, Any]:
    first = rank_origins[0]
    origin, value, call = first.origin, first.value, first.call
    if origin.kind == "backward":
        gradients = first.flow.gradients.get(origin.call, []) if origin.call is not None else []
        inputs = [gradient for gradient in gradients if gradient.returned]
    else:
        inputs = [] if call is None else call.ins
    path = first.reached.path
    evidence: dict[str, Any] = {
        "kind": [origin.kind.replace(" ", "-"), *(["float16"] if value.dtype.rpartition(".")[2] == "float16" else [])],
        "grade": grade,
        "origin": origin.kind,
        "site": str(value.site),
        "counts": dict(zip(("nan", "pos_inf", "neg_inf"), value.counts, strict=True)),
        "dtype": value.dtype,
        "stack": list(_stack_frames(run, first)[:5]),
        "inputs": [{"site": str(i.site), "dtype": i.dtype, "largest_finite": i.largest} for i in inputs],
        "reached": first.reached.end,
        "path": [str(step_value.site) for step_value in path[:_MAX_PATH]],
        "path_length": len(path),
        "num_other_origins": first.num_more,
        **_counted_calls(first.flow),
    }
    if origin.maker is not None:
        evidence["mask"] = str(origin.maker.value.site)
    if origin.kind == "param":
        evidence["last_finite_step"] = _last_finite(run, first)
    return evidence


def _counted_calls(flow: NonfiniteFlow) -> dict[str, int]:
    """Numbers of calls that took values which are not finite: those that returned such, and those that did not."""
    propagated = absorbed = 0
    for call in flow.calls.values():
        if any(map(flow.bad, call.ins)) and call.outs:
            if any(map(flow.bad, call.outs)):
                propagated += 1
            else:
                absorbed += 1
    return {"num_propagated": propagated, "num_absorbed": absorbed}


def _last_finite(run: Run, rank_origin: _RankOrigin) -> int | None:
    """The last recorded step before in which the parameter was finite."""
    name = rank_origin.value.site.name
    earlier_steps: list[int] = [step for step in run.record_steps.tolist() if step < rank_origin.step.step]
    for step in reversed(earlier_steps[-_HALVINGS:]):
        step_values = read_step(run, step, rank_origin.rank)
        sightings = [
            sighting for sighting in step_values.values if sighting.site.phase == "param" and sighting.site.name == name
        ]
        if sightings and not any(step_values.nonfinite[sighting.index] for sighting in sightings):
            return step
    return None


def _advice(rank_origin: _RankOrigin, line: str) -> tuple[str, ...]:
    origin, site = rank_origin.origin, rank_origin.value.site
    record_advice = "Record the values around it: " + record_step(
        site.step, f"--set depth=tensor --set {shlex.quote(f'names={site.name}*')}"
    )
    if origin.kind == "param":
        return ("Load an earlier checkpoint and look for the step that wrote the value: an update, a file, or memory.",)
    if origin.kind == "turned":
        advice = forward_advice(_faulty_call(rank_origin, line))
        return (f"Look at the mask for a row that leaves nothing to attend to. {advice}", record_advice)
    if origin.kind in ("given", "unseen gradient"):
        return (f"Record all names, so that what made the value is seen: {record_step(site.step)}",)
    if origin.kind in ("received", "reduced"):
        return ("Look at the largest finite values that ranks sent: their sum may not fit into the dtype.",)
    call = _faulty_call(rank_origin, line)
    return (backward_advice(call) if origin.kind == "backward" else forward_advice(call), record_advice)


def _faulty_call(rank_origin: _RankOrigin, line: str) -> FaultyCall:
    """The call that is to blame, at ``line`` of the code, with what it took in its forward pass."""
    call = rank_origin.call
    first = rank_origin.value if call is None else call.first
    return FaultyCall(
        function=first.function,
        dtype=rank_origin.value.dtype.removeprefix("torch."),
        inputs=[] if call is None else call.ins,
        args=first.args or "",
        line=line,
    )
