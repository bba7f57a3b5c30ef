"""A recorded call as the document that ``proof`` judges: what is called, with which inputs, and what is expected."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.capture.record.buffer import UNFILLED
from trueline.comparison.op_names import function_of
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run
from trueline.trials.op import proof, recalled
from trueline.trials.op.inputs import Inputs, inputs_of, repeating, stored_output
from trueline.trials.op.law import expected_rel
from trueline.trials.op.proof import LIMIT
from trueline.trials.op.recorded_calls import RecordedCall
from trueline.trials.op.sum_bound import sum_bounds

SCHEMA = 1
"""Version of ``expected.json``; raised when a key changes meaning."""

_WRITING = frozenset({"scatter", "index_copy", "setitem", "index_put", "masked_scatter", "put"})
"""Functions of which a place that is named twice may hold either number."""

GROSS_REL = 0.01
"""The error that rows which repeat must make to take an answer back: additions that all round to one side are off by
n u / 2 after n terms, in float32 by 0.006 after 200,000, and that is no fault of a kernel."""

_AUTOCAST = (None, "bfloat16", "float16")


@dataclass(frozen=True)
class JudgedCall:
    """``document`` as ``expected.json`` has it, the ``inputs`` and the ``exact`` results that it was made of."""

    call: RecordedCall
    document: dict[str, Any]
    inputs: Inputs
    exact: dict[str, Tensor]
    repeated: bool = False
    """Whether rows of what was drawn repeat."""

    @property
    def adds_up(self) -> bool:
        """Whether the call makes fewer numbers of more, as a sum over rows does, forward or backward."""
        largest = max((x.numel() for x in self.inputs.tensors.values()), default=0)
        return not self.call.in_place and any(0 < x.numel() < largest for x in self.exact.values())

    def on(self, device: str, benchmark: Any = None) -> dict[str, dict[str, Any]]:
        """The outputs as ``proof.proved`` judges them on a device, of sums with the ``sum_bound`` of float32.
        Raises ``CannotTell`` where it cannot be called.
        """
        try:
            outputs = proof.proved(self.document, self.inputs.tensors, device, exact=self.exact, benchmark=benchmark)
            bounds = sum_bounds(self.document["call"], self.inputs.tensors, self.exact) if self.adds_up else {}
        except recalled.Impossible as why:
            raise CannotTell(_clause(why)) from None
        for slot, error in outputs.items():
            bound = bounds.get(slot)
            if bound is None or not error["unit"]:
                continue
            error["sum_bound"] = bound.rel(error["unit"])
            if error["verdict"] == "within" and error["rel"] > LIMIT * error["sum_bound"]:
                error["why"] += f"; {bound.says(error['sum_bound'])}"
        return outputs


def judged_on(
    run: Run, call: RecordedCall, device: str, *, seed: int = 0, benchmark: Any = None
) -> tuple[JudgedCall, dict[str, dict[str, Any]]]:
    """``call`` and its outputs as they are judged on a device. Where inputs were drawn, sums are asked once more with
    rows that repeat, which are the worst for them: no statistic shows whether they did. An answer that is another then
    is taken back, and the call is that with such rows. Raises ``CannotTell``.
    """
    judged = judged_call(run, call, seed=seed)
    outputs = judged.on(device, benchmark)
    if judged.inputs.drawn and judged.adds_up and all(output["verdict"] == "within" for output in outputs.values()):
        with contextlib.suppress(CannotTell):
            repeating = judged_call(run, call, seed=seed, repeated=True)
            if _taken_back(outputs, repeating.on(device)):
                return repeating, outputs
    return judged, outputs


def _taken_back(outputs: dict[str, dict[str, Any]], repeating: dict[str, dict[str, Any]]) -> bool:
    """Whether outputs that are within rounding are not where rows of the drawn inputs repeat; they are marked so."""
    slots = [
        slot
        for slot, error in repeating.items()
        if slot in outputs and error["verdict"] == "beyond" and error["rel"] > GROSS_REL
    ]
    for slot in slots:
        outputs[slot] |= {
            "verdict": "cannot tell",
            "lacks": "values",
            "why": f"{outputs[slot]['rel']:.2g} with numbers drawn to the recorded statistics, "
            f"{repeating[slot]['rel']:.2g} where their rows repeat: which the Run had was not kept",
        }
    return bool(slots)


def judged_call(run: Run, call: RecordedCall, *, seed: int = 0, repeated: bool = False) -> JudgedCall:
    """``call`` with its inputs, made ready to be judged; ``repeated``: with drawn ones whose rows repeat. Raises
    ``CannotTell`` with the reason why it cannot be.
    """
    _require_alone(call)
    backward = _has_backward(call)
    inputs = inputs_of(run, call, backward=backward, seed=seed)
    if repeated:
        inputs = repeating(inputs, indices=function_of(call.api) not in _WRITING)
    if not inputs.tensors:
        raise CannotTell("it takes no tensor")
    args, kwargs = call.arguments()
    described: dict[str, Any] = {
        "function": call.api,
        "args": args,
        "kwargs": kwargs,
        "in_place": call.in_place,
        "autocast": None,
        "gradients": _gradients(call) if backward else None,
    }
    try:
        returned = _as_recorded(described, inputs.tensors, call)
        exact = recalled.outcomes(described, inputs.tensors, exact=True)
    except recalled.Impossible as why:
        raise CannotTell(_clause(why)) from None
    expected = {
        slot: _expected(described, call, inputs, slot, x, exact) for slot, x in returned.items() if slot in exact
    }
    document = {
        "schema": SCHEMA,
        "site": call.site,
        "torch": torch.__version__,
        "call": described,
        "inputs": {
            slot: {"strides": None if x.is_contiguous() else list(x.stride())} for slot, x in inputs.tensors.items()
        },
        "drawn": list(inputs.drawn),
        "expected": expected,
        "recorded": {} if inputs.drawn else _recorded(run, call),
    }
    return JudgedCall(call, document, inputs, exact, repeated)


def _clause(why: recalled.Impossible) -> str:
    """The sentence of ``why``, to stand within another."""
    says = str(why).rstrip(".")
    return says[0].lower() + says[1:] if says.split()[0] in ("It", "The", "There", "An") else says


def _require_alone(call: RecordedCall) -> None:
    """Raise ``CannotTell`` for what may not be called by itself."""
    if call.kind == "collective" or ".distributed." in call.api:
        raise CannotTell("it communicates with other ranks")
    if "compiled" in call.flags:
        raise CannotTell("it is compiled code, of which only the whole was recorded")
    if not call.outputs:
        raise CannotTell("it returns no tensor")
    if any(value.row["note"] == UNFILLED for value in call.outputs.values()):
        raise CannotTell("it returns memory that nothing has written")
    written = {
        slot: argument for slot, argument in call.inputs.items() if slot.partition(".")[0] == "in0" and call.in_place
    }
    for slot, value in written.items():
        other_roots = {argument.root for name, argument in call.inputs.items() if name != slot}
        if value.root in other_roots or 0 in (value.strides or ()):
            raise CannotTell("it changes memory that it also reads as another input")


def _has_backward(call: RecordedCall) -> bool:
    arrived = any(slot in call.gradients for slot in call.outputs)
    return call.phase == "fwd" and arrived and not call.in_place and any(slot in call.gradients for slot in call.inputs)


def _gradients(call: RecordedCall) -> dict[str, Any]:
    return {
        "given": {slot: f"grad of {slot}" for slot in call.outputs if slot in call.gradients},
        "wanted": [slot for slot in call.inputs if slot in call.gradients],
    }


def _as_recorded(described: dict[str, Any], inputs: dict[str, Tensor], call: RecordedCall) -> dict[str, Tensor]:
    """What the call returns, with ``autocast`` put into ``described`` where the recorded dtypes need it."""
    recorded = {slot: (value.dtype, value.shape) for slot, value in call.outputs.items()}
    unlike = ""
    # whether autocast was on is not recorded: the dtypes of the outputs tell
    for autocast in _AUTOCAST:
        described["autocast"] = autocast
        try:
            returned = recalled.outcomes(described, inputs)
        except recalled.Impossible:
            if autocast is _AUTOCAST[-1] or not _mixed(inputs):
                raise
            continue
        forms = {slot: (str(x.dtype).removeprefix("torch."), tuple(x.shape)) for slot, x in returned.items()}
        if all(forms.get(slot) == form for slot, form in recorded.items() if slot in forms):
            return returned
        slot = next(slot for slot, form in recorded.items() if slot in forms and forms[slot] != form)
        unlike = unlike or f"it returns {forms[slot][0]} {list(forms[slot][1])} here, and {recorded[slot][0]} "
        unlike += f"{list(recorded[slot][1])} in the Run" if unlike.endswith(" ") else ""
    raise CannotTell(unlike)


def _mixed(inputs: dict[str, Tensor]) -> bool:
    return len({x.dtype for x in inputs.values() if x.is_floating_point()}) > 1


def _expected(
    described: dict[str, Any], call: RecordedCall, inputs: Inputs, slot: str, returned: Tensor, exact: dict[str, Tensor]
) -> float:
    own_inputs = {name: x for name, x in inputs.tensors.items() if not name.startswith("grad of ")}
    if isinstance(described["args"][0] if described["args"] else None, list) and slot.startswith(("out", "in")):
        position = slot.removeprefix("out") if slot.startswith("out") else slot.partition(".")[2]
        own_inputs = {
            name: x for name, x in own_inputs.items() if name.partition(".")[2] in ("", position)
        } or own_inputs
    arriving = None
    if slot.startswith("grad of "):
        arriving = max((x for name, x in inputs.tensors.items() if name.startswith("grad of ")), key=Tensor.numel)
    dtype = str(returned.dtype).removeprefix("torch.")
    return expected_rel(call.api, own_inputs, exact[slot], dtype, autocast=described["autocast"], arriving=arriving)


def _recorded(run: Run, call: RecordedCall) -> dict[str, str]:
    """A hash of the bits of each output that was stored."""
    outputs = {slot: stored_output(run, call, slot) for slot in call.outputs}
    return {slot: proof.bits_of(x) for slot, x in outputs.items() if x is not None}
