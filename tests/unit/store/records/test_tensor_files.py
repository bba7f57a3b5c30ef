"""Stored values: files that the official safetensors package reads, never one that looks whole and is not."""

import json
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file
from tests.unit.recorded_steps import make_step, tensor_record

from trueline.schema.columns.records import TensorRecord
from trueline.schema.errors import InputError, RunError
from trueline.store.reader import Run
from trueline.store.records import tensor_files
from trueline.store.records.tensor_files import NUMPY_TYPES, TensorContents, TensorFile, check_tensor, explained
from trueline.store.writer import RunWriter

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def read_tensor(path, key):
    """The value ``key`` of a local file."""
    with explained(str(path), key):
        return TensorContents.of_file(path).value(key)


def raw_record(key, dtype, shape, rng, *, step=0):
    num_bytes = int(np.prod(shape)) * np.dtype(NUMPY_TYPES[dtype]).itemsize
    data = rng.integers(0, 2, size=num_bytes, dtype=np.uint8) if dtype == "BOOL" else rng.bytes(num_bytes)
    return TensorRecord(step, key, dtype, shape, memoryview(bytes(data)))


def store(path, records, **settings):
    file = TensorFile(str(path), **settings)
    for record in records:
        file.add(record)
    file.finish()
    return path


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    values=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=9).filter(lambda key: key != "__metadata__"),
        st.tuples(st.sampled_from(sorted(NUMPY_TYPES)), SHAPES),
        max_size=6,
    ),
    reserve_bytes=st.sampled_from([0, 2, 64, 500, 4096]),
)
def test_any_values_read_back_equal_here_and_by_safetensors(values, reserve_bytes):
    """Also where values are not aligned, and where the reserved header was too small."""
    rng = np.random.default_rng(0)
    records = {key: raw_record(key, dtype, shape, rng) for key, (dtype, shape) in values.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = store(Path(folder) / "t.safetensors", records.values(), reserve_bytes=reserve_bytes)
        assert [entry.name for entry in Path(folder).iterdir()] == ["t.safetensors"]
        with safe_open(path, "pt") as official:
            assert set(official.keys()) == set(records)
            for key, record in records.items():
                value = read_tensor(path, key)
                assert (value.dtype, value.shape, value.data.shape) == (record.dtype, record.shape, record.shape)
                assert value.data.tobytes() == bytes(record.data)
                theirs = official.get_tensor(key)
                assert tuple(theirs.shape) == record.shape
                assert theirs.contiguous().view(-1).view(torch.uint8).numpy().tobytes() == bytes(record.data)


def test_a_header_larger_than_reserved_moves_the_values_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "_MOVED_AT_ONCE", 1000)
    values = {f"layers.{index}.weight": np.arange(index * 7.0, dtype=np.float32) for index in range(60)}
    path = store(tmp_path / "t", [tensor_record(0, *item) for item in values.items()], reserve_bytes=100)
    theirs = load_file(path)
    assert set(theirs) == set(values)
    for key, value in values.items():
        assert theirs[key].tobytes() == value.tobytes()
        assert read_tensor(path, key).data.tolist() == value.tolist()


def test_the_next_step_reserves_what_this_one_needed(tmp_path):
    records = [tensor_record(0, f"layers.{index}.weight", [1.0]) for index in range(1000)]
    file = TensorFile(str(tmp_path / "t"), reserve_bytes=0)
    for record in records:
        file.add(record)
    reserve_bytes = file.finish()
    used_bytes = len((tmp_path / "t").read_bytes()[8:].split(b"\0")[0].rstrip()) - 4
    assert used_bytes < reserve_bytes < 1.5 * used_bytes + 8192
    store(tmp_path / "u", records, reserve_bytes=reserve_bytes)
    assert struct.unpack("<Q", (tmp_path / "u").read_bytes()[:8]) == (reserve_bytes,)
    assert (8 + reserve_bytes) % 4096 == 0


def test_every_flipped_bit_of_a_value_is_noticed(tmp_path):
    path = store(tmp_path / "t", [tensor_record(0, "w", np.arange(8.0)), tensor_record(0, "v", [2.0])])
    content = bytearray(path.read_bytes())
    for position in range(len(content) - 36, len(content) - 4):
        content[position] ^= 4
        path.write_bytes(content)
        with pytest.raises(RunError, match="the 32 bytes of 'w' are not those that were written"):
            read_tensor(path, "w")
        assert read_tensor(path, "v").data.tolist() == [2.0]
        content[position] ^= 4


def test_every_truncation_is_noticed(tmp_path):
    path = store(tmp_path / "t", [tensor_record(0, "w", np.arange(8.0))], reserve_bytes=200)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(RunError, match="cannot be read as tensors"):
            read_tensor(path, "w")


def test_every_flipped_byte_of_the_header_gives_the_value_or_a_sentence(tmp_path):
    path = store(tmp_path / "t", [tensor_record(0, "w", np.arange(8.0))], reserve_bytes=200)
    content = path.read_bytes()
    for position in range(len(content) - 32):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x15]) + content[position + 1 :])
        try:
            value = read_tensor(path, "w")
        except RunError:
            continue
        assert value.data.tobytes() == np.arange(8, dtype=np.float32).tobytes() or value.dtype != "F32"


def test_a_missing_file_or_key_is_a_sentence(tmp_path):
    with pytest.raises(RunError, match=r"cannot be read as tensors: .*No such file"):
        read_tensor(tmp_path / "none", "w")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(RunError, match="cannot be read as tensors"):
        read_tensor(tmp_path / "empty", "w")
    path = store(tmp_path / "t", [tensor_record(0, "w", [1.0])])
    with pytest.raises(RunError, match="holds no tensor 'v'"):
        read_tensor(path, "v")


@pytest.mark.parametrize(
    ("dtype", "shape", "num_bytes", "words"),
    [("F32", (2, 3), 23, "of F32 .2, 3. has 23 bytes, expected 24"), ("float32", (1,), 4, "has dtype 'float32'")],
)
def test_bytes_that_are_not_the_values_are_refused(dtype, shape, num_bytes, words):
    with pytest.raises(InputError, match=words):
        check_tensor(TensorRecord(0, "w", dtype, shape, memoryview(bytes(num_bytes))))


def test_a_key_that_comes_twice_is_refused_and_the_first_value_stays(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    writer.write(tensor_record(0, "t1", [1.0]))
    writer.write(tensor_record(0, "t1", [2.0]))
    writer._records.drain()
    with pytest.raises(InputError, match="Tensor 't1' came twice in step 0"):
        writer.write(make_step(0))
    writer.write(make_step(0))
    writer.close()
    assert read_tensor(tmp_path / "tensors" / "rank-00000" / "step-00000000.safetensors", "t1").data.tolist() == [1.0]


def test_a_run_gives_values_by_row_and_by_site(tmp_path):
    writer = RunWriter(tmp_path, rank=3, creates=True)
    for step in (0, 1):
        for row in (1, 4, 7, 10):
            writer.write(tensor_record(step, f"t{row}", [step, row]))
        writer.write(make_step(step))
    writer.close()
    run = Run(tmp_path)
    rows = run.records(steps=[1]).to_pylist()
    assert [run.tensor(row).data.tolist() for row in rows if row["tensor"]] == [
        [1.0, row["row"] // 3 * 3 + 1] for row in rows if row["row"] % 3
    ]
    assert run.tensor("1.0/r3/fwd/layers.0.attn#0:out0").data.tolist() == [1.0, 1.0]
    with pytest.raises(RunError, match=r"No value was stored at '1\.0/r3/fwd/#0:in0'"):
        run.tensor(rows[0])
    with pytest.raises(RunError, match=r"Nothing was recorded at '9\.0/r3/fwd/x#0:in0'"):
        run.tensor("9.0/r3/fwd/x#0:in0")
    (tmp_path / "tensors" / "rank-00003" / "step-00000001.safetensors").unlink()
    with pytest.raises(RunError, match=r"step-00000001\.safetensors is not in the Run"):
        run.tensor(rows[1])


def test_values_of_two_steps_may_come_interleaved(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    for key in ("t1", "t4"):
        for step in (0, 1):
            writer.write(tensor_record(step, key, [step]))
    writer.write(make_step(0))
    writer.write(make_step(1))
    writer.close()
    folder = tmp_path / "tensors" / "rank-00000"
    assert {path.name: sorted(load_file(path)) for path in folder.iterdir()} == {
        f"step-0000000{step}.safetensors": ["t1", "t4"] for step in (0, 1)
    }


def test_values_of_a_step_that_did_not_end_are_kept_and_said_to_be_partial(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    writer.write(tensor_record(4, "t1", [1.0]))
    writer.close()
    path = tmp_path / "tensors" / "rank-00000" / "step-00000004.partial.safetensors"
    assert load_file(path)["t1"].tolist() == [1.0]
    run = Run(tmp_path)
    assert run.tensor_problems() == [
        "tensors/rank-00000/step-00000004.partial.safetensors: its step did not end: it holds the values up to there, "
        "and no rows refer to them"
    ]


def test_files_that_are_not_whole_are_named(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    writer.write(tensor_record(0, "t1", [1.0]))
    writer.write(make_step(0))
    writer.write(tensor_record(1, "t1", [1.0]))
    writer._records.drain()
    folder = tmp_path / "tensors" / "rank-00000"
    (folder / "step-00000002.safetensors").write_bytes(bytes(500))
    (folder / "step-00000003.safetensors").write_bytes((folder / "step-00000000.safetensors").read_bytes()[:-1])
    (folder / "notes.txt").write_text("x")
    named = [text.split(": ")[0].removeprefix("tensors/rank-00000/") for text in Run(tmp_path).tensor_problems()]
    assert named == [
        ".step-00000001.safetensors.tmp",
        "notes.txt",
        *(f"step-0000000{step}.safetensors" for step in (2, 3)),
    ]


def test_the_header_is_what_safetensors_says(tmp_path):
    path = store(tmp_path / "t", [tensor_record(0, "w", [[1.0, 2.0]])])
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header.pop("__metadata__").keys() == {"trueline.xxh3_64", "trueline.header"}
    assert header == {"w": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}}
