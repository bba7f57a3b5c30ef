"""Comparisons made by hand: of a small model of three blocks, whose second one has a fault in its activation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from trueline.comparison.result import ComparedRow, Comparison, StepSummary
from trueline.schema.finding import Finding

FAULT = "1.0/r0/fwd/layers.1.mlp.act.gelu#0:out0"
FIRST_DIVERGENCE = Finding(
    "first-divergence",
    "error",
    "At step 1, torch.nn.functional.gelu in layers.1.mlp.act turns equal inputs into other outputs.",
    (0,),
    1,
    1,
    (FAULT,),
    38.2,
    1.0,
    "times the rounding expected",
    next=("Compare the arguments and the kernel of this call.",),
)
EXPLAINED = Finding("explained-by-rounding", "info", "Rounding explains every difference.")
INPUT_DIFFERS = Finding("input-differs", "error", "At step 0, rank 0 consumes other token ids.", (0,), 0, 0)


def row(place: int, site: str, judgement: str = "equal", **given: object) -> ComparedRow:
    """One row of step 1, rank 0, with the same site in REF unless another is given."""
    step, rank = int(site.split(".", 1)[0]), int(site.split("/r", 1)[1].split("/", 1)[0])
    made = ComparedRow(step, rank, place, site, site, judgement, "op", "torch.add", "float32", "float32", (4, 32, 64))
    return replace(made, **given)


def block_rows(step: int, faulty: bool) -> list[ComparedRow]:
    """The forward, backward and update of three blocks; where ``faulty``, the second one's activation is to blame."""
    rows: list[ComparedRow] = []
    prefix = f"{step}.0/r0"
    for block in range(3):
        for op in ("norm1.rms_norm", "attn.qkv.linear", "attn.add", "mlp.up.linear", "mlp.act.gelu", "mlp.down.linear"):
            for slot in ("in0", "out0"):
                site = f"{prefix}/fwd/layers.{block}.{op}#0:{slot}"
                api = f"torch.nn.functional.{op.rsplit('.', 1)[1]}"
                rows.append(_judged(len(rows), site, block, op, slot, faulty=faulty, api=api))
    for number in range(12):
        judgement, times = ("propagated", 40.0 + number) if faulty else ("equal", None)
        rows.append(_sized(row(len(rows), f"{prefix}/bwd/mul#{number}:out0", judgement, api="aten.mul.Tensor"), times))
    for number in range(6):
        judgement, times = ("within", 0.5) if faulty else ("equal", None)
        rows.append(_sized(row(len(rows), f"{prefix}/opt/AdamW.add_#{number}:out0", judgement), times))
    return rows


def made_comparison(*, ref: str = "runs/gpu") -> Comparison:
    """Step 0 equal, step 1 with the fault: exit code 1."""
    rows = [*block_rows(0, faulty=False), *block_rows(1, faulty=True)]
    unmatched = row(
        len(rows), "1.0/r0/fwd/layers.2.mlp.dropout#0:out0", "not-comparable", ref_site=None, note="only in RUN"
    )
    rows.append(unmatched)
    first = next(each for each in rows if each.site == FAULT)
    return Comparison(
        "runs/npu",
        ref,
        (FIRST_DIVERGENCE,),
        rows,
        (summary_of(rows, 0, loss_rel=0.0), summary_of(rows, 1, loss_rel=0.0123)),
        first,
        {"only in RUN: REF has no dropout": 1},
        ("REF was recorded with fingerprints only.",),
    )


def same_comparison() -> Comparison:
    """Everything equal: exit code 0."""
    rows = block_rows(0, faulty=False)
    return Comparison("runs/a", "runs/b", (), rows, (summary_of(rows, 0, loss_rel=0.0),))


def rounding_comparison() -> Comparison:
    """Half of the values within rounding: exit code 0."""
    rows = [
        _sized(replace(each, judgement="within"), 0.4) if each.place % 2 else each
        for each in block_rows(0, faulty=False)
    ]
    return Comparison("runs/a", "runs/b", (EXPLAINED,), rows, (summary_of(rows, 0, loss_rel=1e-7),))


def untold_comparison() -> Comparison:
    """Nothing that could be compared: exit code 3."""
    rows = [row(0, FAULT, "not-comparable", note="RUN has statistics, REF has fingerprints", how="")]
    return Comparison("runs/a", "runs/b", (), rows, (summary_of(rows, 1),))


def summary_of(rows: Sequence[ComparedRow], step: int, *, loss_rel: float | None = None) -> StepSummary:
    """How step ``step`` of rank 0 compares by ``rows``."""
    own = [each for each in rows if each.step == step]
    counts = Counter(each.judgement for each in own)
    beyond = next((each.site for each in own if each.judgement == "beyond"), None)
    times = [each.times for each in own if each.times is not None]
    return StepSummary(step, 0, counts, beyond, max(times, default=None), loss_rel)


def _judged(place: int, site: str, block: int, op: str, slot: str, *, faulty: bool, api: str) -> ComparedRow:
    equal = row(place, site, api=api)
    if not faulty or block == 0 or (block == 1 and op < "mlp.act" and "mlp.down" not in op):
        return equal
    if block == 1 and op == "mlp.act.gelu":
        fault = replace(equal, judgement="beyond", where="all rows alike", shape=(4, 32, 256))
        return _sized(fault, 38.2) if slot == "out0" else equal
    if block == 1 and not op.startswith("mlp.down"):
        return equal
    return _sized(replace(equal, judgement="propagated"), 20.0 + place)


def _sized(judged: ComparedRow, times: float | None) -> ComparedRow:
    if times is None:
        return judged
    return replace(judged, measured=1e-5 * times, expected=1e-5, times=times, how="statistics")
