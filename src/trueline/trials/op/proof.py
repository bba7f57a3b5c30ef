"""One operation of a training run by itself, with the inputs that it had: does it return what rounding explains?

    python op.py [--device cuda] [--import MODULE] [--with FILE] [--again N] [--json]

It needs torch and nothing else, and is one file as it is copied. Beside it are ``expected.json``, which says what is
called and what rounding is expected to make of it, and ``inputs.safetensors``. The operation is called twice, and once
in float64 on the CPU, to which errors are relative (L2). ``--with`` reads what ``--json`` printed on another machine.
``--again`` calls it N times instead and counts what bits it returned: always the same, where the device is sound
and the operation repeats itself.
Exit code 0: rounding explains the errors; 1: it does not; 2: the operation cannot be called here; 3: it cannot be told.

Letters: e error of an output against float64, R rows (all dims but the last), u the unit roundoff.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trueline.trials.op.recalled import (  # `alone` puts its text here
    Call,
    Impossible,
    Rounded,
    Values,
    has_decomposition,
    inputs_of,
    outcomes,
    read_safetensors,
)

LIMIT = 8.0
"""An error is more than rounding where it is so many times what rounding is expected to make."""

BENCHMARK_LIMIT = 2.0
"""And, where another machine's error is known, so many times that one (torch/_dynamo/utils.py: same)."""

GRADIENT_MARGIN = 8.0
"""And of gradients so many times more than roundings make: those within a fused backward are seen by no other form of
it. In float32 attention's gradients on a CPU were up to 11 times what ``rounding_seen`` has
(``tests/unit/trials/test_precheck.py``)."""

LEFT_LIMIT = 0.25
"""Share (0-1) of the elements that an update moves from which on leaving them as they are is no rounding."""

FEW = 16
"""Moved elements below which nothing is said of that share."""

MASKS = {torch.float16: 2.0**14, torch.bfloat16: 2.0**120, torch.float32: 2.0**120, torch.float64: 2.0**960}
"""Magnitudes from which on a number is a mask and not a value: beside it, no norm shows anything else."""

_KEYS = ("site", "call", "inputs", "drawn", "expected", "recorded")
_WITH_TIES = frozenset({"topk", "sort", "argsort", "max", "min", "argmax", "argmin", "kthvalue", "median", "mode"})


def with_rounding(inputs: Values, autocast: str | None, seed: int) -> Values:
    """The inputs in float64 on the CPU, each floating element one unit roundoff of its dtype up or down."""
    generator = torch.Generator().manual_seed(seed)
    moved: Values = {}
    for slot, x in inputs.items():
        if not x.is_floating_point():
            moved[slot] = x.cpu()
            continue
        dtype = getattr(torch, autocast) if autocast and x.dtype is torch.float32 else x.dtype
        signs = torch.randint(0, 2, x.shape, generator=generator).double().mul_(2).sub_(1)
        moved[slot] = x.cpu().double() * (1 + signs * torch.finfo(dtype).eps / 2)
    return moved


def errors(output: Tensor, exact: Tensor, *, before: Tensor | None = None) -> dict[str, Any]:
    """How far an output is from its exact form: ``rel``, the L2 norm of e over that of the output; ``row_rel``, the
    largest norm of e in a row over that of the row, or of a usual one if that is larger, and ``row``, which it is;
    ``worst`` (index, and what is there in both); ``wrong_frac`` (0-1) of elements more than one rounding off; and
    ``nonfinite``, elements that are NaN or infinite in one alone. Where an update changed ``before``: ``left_frac``
    (0-1) of what it should move and leaves as it was.
    """
    actual, true = output.detach().cpu(), exact.detach().cpu()
    if actual.shape != true.shape:
        raise Impossible(f"The shape is {list(actual.shape)}, and {list(true.shape)} in float64.")
    if not (actual.is_floating_point() or actual.is_complex()):
        wrong = (actual != true.to(actual.dtype)).flatten()
        share = float(wrong.double().mean()) if wrong.numel() else 0.0
        return {"rel": share, "row_rel": share, "row": None, "worst": None, "wrong_frac": share, "nonfinite": 0}
    rounded = true.to(actual.dtype)
    if actual.is_complex():
        actual, true, rounded = (torch.view_as_real(x.resolve_conj()) for x in (actual, true, rounded))
    masks = MASKS.get(actual.dtype, math.inf)
    are_finite = actual.isfinite() & rounded.isfinite()
    alike = are_finite | (actual.isnan() & rounded.isnan()) | (actual == rounded)
    # Numbers at the edge of the range may be infinite in one of two ways of rounding.
    alike |= (true.abs() > torch.finfo(actual.dtype).max * 0.99) & (actual.sign() == true.sign())
    is_counted = are_finite & (true.abs() < masks) & (actual.double().abs() < masks)
    alike &= (
        ~are_finite
        | is_counted
        | ((true.abs() >= masks) & (actual.double().abs() >= masks / 2) & (actual.sign() == true.sign()))
    )
    e = torch.where(is_counted, actual.double() - true.double(), 0.0)
    size = torch.where(is_counted, true.double(), 0.0)
    error = _sizes(e, size) | {"nonfinite": int((~alike).sum())}
    step = torch.finfo(actual.dtype).eps
    beyond = e.abs() > step * size.abs() + torch.finfo(actual.dtype).tiny
    error["wrong_frac"] = float(beyond.double().mean()) if e.numel() else 0.0
    bad = (~alike).flatten().nonzero()
    at = int(bad[0]) if len(bad) else int(e.abs().argmax()) if e.numel() else None
    if at is not None:
        index = [int(x) for x in torch.unravel_index(torch.tensor(at), e.shape)]
        error["worst"] = {"index": index, "is": _number(actual.flatten()[at]), "exact": _number(true.flatten()[at])}
    if before is not None and before.shape == rounded.shape and before.dtype == rounded.dtype:
        moves = (rounded != before.cpu()) & rounded.isfinite()
        num = int(moves.sum())
        error["left_frac"] = float(((actual == before.cpu()) & moves).sum()) / num if num >= FEW else 0.0
    return error


def _sizes(e: Tensor, size: Tensor) -> dict[str, Any]:
    norm = float(size.norm())
    rel = float(e.norm()) / norm if norm else float(e.norm() > 0)
    if e.dim() < 2 or not e.numel():
        return {"rel": rel, "row_rel": rel, "row": None, "worst": None}
    rows, row_norms = e.flatten(0, -2).norm(dim=-1), size.flatten(0, -2).norm(dim=-1)
    usual = norm / math.sqrt(len(row_norms))
    shares = rows / row_norms.clamp(min=usual) if usual else (rows > 0).double()
    return {"rel": rel, "row_rel": float(shares.max()), "row": int(shares.argmax()), "worst": None}


def _number(x: Tensor) -> float | str:
    value = float(x)
    return value if math.isfinite(value) else str(value)


def measured(call: Call, inputs: Values, exact: Values, expected: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """``errors`` of each output of the call of which it is known what is ``expected`` (0: the exact form, rounded),
    with ``bits``, a hash of them, the ``unit`` roundoff of its dtype, and whether it ``repeats`` itself. Raises
    ``Impossible``, also where the call draws random numbers.
    """
    torch.manual_seed(0)
    first = outcomes(call, inputs)
    # the same seed again would hide that the call draws random numbers
    torch.manual_seed(1)
    second = outcomes(call, inputs)
    repeats = {slot: bits_of(x) == bits_of(second[slot]) for slot, x in first.items()}
    # a third call tells random numbers from a kernel that does not repeat itself
    if not all(repeats.values()):
        torch.manual_seed(0)
        third = outcomes(call, inputs)
        if all(bits_of(x) == bits_of(third[slot]) for slot, x in first.items()):
            raise Impossible("It draws random numbers.")
    outputs: dict[str, dict[str, Any]] = {}
    for slot, x in first.items():
        if slot in exact and slot in expected:
            input_slot = _input_slot_of(call, slot)
            before = inputs.get(input_slot) if call["in_place"] and input_slot else None
            true = exact[slot] if expected[slot] else exact[slot].to(x.dtype)
            facts = {"repeats": repeats[slot], "bits": bits_of(x), "unit": unit_of(x)}
            outputs[slot] = errors(x, true, before=before) | facts
    return outputs


def _input_slot_of(call: Call, slot: str) -> str | None:
    """The input that an output of a call in place was."""
    if not slot.startswith("out"):
        return slot
    number = slot[3:]
    listed = bool(call["args"]) and isinstance(call["args"][0], list)
    return f"in0.{number}" if listed else "in0" if number == "0" else None


def bits_of(x: Tensor) -> str:
    """A hash of dtype, shape and bits."""
    host = x.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{host.dtype}{list(host.shape)}".encode())
    digest.update(host.reshape(-1).view(torch.uint8).numpy().tobytes() if host.numel() else b"")
    return digest.hexdigest()[:16]


def rounding_seen(call: Call, inputs: Values, exact: Values, decomposed: str) -> dict[str, tuple[float, float]]:
    """What moving each input by one rounding changes, and rounding what each kernel returns: relative, of each output
    as a whole and of its worst row. It holds for every operation, and so controls the law that is made for one.
    """
    roundings = dict.fromkeys(exact, (0.0, 0.0))
    floats = [x.dtype for x in inputs.values() if x.is_floating_point()] or [torch.float32]
    coarsest = getattr(torch, call["autocast"]) if call["autocast"] else max(floats, key=lambda d: torch.finfo(d).eps)
    for seed in range(2):
        try:
            near = with_rounding(inputs, call["autocast"], seed)
            with Rounded(coarsest):
                moved = outcomes({**call, "autocast": None}, near, exact=True, decomposed=decomposed)
        except Impossible:
            continue
        for slot, x in moved.items():
            if slot in exact and x.shape == exact[slot].shape and x.is_floating_point():
                are_finite = x.isfinite() & exact[slot].isfinite()
                sizes = _sizes(torch.where(are_finite, x - exact[slot], 0.0), torch.where(are_finite, exact[slot], 0.0))
                roundings[slot] = (max(roundings[slot][0], sizes["rel"]), max(roundings[slot][1], sizes["row_rel"]))
    return roundings


def verdict_of(
    error: Mapping[str, Any], expected: float, control: Callable[[], tuple[float, float]], *, margin: float = 1.0
) -> tuple[str, str]:
    """``within``, ``beyond`` or ``cannot tell``, and why. ``expected`` is the error by the law of the operation,
    ``control`` gives ``rounding_seen`` of this output, of which ``margin`` times as much counts.
    """
    unit = error["unit"]
    if error["nonfinite"]:
        return "beyond", f"{error['nonfinite']:,} elements are NaN, infinite or a mask in one of the two alone"
    if error.get("left_frac", 0.0) > LEFT_LIMIT:
        return "beyond", f"{error['left_frac']:.0%} of the elements that it should move are left as they were"
    if error["rel"] <= LIMIT * expected and error["row_rel"] <= LIMIT * max(expected, 0.5 * unit if expected else 0.0):
        return "within", f"{error['rel']:.2g}, expected {expected:.2g}"
    whole, row = (margin * math.hypot(rounding, unit) for rounding in control())
    if error["rel"] <= LIMIT * whole and error["row_rel"] <= LIMIT * row:
        return "cannot tell", (
            f"{error['rel']:.2g} is more than the {expected:.2g} that its law expects, but no more than roundings of "
            f"its inputs make ({whole:.2g}): the law does not hold for it"
        )
    if error["rel"] > LIMIT * max(whole, expected):
        return "beyond", f"{error['rel']:.2g} where rounding explains {max(whole, expected):.2g}"
    return "beyond", f"{error['row_rel']:.2g} in row {error['row']} where rounding explains {max(row, expected):.2g}"


def unit_of(x: Tensor) -> float:
    """The unit roundoff of its dtype; 0 for one that rounds nothing."""
    return torch.finfo(x.dtype).eps / 2 if x.is_floating_point() or x.is_complex() else 0.0


def judged(
    call: Call, inputs: Values, exact: Values, expected: Mapping[str, float], *, decomposed: str = ""
) -> dict[str, dict[str, Any]]:
    """``measured`` of each output whose error is ``expected``, with its ``verdict`` and ``why``; ``exact`` was computed
    with that pass ``decomposed``.
    """
    control = functools.cache(lambda: rounding_seen(call, inputs, exact, decomposed))
    outputs = measured(call, inputs, exact, expected)
    for slot, error in outputs.items():
        margin = GRADIENT_MARGIN if slot.startswith("grad of ") else 1.0
        verdict, why = verdict_of(error, expected[slot], lambda slot=slot: control()[slot], margin=margin)
        if verdict == "beyond" and not error["unit"] and call["function"].rpartition(".")[2] in _WITH_TIES:
            verdict, why = "cannot tell", "indices of equal numbers may be in any order"
        error |= {"expected": expected[slot], "verdict": verdict, "why": why}
    return outputs


def proved(
    document: Mapping[str, Any], tensors: Values, device: str, *, exact: Values | None = None, benchmark: Any = None
) -> dict[str, dict[str, Any]]:
    """The outputs of the call of a ``document`` as ``judged`` on ``device``. ``exact``: what ``outcomes`` has of them,
    where it is known; ``benchmark`` has the errors of another machine, by slot. Raises ``Impossible``.
    """
    call, on_host = document["call"], inputs_of(document, tensors, "cpu")
    exact = outcomes(call, on_host, exact=True) if exact is None else exact
    on_device = inputs_of(document, tensors, device)
    outputs = judged(call, on_device, exact, document["expected"])
    _against_decomposition(document, on_device, on_host, exact, outputs)
    _without_truth(call["function"], outputs)
    for slot, error in outputs.items():
        bits = document["recorded"].get(slot)
        # other bits on another device or version of torch are no fault: it is said, and not judged
        error["as_recorded"] = None if bits is None else bits == error["bits"]
        benchmark_error = (benchmark or {}).get(slot)
        if benchmark_error is not None:
            error["benchmark_rel"] = benchmark_error["rel"]
            if error["verdict"] == "beyond" and error["rel"] <= BENCHMARK_LIMIT * benchmark_error["rel"]:
                error |= {"verdict": "cannot tell", "why": "the benchmark has an error of the same size"}
    if device != "cpu" and any(output["verdict"] == "beyond" for output in outputs.values()):
        _controlled(call, on_host, exact, document["expected"], outputs)
    return outputs


def _against_decomposition(
    document: Mapping[str, Any], on_device: Values, on_host: Values, exact: Values, outputs: dict[str, dict[str, Any]]
) -> None:
    """Judge outputs that are within rounding of the float64 kernel against its decomposition, where the two differ."""
    for decomposed in ("forward", "backward") if document["call"]["gradients"] else ("forward",):
        call = document["call"] if decomposed == "backward" else {**document["call"], "gradients": None}
        try:
            by_decomposition = outcomes(call, on_host, exact=True, decomposed=decomposed)
            of_pass = {slot for slot in by_decomposition if slot.startswith("grad of ") == (decomposed == "backward")}
            slots_apart = {
                slot for slot in of_pass if slot in outputs and _are_apart(by_decomposition[slot], exact[slot])
            }
            outputs_again = (
                judged(call, on_device, by_decomposition, document["expected"], decomposed=decomposed)
                if slots_apart
                else {}
            )
        except (Impossible, RuntimeError):
            continue
        for slot in slots_apart:
            if outputs[slot]["verdict"] == "within" and outputs_again[slot]["verdict"] == "beyond":
                outputs[slot] |= outputs_again[slot]
                outputs[slot]["why"] += ", against its decomposition in torch: the float64 kernel is as far off"


def _without_truth(function: str, outputs: dict[str, dict[str, Any]]) -> None:
    """Take back that outputs of an operator that is not torch's are within rounding, where its own float64 form alone
    says so: what is wrong in every dtype agrees with itself.
    """
    if function.startswith("torch.") or has_decomposition(function):
        return
    for error in outputs.values():
        if error["verdict"] == "within":
            why = (
                "it agrees with its own form in float64, and torch has no other: nothing independent says what is right"
            )
            error |= {"verdict": "cannot tell", "why": why, "lacks": "truth"}


def _are_apart(exact: Tensor, decomposed: Tensor) -> bool:
    return exact.shape == decomposed.shape and not torch.allclose(
        exact, decomposed, rtol=1e-9, atol=1e-12, equal_nan=True
    )


def _controlled(call: Call, inputs: Values, exact: Values, expected: Mapping[str, float], outputs: Any) -> None:
    """Where the CPU is as far off in the same dtype, the law is to blame and not the device."""
    for slot, error in judged(call, inputs, exact, expected).items():
        output = outputs.get(slot)
        if output is not None:
            output["cpu_rel"] = error["rel"]
            if output["verdict"] == "beyond" and error["verdict"] != "within":
                output |= {"verdict": "cannot tell", "why": "the CPU is as far off in the same dtype"}


def bits_again(document: Mapping[str, Any], tensors: Values, device: str, times: int) -> dict[str, int]:
    """How often so many calls on ``device`` returned each set of bits, of all outputs together."""
    counts: dict[str, int] = {}
    for _ in range(times):
        results = outcomes(document["call"], inputs_of(document, tensors, device))
        bits = hashlib.sha256("".join(bits_of(results[slot]) for slot in sorted(results)).encode()).hexdigest()[:16]
        counts[bits] = counts.get(bits, 0) + 1
    return counts


def main() -> int:
    """Judge the operation beside this file, print it, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--import", dest="modules", action="append", default=[], metavar="MODULE")
    parser.add_argument("--with", dest="benchmark", metavar="FILE")
    parser.add_argument("--again", type=int, default=0, metavar="N")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        result = _proved(options, Path(__file__).resolve().parent)
    except Impossible as why:
        print(why, file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        _print(result)
    return int(result["exit_code"])


def _proved(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    try:
        for module in options.modules:
            importlib.import_module(module)
        document = json.loads((folder / "expected.json").read_text())
        benchmark = None if options.benchmark is None else json.loads(Path(options.benchmark).read_text())["outputs"]
        torch.empty(0, device=options.device)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AssertionError, ImportError) as error:
        raise Impossible(
            f"{type(error).__name__}: {str(error).splitlines()[0]}. Give --device, --import and --with as --help says."
        ) from None
    tensors = read_safetensors(folder / "inputs.safetensors")
    if not isinstance(document, dict) or {*_KEYS} - {*document} or {*document["inputs"]} - {*tensors}:
        raise Impossible(f"The files in '{folder}' do not belong together. Copy all three again.")
    outputs = {} if options.again else proved(document, tensors, options.device, benchmark=benchmark)
    verdicts = [output["verdict"] for output in outputs.values()]
    code = 1 if "beyond" in verdicts else 3 if "cannot tell" in verdicts or not (verdicts or options.again) else 0
    return {
        "site": document["site"], "function": document["call"]["function"],
        "device": options.device, "torch": torch.__version__,
        "drawn": document["drawn"], "outputs": outputs, "exit_code": code,
        "bits": bits_again(document, tensors, options.device, options.again),
    }  # fmt: skip


def _print(result: Mapping[str, Any]) -> None:
    print(f"{result['function']} at {result['site']}, on {result['device']} with torch {result['torch']}")
    if result["drawn"]:
        print(f"  drawn to the recorded statistics, not stored: {', '.join(result['drawn'])}")
    for slot, output in result["outputs"].items():
        print(f"  {slot}: {output['verdict']}: {output['why']}")
        if output["worst"] and output["verdict"] == "beyond":
            where = output["worst"]
            print(f"    worst at {where['index']}: {where['is']}, exact {where['exact']}; "
                  f"{output['wrong_frac']:.1%} of elements are more than a rounding off")  # fmt: skip
        if output["as_recorded"] is not None:
            print(f"    {'the same bits as' if output['as_recorded'] else 'other bits than'} the run recorded")
        if not output["repeats"]:
            print("    it returns other bits at the second call")
    if sum(result["bits"].values()):
        print(f"  {sum(result['bits'].values())} calls returned {len(result['bits'])} different sets of bits")
        return
    words = {0: "within what rounding explains", 1: "beyond what rounding explains", 3: "cannot tell"}
    print(words[result["exit_code"]])


if __name__ == "__main__":
    sys.exit(main())
