"""Which operations of a Run are wrong on this device: each signature called twice, against float64 on the CPU.

The rule, fixed before the first call. An operation is inaccurate where its error is more than ``proof.LIMIT`` times
what its law expects, and more than as many times what one rounding of each input makes (``proof.rounding_seen``); on an
accelerator only where the same dtype on the CPU is within that, and with a benchmark only where its error is more than
``proof.BENCHMARK_LIMIT`` times the benchmark's. Where the law alone is broken, the law is to blame: it cannot be told.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trueline.schema.errors import CannotTell, InputError
from trueline.schema.finding import Finding, documents_of
from trueline.schema.text.words import counted
from trueline.store.reader import Run
from trueline.trials.frame.trial import Answer, Arm, TrialAnswer
from trueline.trials.op.judged_call import JudgedCall, judged_on
from trueline.trials.op.places import calls_at
from trueline.trials.op.proof import LIMIT
from trueline.trials.op.recorded_calls import RecordedCall, op_steps, recorded_calls

QUESTION = "Is the error of any recorded operation on this device more than rounding explains?"

Outcome = Literal["within", "beyond", "cannot tell", "not judged"]
OUTCOMES: tuple[Outcome, ...] = ("beyond", "cannot tell", "not judged", "within")


@dataclass(frozen=True)
class CheckedOp:
    """An operation: the ``site`` of the first call of its signature, how many ``calls`` have that, its ``outputs`` as
    ``proof.proved`` has them, the inputs that were ``drawn``, and ``why`` it is not judged.
    """

    key: str
    site: str
    api: str
    calls: int
    outcome: Outcome
    outputs: Mapping[str, Mapping[str, Any]]
    drawn: tuple[str, ...] = ()
    why: str = ""

    @property
    def lacks(self) -> str:
        """What would tell whether it is right: an independent ``truth``, its ``values``; '' where nothing lacks."""
        return next((output["lacks"] for output in self.outputs.values() if output.get("lacks")), "")

    @property
    def repeats(self) -> bool:
        """Whether the second call returned the bits of the first."""
        return all(output["repeats"] for output in self.outputs.values())

    @property
    def is_narrow_sum(self) -> bool:
        """Whether an output is further off than a sum in float32 can be."""
        return any(
            output["rel"] > LIMIT * output["sum_bound"] for output in self.outputs.values() if "sum_bound" in output
        )

    def worst(self) -> tuple[str, Mapping[str, Any]]:
        """The slot, and what is known of the output, that decides the outcome."""
        deciding = [item for item in self.outputs.items() if item[1]["verdict"] == self.outcome]
        return max(deciding or self.outputs.items(), key=lambda item: item[1]["rel"])

    def to_json(self) -> dict[str, Any]:
        """The operation as the document has it."""
        outputs = {slot: dict(output) for slot, output in self.outputs.items()}
        facts = {name: getattr(self, name) for name in ("key", "site", "api", "calls", "outcome", "why")}
        return facts | {"drawn": list(self.drawn), "outputs": outputs}


@dataclass(frozen=True)
class Precheck:
    """The ``answer``, the operations in the order of the Run, and findings."""

    answer: TrialAnswer
    device: str
    operations: Sequence[CheckedOp]
    findings: tuple[Finding, ...]

    def counts(self) -> dict[str, int]:
        """Operations by outcome."""
        return {outcome: sum(operation.outcome == outcome for operation in self.operations) for outcome in OUTCOMES}

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract; another machine's is a benchmark for this one."""
        return self.answer.to_json() | {
            "device": self.device,
            "counts": self.counts(),
            "findings": documents_of(self.findings),
            "operations": [operation.to_json() for operation in self.operations],
        }


def precheck(
    run: Run,
    *,
    device: str,
    step: int | None = None,
    rank: int | None = None,
    site: str = "",
    benchmark: Mapping[str, Any] | None = None,
    modules: Sequence[str] = (),
    progress: Callable[[str, int, int], None] = lambda api, num_done, num: None,
) -> Precheck:
    """Judge every operation that a step of a Run recorded, with ``site`` those behind it (``places.calls_at``).
    ``benchmark`` has the outputs of another machine by key, ``modules`` are those that define operations. Raises
    ``CannotTell`` where no operation was recorded, and ``InputError`` where none is at ``site``.
    """
    calls = [
        call
        for recorded_step, recorded_rank in (() if site else op_steps(run, step, rank))
        for call in recorded_calls(run, step=recorded_step, rank=recorded_rank)
    ] or calls_at(run, site, step=step, rank=rank)
    groups: dict[str, list[RecordedCall]] = {}
    for call in calls:
        groups.setdefault(call.signature, []).append(call)
    checked: list[CheckedOp] = []
    for num_done, (signature, same_calls) in enumerate(groups.items()):
        progress(same_calls[0].api, num_done, len(groups))
        checked.append(_checked(run, signature, same_calls, device, benchmark or {}))
    proof = ["trueline", "trial", "op", run.path]
    options = ["--device", device, *(word for module in modules for word in ("--import", module))]
    proofs = {op.site: shlex.join([*proof, op.site, *options]) for op in checked if op.outcome == "beyond"}
    findings = (*_inaccurate(checked, device, proofs), *_not_repeating(checked, device))
    return Precheck(_answer(checked, device, proofs), device, checked, findings)


def read_benchmark(path: Path) -> dict[str, Any]:
    """The outputs of operations by key that another machine's document has. Raises ``InputError``."""
    try:
        document = json.loads(path.read_text())
        return {op["key"]: op["outputs"] for op in document["operations"] if op["outputs"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"'{path}' is no result of `trueline trial precheck` ({type(error).__name__}: {error}). Write one on the "
            "other machine: --with a path where nothing is."
        ) from None


def _checked(
    run: Run, signature: str, same_calls: Sequence[RecordedCall], device: str, benchmark: Mapping[str, Any]
) -> CheckedOp:
    call = next((same_call for same_call in same_calls if _is_stored(same_call)), same_calls[0])
    key = hashlib.sha256(signature.encode()).hexdigest()[:16]
    facts = (key, call.site, call.api, len(same_calls))
    judged: JudgedCall | None = None
    try:
        judged, outputs = judged_on(run, call, device, benchmark=benchmark.get(key))
    except CannotTell as why:
        return CheckedOp(*facts, "not judged", {}, () if judged is None else judged.inputs.drawn, str(why))
    verdicts = {output["verdict"] for output in outputs.values()}
    outcome: Outcome = next((verdict for verdict in OUTCOMES if verdict in verdicts), "not judged")
    return CheckedOp(*facts, outcome, outputs, judged.inputs.drawn, "" if verdicts else "no output has a float64 form")


def _is_stored(call: RecordedCall) -> bool:
    return all(value.row["tensor"] is not None for value in call.inputs.values())


def _answer(checked: Sequence[CheckedOp], device: str, proofs: Mapping[str, str]) -> TrialAnswer:
    """The answer that the operations give; ``proofs`` are commands by site of those that are inaccurate."""
    judged = [op for op in checked if op.outcome in ("within", "beyond")]
    beyond = [op for op in judged if op.outcome == "beyond"]
    untold = [op for op in checked if op.outcome == "cannot tell"]
    not_judged = [op for op in checked if op.outcome == "not judged"]
    drawn = sum(bool(op.drawn) for op in judged)
    lacking = {op.lacks for op in untold if op.lacks}
    # more untold than judged would make an all-clear of the smaller part
    few = judged and len(untold) <= len(judged) and not lacking
    answer: Answer = "confirmed" if beyond else "excluded" if few else "undecided"
    says = [
        f"{counted(len(checked), 'operation')} by signature on {device}: {len(beyond)} inaccurate, "
        f"{len(judged) - len(beyond):,} within what rounding explains, {len(untold)} cannot be told, "
        f"{len(not_judged):,} not judged; inputs were drawn to recorded statistics for {drawn:,}."
    ]
    for op in (*beyond, *untold):
        slot, error = op.worst()
        says.append(f"{op.outcome}: {op.api} at {op.site}:{slot}: {error['why']}.")
    narrow = [op.api.rpartition(".")[2] for op in judged if op.outcome == "within" and op.is_narrow_sum]
    if narrow:
        says.append(
            f"{counted(len(narrow), 'sum')} within their law, which are added up in fewer bits than float32: "
            f"{', '.join(dict.fromkeys(narrow))}; `sum_bound` of an output is what float32 makes at most."
        )
    for why in dict.fromkeys(op.why for op in not_judged):
        names = [op.api.rpartition(".")[2] for op in not_judged if op.why == why]
        text = ", ".join(dict.fromkeys(names))
        says.append(f"not judged ({len(names)}), as {why}: {text if len(text) < 300 else text[:300] + ' …'}")
    next_ = tuple(f"`{proofs[op.site]}` writes it as a proof that needs torch alone." for op in beyond[:1])
    if not judged or "values" in lacking:
        next_ += ('Record a step with preset "mix" and depth = "tensor".',)
    if "truth" in lacking:
        next_ += (
            "Register a decomposition of operators of your own (torch._decomp.register_decomposition), or compare them "
            "with a form of yours in float64: then there is something to judge them by.",
        )
    arms = (Arm(device, len(judged), len(beyond)),)
    return TrialAnswer("precheck", QUESTION, answer, tuple(says), arms, next_)


def _inaccurate(checked: Sequence[CheckedOp], device: str, proofs: Mapping[str, str]) -> list[Finding]:
    findings: list[Finding] = []
    for op in (op for op in checked if op.outcome == "beyond"):
        slot, error = op.worst()
        step, rank = _step_and_rank(op.site)
        claim = f"{op.api} is inaccurate on {device}: {error['why']}."
        if op.drawn:
            claim += " Its inputs were drawn to the recorded statistics."
        findings.append(
            Finding(
                code="op-inaccurate",
                severity="error",
                claim=claim,
                ranks=(rank,),
                step_first=step,
                step_last=step,
                sites=(f"{op.site}:{slot.removeprefix('grad of ')}",),
                measured=error["rel"],
                expected=error["expected"],
                unit="relative L2 error against float64",
                evidence={"calls": op.calls, "limit": LIMIT, "worst": error["worst"], "drawn": list(op.drawn)},
                next=(f"Prove it with torch alone: `{proofs[op.site]}`",),
            )
        )
    return findings


def _not_repeating(checked: Sequence[CheckedOp], device: str) -> list[Finding]:
    varying = [op for op in checked if not op.repeats]
    if not varying:
        return []
    names = ", ".join(dict.fromkeys(op.api for op in varying))
    num = counted(len(varying), "operation")
    claim = f"Called twice on {device} with the same inputs, {num} did not return the same bits: {names}."
    step, rank = _step_and_rank(varying[0].site)
    return [
        Finding(
            code="nondeterministic-op",
            severity="info",
            claim=claim,
            ranks=(rank,),
            step_first=step,
            step_last=step,
            sites=tuple(f"{op.site}:{op.worst()[0].removeprefix('grad of ')}" for op in varying[:5]),
            next=("trueline.seed_all(1234, deterministic=True) chooses deterministic forms where there are any.",),
        )
    ]


def _step_and_rank(site: str) -> tuple[int, int]:
    step, _, rest = site.partition(".")
    return int(step), int(rest.split("/")[1].removeprefix("r"))
