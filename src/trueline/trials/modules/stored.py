"""What a Run stored of a step that modules can be given again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trueline.judge.actions import Commands, record_step
from trueline.schema.errors import CannotTell, InputError, RunError
from trueline.store.reader import Run

_COLUMNS = (
    *("step", "rank", "row", "micro", "phase", "name", "call", "slot", "kind", "dtype", "shape", "mesh", "same_as"),
    *("tensor", "flags"),
)


def step_stored(run: Run, step: int | None) -> int:
    """The recorded step to look at: ``step``, or the first at which values of modules were stored. Raises
    ``CannotTell`` where none were, ``InputError`` where none were at ``step``.
    """
    steps = [int(recorded_step) for recorded_step in run.record_steps]
    for recorded_step in steps if step is None else [step]:
        rows = run.records(steps=[recorded_step], columns=["kind", "tensor"]) if recorded_step in steps else None
        if rows is not None and any(row["kind"] == "module" and row["tensor"] for row in rows.to_pylist()):
            return recorded_step
    if step is not None:
        raise InputError(
            f"--step is {step}, of which Run '{run.path}' stored no values of modules; it recorded "
            f"{', '.join(map(str, steps)) or 'no step'}."
        )
    raise CannotTell(
        f"Run '{run.path}' stored no values of modules. Record a step of the job that is as it should be: "
        + Commands(run.path, tuple(run.manifest.argv)).filled(record_step(0, "--set depth=tensor"))
    )


def modules_stored(run: Run, step: int) -> Sequence[str]:
    """Their names, sorted."""
    rows = run.records(steps=[step], columns=["kind", "name", "tensor"]).to_pylist()
    return sorted({row["name"] for row in rows if row["kind"] == "module" and row["tensor"]})


def write_stored(run: Run, step: int, folder: Path) -> Path:
    """Write what modules returned, were given and got as gradients, and parameters, to a file a rank in ``folder`` (see
    ``capture.trial.fed_modules``), which it returns.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in run.record_ranks:
        values: dict[str, Tensor] = {}
        for row in run.records(steps=[step], ranks=[rank], columns=_COLUMNS).to_pylist():
            key = _key(row)
            if key is None or row["tensor"] is None or row["mesh"] is not None:
                continue
            try:
                stored = run.tensor(row)
            except RunError:
                continue
            if stored.shape != tuple(row["shape"] or ()):
                continue  # only some of its rows were stored
            # bfloat16 has no dtype in NumPy: it comes as integers of its width
            data = torch.from_numpy(stored.data.copy())
            dtype: torch.dtype = getattr(torch, row["dtype"])
            values.setdefault(key, data.view(dtype) if data.dtype != dtype else data)
        torch.save(values, folder / f"rank-{rank}.pt")
    return folder.absolute()


def _key(row: dict[str, object]) -> str | None:
    if row["phase"] == "param":
        return f"param/{row['name']}"
    if row["kind"] != "module" or "recomputed" in str(row["flags"]):
        return None
    call = f"{row['micro']}/{row['name']}#{row['call']}:{row['slot']}"
    if row["phase"] == "fwd":
        return call
    return f"bwd/{call}" if row["phase"] == "bwd" and str(row["slot"]).startswith("out") else None
