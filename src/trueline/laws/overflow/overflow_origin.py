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
from trueline.laws.overflow.nonfinite_reach import Reached, reached
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
class _Found:
    """What one rank's step shows: its first origin that reaches something."""

    flow: NonfiniteFlow
    reached: Reached
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
    def foreign(self) -> bool:
        """Whether the value may have come from another rank."""
        return self.origin.kind in ("received", "reduced")

    @property
    def signature(self) -> tuple[Any, ...]:
        """What is equal on ranks that show the same."""
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
        found = _own(_found_at(run, step))
        if not found:
            continue
        follows = not scaling or recorded.index(step) == recorded.index(scaling[-1]) + 1
        scaling = [*(scaling if follows else ()), step] if _is_scaling(run, found) else []
        if scaling and len(scaling) <= _HALVINGS:
            findings = findings or [_finding(run, found, scaled=True)]
            continue
        return [_finding(run, found, scaled=False)]
    return findings


def _found_at(run: Run, step: int) -> list[_Found]:
    found: list[_Found] = []
    for rank in run.record_ranks:
        flow = NonfiniteFlow(read_step(run, step, rank))
        origins = reached(flow)
        if origins:
            found.append(_Found(flow, origins[0], len(origins) - 1))
    return found


def _own(found: Sequence[_Found]) -> list[_Found]:
    """Those of the ranks that have the earliest origin, without those that received it from another rank."""
    own = (
        [each for each in found if not each.foreign]
        or [each for each in found if not _was_sent(each, found)]
        or list(found)
    )
    if not own:
        return []
    first = min(own, key=lambda each: (each.value.site.micro, each.origin.at))
    return [each for each in own if each.signature == first.signature]


def _was_sent(received: _Found, found: Sequence[_Found]) -> bool:
    """Whether another rank put what is not finite into the collective that a value was received by."""
    others = [each.flow for each in found if each is not received]
    sent = ((flow, flow.made_by(received.origin)) for flow in others)
    return any(call is not None and any(map(flow.bad, call.ins)) for flow, call in sent)


def _is_scaling(run: Run, found: Sequence[_Found]) -> bool:
    """Whether a gradient scaler that looks for its scale explains the origin."""
    for each in found:
        in_backward = each.origin.kind in ("backward", "unseen gradient", "reduced", "received")
        if not in_backward or each.value.site.phase == "fwd" or not is_scaled(run, each.step):
            return False
    return True


def _grade(run: Run, found: _Found) -> Grade:
    kind, value = found.origin.kind, found.value
    if kind in ("made", "turned", "backward", "param"):
        return "critical"
    if kind in ("received", "reduced"):
        return "critical" if set(run.record_ranks) == set(range(run.world_size)) else "high"
    if kind == "given":
        plan = run.manifest.plan
        everything = plan.get("names", ["*"]) == ["*"] and not plan.get("between")
        seen = found.step.values
        calls = any(each.kind == "op" for each in seen) and not any("compiled" in each.flags for each in seen)
        if (value.kind == "module" and not value.module) or (everything and calls):
            return "critical"
        used = found.call
        return "high" if used is not None and any(map(found.flow.bad, used.outs)) else "medium"
    return "high"


def _finding(run: Run, found: Sequence[_Found], *, scaled: bool) -> Finding:
    first = found[0]
    step = first.step.step
    grade = _grade(run, first)
    ranks = tuple(each.rank for each in found)
    end = {"loss": "the loss", "output": "the last output", "gradient": "gradients", "parameter": "a parameter"}
    ended = "" if first.origin.kind == "param" else f"; they reached {end[first.reached.what]}"
    skipped = ". A gradient scaler is at work: it skips such a step and lowers its scale" if scaled else ""
    where = f"on {ranks_text(ranks)} at step {step}"
    return Finding(
        code=CODE,
        severity="info" if scaled else _SEVERITY[grade],
        claim=capitalized(f"{_what(first)} {where}{_line(run, first)}{ended}{skipped}."),
        ranks=ranks,
        step_first=step,
        step_last=step,
        sites=_sites(found),
        measured=float(sum(first.value.counts)),
        expected=0.0,
        unit="elements that are not finite",
        false_alarm_rate=0.0,
        evidence=_evidence(run, found, grade),
        next=_next(first, _line(run, first).strip(" ()")),
    )


def _what(found: _Found) -> str:
    """The fact in words, up to where it was seen."""
    origin, value = found.origin, found.value
    much = _much(value)
    if origin.kind == "made":
        return f"call {_call_text(origin.call)} returned {much} from finite inputs"
    if origin.kind == "turned":
        before = _much(origin.maker.value) if origin.maker is not None else "infinities"
        return f"call {_call_text(origin.call)} returned {much} from a mask with {before}"
    if origin.kind == "param":
        return f"parameter {value.site.name} held {much} before anything used it"
    if origin.kind == "given":
        return f"input {value.site.slot} of {_call_text(origin.call)} held {much}, which no recorded call returned,"
    if origin.kind == "backward":
        calls = [_call_text(call) for call in (origin.call, *origin.others)]
        made = f"the backward of {calls[0]}" if len(calls) == 1 else f"the sum of the backward of {listed(calls)}"
        return f"{made} passed on {much} for {_target(value)} from a finite gradient"
    if origin.kind == "unseen gradient":
        return f"the gradient of {_target(value)} had {much}, and its use was not recorded,"
    if origin.kind == "received":
        return f"collective {_call_text(origin.call)} returned {much} from finite values"
    return f"the gradient of {value.site.name} is finite after backward and had {much} when the optimizer got it"


def _target(value: Value) -> str:
    site = value.site
    return site.name if value.kind == "param" else f"{site.slot} of {site.name}#{site.call}"


def _call_text(call: CallKey | None) -> str:
    return "a call" if call is None else f"{call[2]}#{call[3]}"


def _much(value: Value) -> str:
    """``12 +inf and 3 NaN of 4,096 elements``."""
    kinds = zip(value.counts, ("NaN", "+inf", "-inf"), strict=True)
    parts = [f"{count:,} {kind}" for count, kind in kinds if count]
    return f"{listed(parts)} of {counted(value.numel, 'element')}"


def _frames(run: Run, found: _Found) -> tuple[str, ...]:
    number = (found.value if found.call is None else found.call.first).stack
    if number is None:
        return ()
    try:
        return run.stack_frames(found.rank, number)
    except RunError:
        return ()


def _line(run: Run, found: _Found) -> str:
    frames = _frames(run, found)
    if not frames or found.origin.kind == "param":
        return ""
    return f" ({frames[0].partition(' ')[0].replace(chr(92), '/').rpartition('/')[2]})"


def _sites(found: Sequence[_Found]) -> tuple[str, ...]:
    """The origin on each rank, then what used it, then what it reached, of the first."""
    first = found[0]
    used = first.call if first.origin.kind in ("param", "given", "backward") else None
    use = [] if used is None else (used.outs or used.ins)[:1]
    own = [each.value for each in found]
    shown = [*own[: MAX_SITES - 2], *use, first.reached.path[-1]]
    return tuple(dict.fromkeys(str(value.site) for value in shown))[:MAX_SITES]


def _evidence(run: Run, found: Sequence[_Found], grade: Grade) -> dict[str, Any]:
    first = found[0]
    origin, value, call = first.origin, first.value, first.call
    if origin.kind == "backward":
        gradients = first.flow.gradients.get(origin.call, []) if origin.call is not None else []
        inputs = [each for each in gradients if each.returned]
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
        "stack": list(_frames(run, first)[:5]),
        "inputs": [{"site": str(i.site), "dtype": i.dtype, "largest_finite": i.largest} for i in inputs],
        "reached": first.reached.what,
        "path": [str(each.site) for each in path[:_MAX_PATH]],
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
    """Calls that took values that are not finite: how many returned such, and how many returned finite ones."""
    propagated = absorbed = 0
    for call in flow.calls.values():
        if any(map(flow.bad, call.ins)) and call.outs:
            if any(map(flow.bad, call.outs)):
                propagated += 1
            else:
                absorbed += 1
    return {"num_propagated": propagated, "num_absorbed": absorbed}


def _last_finite(run: Run, found: _Found) -> int | None:
    """The last recorded step before in which the parameter was finite."""
    name = found.value.site.name
    before: list[int] = [step for step in run.record_steps.tolist() if step < found.step.step]
    for step in reversed(before[-_HALVINGS:]):
        values = read_step(run, step, found.rank)
        seen = [each for each in values.values if each.site.phase == "param" and each.site.name == name]
        if seen and not any(values.nonfinite[each.index] for each in seen):
            return step
    return None


def _next(found: _Found, line: str) -> tuple[str, ...]:
    origin, site = found.origin, found.value.site
    values = "Record the values around it: " + record_step(
        site.step, f"--set depth=tensor --set {shlex.quote(f'names={site.name}*')}"
    )
    if origin.kind == "param":
        return ("Load an earlier checkpoint and look for the step that wrote the value: an update, a file, or memory.",)
    if origin.kind == "turned":
        return (
            f"Look at the mask for a row that leaves nothing to attend to. {forward_advice(_faulty_call(found, line))}",
            values,
        )
    if origin.kind in ("given", "unseen gradient"):
        return (f"Record all names, so that what made the value is seen: {record_step(site.step)}",)
    if origin.kind in ("received", "reduced"):
        return ("Look at the largest finite values that ranks sent: their sum may not fit into the dtype.",)
    call = _faulty_call(found, line)
    return (backward_advice(call) if origin.kind == "backward" else forward_advice(call), values)


def _faulty_call(found: _Found, line: str) -> FaultyCall:
    """The call that is to blame, at ``line`` of the code, with what it took in its forward pass."""
    call = found.call
    first = found.value if call is None else call.first
    return FaultyCall(
        function=first.function,
        dtype=found.value.dtype.removeprefix("torch."),
        inputs=[] if call is None else call.ins,
        args=first.args or "",
        line=line,
    )
