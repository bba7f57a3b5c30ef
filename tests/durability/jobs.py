"""What writes a Run while its disk fails, and what must then be in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from tests.durability.disk import FAILURES, Disk
from torch import nn

import trueline
from trueline.capture.job.safe_sink import SafeSink
from trueline.schema.columns.records import StackRecord, StepRecords, TensorRecord
from trueline.schema.errors import TruelineError
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.finding import Finding
from trueline.store.log import merge
from trueline.store.reader import Run
from trueline.store.verify import verify
from trueline.store.writer import RunWriter

NUM_STEPS = 5
RECORDED = (1, 2, 4)
_UNSYNCED = ("journal/", "tensors/", "findings")
"""What is not made durable step by step; a power cut may leave anything of it, and `verify` says so."""
SAID = Finding(code="rng-streams", severity="info", claim="Equal.")


@mock.patch.object(merge, "FAN_IN", 2)
def write(path: Path, *, records: bool = True, tell: Callable[[object], None] = lambda _: None) -> int | None:
    """Write rows, a Finding and recorded steps as a job does, through what lets go of a Run that cannot be written.

    The step from which on it was; None where it was to the end.
    ``tell`` hears of "begun", each step, and "closed". Raises ``OSError`` where it cannot begin.
    """
    outlet = SafeSink(RunWriter(path, rank=0, seal_steps=2), rank=0)
    lost: int | None = None
    tell("begun")
    outlet.describe(Manifest(started_at="then"), RankEnv())
    for step in range(NUM_STEPS):
        outlet.step = step
        outlet.write({"step": step, "loss": step / 2})
        outlet.write({"step": step, "cosine_mean": -step / 2})
        if step == 1:
            outlet.write(SAID)
        for record in recorded(step) if records and step in RECORDED else ():
            outlet.write(record)
        writer = outlet._sink
        if isinstance(writer, RunWriter) and writer._records is not None:
            writer._records.drain()  # so that calls come in the same order whenever it is written
        lost = step if lost is None and outlet._sink is None else lost
        tell(step)
    outlet.close()
    tell("closed")
    return lost


def recorded(step: int) -> Iterator[StackRecord | TensorRecord | StepRecords]:
    """What a step records: a call stack, a value, and two rows that refer to them."""
    yield StackRecord(step % 2, (f"f{step % 2}",))
    yield TensorRecord(step, "t", "F32", (2,), memoryview(_value(step).view(np.uint8)))
    yield StepRecords(
        step,
        {
            "micro": [0, 0], "phase": ["fwd", "fwd"], "name": ["a", "b"], "call": [0, 0], "slot": ["out0", "out0"],
            "kind": ["module", "module"], "stack": [step % 2, None], "shape": [(2,), (2,)], "tensor": ["t", None],
        },
        measured_M=np.array([0], dtype=np.int32),
        fingerprint_M=np.array([step + 1], dtype=np.uint64),
    )  # fmt: skip


def false_in(run: Run) -> list[str]:
    """What the Run tells and nobody wrote, a line each; empty as long as it is only incomplete."""
    told: list[str] = []
    for row in run.table().to_pylist():
        step = row["step"]
        wanted = {"loss": (None, step / 2), "cosine_mean": (None, -step / 2)}
        told += [f"step {step} has {name} {row[name]}" for name, values in wanted.items() if row[name] not in values]
    for row in run.records(columns=["step", "name", "fingerprint", "stack", "tensor"]).to_pylist():
        step = row["step"]
        if (row["name"], row["fingerprint"]) not in (("a", step + 1), ("b", None)):
            told.append(f"recorded step {step} has {row}")
        with contextlib.suppress(TruelineError):
            if row["stack"] is not None and run.stack_frames(0, row["stack"]) != (f"f{step % 2}",):
                told.append(f"the call stack of step {step} is another")
        with contextlib.suppress(TruelineError):
            if row["tensor"] and (run.tensor(f"{step}.0/r0/fwd/a#0:out0").data != _value(step)).any():
                told.append(f"the value of step {step} is another")
    return told


def untold_in(path: Path, *, lost: int | None, logged: str, records: bool) -> list[str]:
    """What is wrong with the Run of ``write`` once one call had failed: false, or missing without a word."""
    run = Run(path)
    told = false_in(run)
    steps = range(NUM_STEPS if lost is None else lost)
    missing = sorted({*steps} - {*run.steps.tolist()})
    codes = [finding.code for finding in run.live_findings]
    if missing:
        told.append(f"rows of steps {missing} are missing")
    if lost is not None and "watch-degraded" not in codes:
        told.append(f"no Finding says that it was lost at step {lost}")
    if lost is None and SAID.code not in codes:
        told.append("the Finding is missing")
    unrecorded = sorted({*steps} & {*RECORDED} - {*run.record_steps.tolist()}) if records else []
    if (unrecorded or run.unclosed) and "could not be" not in logged:
        told.append(f"recorded steps {unrecorded} are missing, ranks {run.unclosed} unclosed, and nothing was logged")
    for step in run.record_steps.tolist():
        try:
            run.tensor(f"{step}.0/r0/fwd/a#0:out0")
        except TruelineError:
            if "Tensors could not be stored" not in logged and lost is None:
                told.append(f"the value of step {step} is missing")
    found = verify(str(path))
    told += [f"{file.file} is damaged: {file.why}" for file in found.files if file.state == "damaged"]
    if found.missing and lost is None and "could not be" not in logged:
        told.append(f"{found.missing} are missing, and nothing was logged")
    return told + [text for text in run.problems if not text.startswith("rank 0: it wrote")]


def run_with_failure(
    path: Path, number: int, how: str, *, logged: Callable[[], str], records: bool
) -> tuple[list[str], list[str]]:
    """What is wrong after the ``number``-th call failed, and which call that was."""
    with Disk(str(path), fails_at=number, how=how).mounted() as disk:
        try:
            lost = write(path, records=records)
        except (OSError, TruelineError):
            return _after_no_start(path), disk.failed
    return untold_in(path, lost=lost, logged=logged(), records=records), disk.failed


def failures(path: Path, *, records: bool) -> Iterator[tuple[int, str]]:
    """Every call that ``write`` makes, by number, with every way in which it can fail."""
    with Disk(str(path)).mounted() as disk:
        write(path, records=records)
    for number in range(1, disk.num_calls + 1):
        for how in FAILURES:
            yield number, how


def false_after_power_cut(path: Path, told: Collection[object]) -> list[str]:
    """What is wrong with the Run of ``write`` where the power went after it had told ``told``: false, or missing though
    it was sealed.
    """
    try:
        run = Run(path)
    except TruelineError as error:
        return [str(error)] if "begun" in told else []
    wrong = false_in(run)
    last = max((step for step in told if isinstance(step, int)), default=-1)
    sealed = NUM_STEPS if "closed" in told else (last + 1) // 2 * 2
    missing = sorted({*range(sealed)} - {*run.steps.tolist()})
    if missing:
        wrong.append(f"sealed rows of steps {missing} are missing")
    if "closed" in told and (run.unclosed or len(run.problems)):
        wrong.append(f"it was closed, and has ranks {run.unclosed} open and problems {run.problems}")
    if "begun" in told and last < NUM_STEPS - 1 and not run.unclosed:
        wrong.append("it looks as if it had been closed")
    found = verify(str(path))
    wrong += [
        f"{file.file} is damaged: {file.why}"
        for file in found.files
        if file.state == "damaged" and ("closed" in told or not file.file.startswith(_UNSYNCED))
    ]
    return wrong + [f"it was closed, and misses {what}" for what in found.missing if "closed" in told]


def train(path: Path | None) -> list[float]:
    """The losses and, at last, weights of a small training that is watched at ``path``, if that can begin."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())
    watch = None
    if path is not None:
        with contextlib.suppress(TruelineError, OSError):
            watch = trueline.watch(model, optimizer, out=path, plan="modules")
    told = []
    for _ in range(4):
        loss = model(torch.randn(5, 3)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append(loss.item())
    if watch is not None:
        watch.close()
    return told + torch.cat([param.detach().ravel() for param in model.parameters()]).tolist()


def _after_no_start(path: Path) -> list[str]:
    """A job that cannot begin leaves nothing that looks like steps, and another may take its place."""
    told = []
    with contextlib.suppress(TruelineError):
        told = [f"a Run that never began has step {step}" for step in Run(path).steps.tolist()]
    write_again = RunWriter(path, rank=0, overwrite=True)
    write_again.write({"step": 0, "loss": 0.0})
    write_again.close()
    found = verify(str(path))
    told += [f"{file.file} is damaged: {file.why}" for file in found.files if file.state == "damaged"]
    return told + Run(path).problems[1:]


def _value(step: int) -> np.ndarray:
    return np.array([step, -step], dtype=np.float32)
