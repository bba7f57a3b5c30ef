"""`trueline verify`: each file that is not what was written is named, and nothing else is."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.unit.recorded_steps import make_step, tensor_record

from trueline.schema.columns.records import StackRecord
from trueline.schema.errors import RunError
from trueline.schema.files.plan_files import revision_path, write_plan
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.finding import Finding
from trueline.schema.plan import Plan
from trueline.store.judged import write_judged
from trueline.store.reader import Run
from trueline.store.verify import verify
from trueline.store.writer import RunWriter

DATA = Path(__file__).parents[2] / "data"


def write(path: Path, *, close: bool = True, steps: int = 4) -> Path:
    for rank in range(2):
        writer = RunWriter(path, rank=rank, seal_steps=2)
        writer.describe(Manifest(world_size=2, data_parallel_ranks=[0, 1]), RankEnv(rank=rank, world_size=2))
        writer.write(Finding("rng-streams", "info", "A claim."))
        for number in (0, 1):
            writer.write(StackRecord(number, (f"train.py:{number} main",)))
        for step in range(steps):
            writer.write({"step": step, "loss": float(step), "sketch": np.arange(8, dtype=np.float32)})
            for key in ("t1", "t4", "t7", "t10"):
                writer.write(tensor_record(step, key, np.arange(6.0) + step))
            writer.write(make_step(step))
        if close:
            writer.close()
        else:
            writer._records.drain()
    write_plan(revision_path(str(path), 1), Plan(every=3))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("verify") / "run")


def read_stacks(path: Path) -> list[tuple[str, ...]]:
    return [Run(path).stack_frames(0, number) for number in (0, 1)]


def test_a_run_that_is_whole_has_nothing_to_say(whole):
    found = verify(str(whole))
    assert found.counts == {"whole": len(found.files), "unchecked": 0, "torn": 0, "damaged": 0}
    assert len({file.file.split("/")[0] for file in found.files}) == 9  # every kind of file but journals
    assert (found.missing, found.exit_code) == ((), 0)


def test_a_killed_run_is_torn_and_not_damaged(tmp_path):
    path = write(tmp_path / "run", close=False, steps=3)
    found = verify(str(path))
    assert found.counts["torn"] >= 4
    assert (found.counts["damaged"], found.missing, found.exit_code) == (0, (), 0)
    journal = path / "journal" / "rank-00000.tlj"
    data = journal.read_bytes()
    journal.write_bytes(data[:-5])
    assert verify(str(path)).exit_code == 0
    journal.write_bytes(data[:-30] + bytes([data[-30] ^ 4]) + data[-29:])
    found = verify(str(path))
    assert [file.file for file in found.files if file.state == "damaged"] == ["journal/rank-00000.tlj"]
    assert found.exit_code == 1


def test_older_runs_have_no_checksums_of_documents_and_are_whole_otherwise():
    found = verify(str(DATA / "run_v1"))
    assert found.exit_code == 0
    assert {file.file for file in found.files if file.state == "unchecked"} >= {"manifest.json", "env/rank-00000.json"}


@pytest.mark.in_turn
def test_every_flipped_bit_and_every_cut_is_named(whole, tmp_path):
    path, rng = tmp_path / "run", random.Random(0)
    shutil.copytree(whole, path)
    stacks = read_stacks(path)
    for name in [file.file for file in verify(str(whole)).files if "-00001" not in file.file or "tensors" in file.file]:
        data = (path / name).read_bytes()
        at = rng.randrange(len(data))
        for damaged in (data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :], data[:at]):
            (path / name).write_bytes(damaged)
            found = verify(str(path))
            named = [file.file for file in found.files if file.why]
            if named != [name]:  # a footer has texts that nobody reads
                assert (named, read_stacks(path)) == ([], stacks), (name, at)
                assert name.startswith("stacks")
        (path / name).write_bytes(data)
    assert verify(str(path)).exit_code == 0


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        ("workers/part-r00000-000000*", "part 0 of rank 0 is missing"),
        ("records/rank-00001/part-r00001-000000*", "part 0 of rank 1 is missing"),
        ("tensors/rank-00000/step-00000002.safetensors", "it is gone"),
        ("stacks/rank-00000.parquet", "call stacks"),
        ("env/rank-00001.json", "no environment"),
    ],
)
def test_what_is_gone_is_named(whole, tmp_path, gone, told):
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (victim,) = path.glob(gone)
    victim.unlink()
    found = verify(str(path))
    assert found.exit_code == 1
    assert told in " ".join(found.missing), found.missing


def test_what_is_no_run_is_a_sentence_and_a_damaged_manifest_is_damage(whole, tmp_path):
    with pytest.raises(RunError, match="There is no Run"):
        verify(str(tmp_path / "nothing"))
    with pytest.raises(RunError, match="is a file"):
        verify(str(whole / "manifest.json"))
    with pytest.raises(RunError, match=r"no manifest\.json"):
        verify(str(whole / "env"))
    path = tmp_path / "run"
    shutil.copytree(whole, path)
    (path / "manifest.json").write_text("{")
    found = verify(str(path))
    assert [file.file for file in found.files if file.state == "damaged"] == ["manifest.json"]
    assert json.loads(json.dumps(found.to_json()))["verdict"].startswith("Damaged: 1 of")


def test_what_was_judged_is_no_damage_where_it_is_not_what_was_written(whole, tmp_path):
    path = shutil.copytree(whole, tmp_path / "run")
    write_judged(str(path), {"silent": {}})
    assert verify(str(path)).counts["whole"] == len(verify(str(whole)).files) + 1
    kept = (path / "judged.json").read_bytes()
    for damaged in (kept[:-20], kept.replace(b"silent", b"silenx")):
        (path / "judged.json").write_bytes(damaged)
        found = verify(str(path))
        assert [(file.file, file.state) for file in found.files if file.why] == [("judged.json", "unchecked")]
        assert found.exit_code == 0
