"""Every kind of file that Trueline reads, a small one of each, and all that is read of it."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from trueline.cli.verbs.import_ import measure
from trueline.cli.verbs.plan import _document
from trueline.comparison.match.names import NameMap
from trueline.compat.msprobe.config import read_config, settings_of
from trueline.judge.check_run import check
from trueline.schema.columns.records import StackRecord, StepRecords, TensorRecord
from trueline.schema.errors import PlanError, RunError
from trueline.schema.files.plan_files import plan_path, read_changes, revision_path, write_plan
from trueline.schema.files.run_manifest import GroupSpec, Manifest, PlanRevision, RankEnv
from trueline.schema.files.tolerance import Tolerance
from trueline.schema.finding import Finding
from trueline.schema.plan import Plan
from trueline.store.importers.checkpoint import import_checkpoint
from trueline.store.importers.checkpoint_weights import WeightOptions
from trueline.store.importers.hf import import_hf
from trueline.store.importers.msprobe.dumps import DumpOptions as MsprobeOptions
from trueline.store.importers.msprobe.dumps import import_msprobe
from trueline.store.reader import Run
from trueline.store.summary import summarize
from trueline.store.verify import verify
from trueline.store.writer import RunWriter

Read = tuple[Any, list[str]]
"""All that was read, and what was told of it."""


@dataclass(frozen=True)
class Kind:
    """A kind of file: those of ``files`` within ``path`` (one of which is damaged), what reads it, and what else looks
    at it where damage is by content.
    """

    name: str
    path: Path
    files: tuple[str, ...]
    read: Callable[[Path], Read]
    judge: Callable[[Path], None] = lambda path: None


def kinds(folder: Path) -> list[Kind]:
    """One of each, made in ``folder``."""
    closed, killed = _run(folder / "closed", close=True), _run(folder / "killed", close=False)
    found = [
        _of(closed, "manifest", "manifest.json"),
        _of(closed, "environment", "env/*.json"),
        _of(closed, "findings", "findings*.jsonl"),
        _of(closed, "copy of the Plan", "plans/*.json"),
        _of(closed, "workers part", "workers/*.parquet"),
        _of(closed, "records part", "records/*/*.parquet"),
        _of(closed, "stored values", "tensors/*/*.safetensors"),
        _of(closed, "call stacks", "stacks/*.parquet"),
        _of(killed, "workers journal", "journal/rank-0000?.tlj"),
        _of(killed, "records journal", "journal/*-records.tlj"),
    ]
    return found + _others(folder)


def _of(run: Path, name: str, pattern: str) -> Kind:
    return Kind(name, run, tuple(str(path.relative_to(run)) for path in sorted(run.glob(pattern))), read_run, judge)


def read_run(path: Path) -> Read:
    """Everything that is read of a Run, and what is told of it."""
    run = Run(path)
    rows = run.records().to_pylist()
    told: list[str] = []
    values = [_value(run, row, told) for row in rows if row["tensor"] is not None]
    frames = [_frames(run, row, told) for row in rows if row["stack"] is not None]
    plan = _told_plan(path, told)
    document = {
        "manifest": run.manifest.model_dump(),
        "env": {rank: env.model_dump() for rank, env in run.env.items()},
        "findings": [finding.to_json() for finding in run.live_findings],
        "rows": run.table().to_pylist(),
        "records": rows,
        "values": values,
        "frames": frames,
        "plan": plan,
    }
    return repr(document), [*run.problems, *run.tensor_problems(), *told]


def judge(path: Path) -> None:
    """Let the verbs look at a Run that is not as any writer makes it."""
    run = Run(path)
    summarize(run)
    verify(str(path))
    with contextlib.redirect_stderr(io.StringIO()):
        check(run).to_json()
    with contextlib.suppress(PlanError):
        _document(run, plan_path(str(path)))


def _told_plan(path: Path, told: list[str]) -> Any:
    """What the copies of the Plan say, which a rank that follows them reads."""
    plans = []
    for copy in sorted((path / "plans").glob("*.json")):
        try:
            plans.append(Plan().revised(read_changes(str(copy)), copy.name).model_dump())
        except PlanError as error:
            told.append(str(error))
    return plans


def _value(run: Run, row: Mapping[str, Any], told: list[str]) -> Any:
    try:
        value = run.tensor(row)
    except RunError as error:
        told.append(str(error))
        return None
    return value.dtype, value.shape, np.ascontiguousarray(value.data).tobytes()


def _frames(run: Run, row: Mapping[str, Any], told: list[str]) -> Any:
    try:
        return run.stack_frames(row["rank"], row["stack"])
    except RunError as error:
        told.append(str(error))
        return None


def _run(path: Path, *, close: bool) -> Path:
    for rank in range(2):
        writer = RunWriter(path, rank=rank, seal_steps=100 if close else 2)
        plan = Plan(preset="mix", depth="tensor").model_dump(mode="json")
        changed = [PlanRevision(revision=1, step=2, plan=plan | {"every": 2})]
        manifest = Manifest(world_size=2, data_parallel_ranks=[0, 1], adapter="ddp", plan=plan, plans=changed)
        writer.describe(manifest, _env(rank)) if rank == 0 else writer.describe(None, _env(rank))
        writer.write(Finding("rng-streams", "info", "A claim.", ranks=(rank,), step_first=0, measured=1.5))
        writer.write(StackRecord(0, ("train.py:3 main", "model.py:9 forward")))
        for step in range(3):
            writer.write(_row(step, rank))
            _record(writer, step)
        if close:
            writer.close()
        else:
            writer._records.drain()
    write_plan(plan_path(str(path)), Plan(preset="mix", depth="tensor", every=2))
    write_plan(revision_path(str(path), 1), Plan(preset="mix", depth="tensor", every=2))
    return path


def _env(rank: int) -> RankEnv:
    return RankEnv(
        rank=rank, world_size=2, hostname="node", pid=100 + rank, params=["w", "b"], param_shapes=[[2, 3], [3]],
        param_dtypes=["torch.float32"] * 2, requires_grad=[True, True], buffers=["m"], sketch_length=4,
        groups=[GroupSpec(name="g", params=["w", "b"], numel=9)], versions={"torch": "2.13"}, flags={"a": True},
        environ={"NCCL_ALGO": "Ring", "RANK": str(rank)}, optimizer={"class": "SGD"}, data={"dataset_len": 8},
    )  # fmt: skip


def _row(step: int, rank: int) -> dict[str, Any]:
    rng = np.random.default_rng((step, rank))
    return {
        "step": step, "loss": 2.0 - step, "tokens": 8.0, "num_micro": 1, "epoch": 0, "lr": [0.1], "time_ns": step,
        "sample_digests": rng.integers(1 << 60, size=4), "grad_norm": 1.0 + rank, "grad_nonfinite": 0.0,
        "param_grad_norms": rng.uniform(size=2), "group_grad_norms": [1.0], "group_seen": [1.0], "rng_torch": 7 + rank,
        "sketch": rng.normal(size=4).astype(np.float32), "cosine_mean": 0.5, "cosine_others": 0.5,
        "group_reduce_residual": [1e-7], "group_reduce_floor": [1e-6], "param_digests": [1, 2], "buffer_digests": [3],
        "optimizer_digest": 5,
    }  # fmt: skip


def _record(writer: RunWriter, step: int) -> None:
    value = np.arange(6, dtype=np.float32) + step
    columns = {
        "micro": [0, 0, 0], "phase": ["fwd", "fwd", "bwd"], "name": ["net", "net.fc", "net.fc"], "call": [0, 0, 0],
        "slot": ["in0", "out0", "out0"], "kind": ["module", "op", "op"], "api": ["Net", "torch.linear", "torch.linear"],
        "module": ["net", "net", "net"], "args": ['{"args": [{"in": "in0"}], "kwargs": {"p": 0.5}}', None, None],
        "stack": [0, 0, None], "dtype": ["float32"] * 3, "shape": [(2, 3)] * 3, "same_as": [None, None, 1],
        "numel": [6, 6, None], "tensor": ["a", "b", None],
        "mesh": ['{"mesh": [2], "names": ["dp"], "coordinate": [0], "placements": ["S(0)"]}', None, None],
    }  # fmt: skip
    for key in ("a", "b"):
        writer.write(TensorRecord(step, key, "F32", (2, 3), memoryview(value).cast("B")))
    stats = np.array([[0, 0, 0, 1, 0, value.min(), value.max(), value.sum(), (value**2).sum(), 1, 2, 3]] * 2)
    writer.write(StepRecords(step, columns, np.array([0, 1], np.int32), stats, np.array([5, 6], np.uint64)))


def _others(folder: Path) -> list[Kind]:
    weights = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    model = torch.nn.Linear(3, 2)
    adam = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    adam.step()
    state = {"model": model.state_dict(), "optimizer": adam.state_dict(), "step": 3}
    torch.save(state, folder / "new.pt")
    torch.save(state, folder / "old.pt", _use_new_zipfile_serialization=False)
    _safetensors(folder / "w.safetensors", weights)
    dcp.save({"model": dict(weights)}, checkpoint_id=folder / "dcp", no_dist=True)
    hf = folder / "hf"
    hf.mkdir()
    (hf / "config.json").write_text(json.dumps({"model_type": "x", "layers": [1, 2], "a": {"b": None}}))
    _safetensors(hf / "model-1.safetensors", weights)
    (hf / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(weights, "model-1.safetensors")})
    )
    (folder / "plan.json").write_text(json.dumps({"preset": "mix", "steps": [0, 5], "worker_groups": [[0, 1]]}))
    (folder / "plan.toml").write_text('preset = "mix"\nsteps = [0, 5]\nnames = ["a*"]\n')
    (folder / "map.json").write_text(
        json.dumps({"rename": {"a.": "b."}, "merge": {"q, k": "qk"}, "built_in": "hf-vllm"})
    )
    (folder / "map.toml").write_text(
        'built_in = "hf-vllm"\n[rename]\n"a." = "b."\n[merge]\n"q, k" = {into = "qk", head_size = 4}\n'
    )
    config = {"task": "tensor", "rank": [0, "2-4"], "level": "mix", "tensor": {"scope": [], "list": ["a"]}}
    (folder / "config.json").write_text(json.dumps(config))
    _tolerance().save(folder / "tolerance.json")
    dump = Path(__file__).parents[1] / "unit" / "fixtures" / "msprobe" / "mix"
    shutil.copytree(dump, folder / "msprobe")
    shutil.make_archive(str(folder / "run"), "zip", folder / "closed")
    return [
        Kind("safetensors", folder, ("w.safetensors",), _imports("w.safetensors")),
        Kind("torch.save", folder, ("new.pt",), _imports("new.pt")),
        Kind("torch.save before 1.6", folder, ("old.pt",), _imports("old.pt")),
        Kind("distributed checkpoint", folder / "dcp", _files(folder / "dcp"), _imports("")),
        Kind("model directory", hf, _files(hf), lambda path: _imported(import_hf, path, WeightOptions(measure()))),
        Kind("dump of msProbe", folder / "msprobe", _files(folder / "msprobe"), _msprobe),
        Kind("plan", folder, ("plan.json", "plan.toml"), _each(("plan.json", "plan.toml"), Plan.load)),
        Kind("map of names", folder, ("map.json", "map.toml"), _each(("map.json", "map.toml"), NameMap.load)),
        Kind("tolerance", folder, ("tolerance.json",), _each(("tolerance.json",), Tolerance.load)),
        Kind("configuration of msProbe", folder, ("config.json",), _each(("config.json",), _settings)),
        Kind("Run in an archive", folder, ("run.zip",), _archived),
    ]


def _files(folder: Path) -> tuple[str, ...]:
    return tuple(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file())


def _settings(path: Path) -> Any:
    return settings_of(read_config(str(path)))


def _each(names: tuple[str, ...], load: Callable[[Path], Any]) -> Callable[[Path], Read]:
    return lambda folder: ([repr(load(folder / name)) for name in names], [])


def _archived(folder: Path) -> Read:
    run = Run(f"zip://::{folder / 'run.zip'}")
    summarize(run)
    return repr((run.table().to_pylist(), run.records().to_pylist(), run.env, run.manifest)), run.problems


def _imports(name: str) -> Callable[[Path], Read]:
    return lambda folder: _imported(import_checkpoint, folder / name if name else folder, WeightOptions(measure()))


def _msprobe(path: Path) -> Read:
    return _imported(import_msprobe, path, MsprobeOptions(measure()))


def _imported(read: Callable[..., None], source: Path, options: Any) -> Read:
    target = source.parent / f"{source.name}.imported"
    shutil.rmtree(target, ignore_errors=True)
    read(str(source), str(target), options)
    run = Run(target)
    rows = run.records().to_pylist()
    told: list[str] = []
    values = [_value(run, row, told) for row in rows if row["tensor"] is not None]
    source_of = {key: value for key, value in run.manifest.source.items() if key != "path"}
    shutil.rmtree(target)
    return repr((rows, values, source_of)), told + run.problems + run.manifest.notes


def _safetensors(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    header, data = {}, b""
    for name, x in weights.items():
        content = x.contiguous().view(torch.uint8).numpy().tobytes()
        dtype = {torch.float32: "F32", torch.bfloat16: "BF16"}[x.dtype]
        header[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _tolerance() -> Tolerance:
    kind = {"count": [2, 2], "median": [1e-7, None], "high": [1e-6, 1e-6], "largest": [1e-6, 1e-5]}
    return Tolerance.model_validate(
        {
            "schema": 2,
            "pairs": 3,
            "runs": ["a", "b", "c"],
            "how": "tensor",
            "steps": [0, 1],
            "spread": 1.5,
            "kinds": {"fwd/linear/float32": kind},
            "sites": {"0/fwd/a#0:out0": [1e-7, None]},
        }
    )
