"""Files that lie about themselves: each reader refuses them in one sentence, before it makes room for what they say."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from trueline.cli.plan_keys import key_and_value
from trueline.cli.verbs.import_ import measure
from trueline.comparison.match.names import NameMap
from trueline.compat.msprobe.config import read_config, settings_of
from trueline.schema.errors import InputError, PlanError, RunError
from trueline.schema.files.tolerance import Tolerance
from trueline.schema.plan import Plan
from trueline.schema.text.reading import reading
from trueline.store.filesystem import filesystem_of
from trueline.store.importers.checkpoint import import_checkpoint
from trueline.store.importers.checkpoint_weights import WeightOptions
from trueline.store.importers.msprobe.files import RankDump, read_value
from trueline.store.log import journal as journals
from trueline.store.reader import Run
from trueline.store.records.stack_files import DamagedStacks, decode_stacks, encode_stacks
from trueline.store.records.tensor_files import DamagedTensors, read_header
from trueline.store.rows import worker_schema

DEEP = "[" * 100_000
DIGITS = "9" * 5_000


def refused(source: Path, target: Path) -> str:
    """What importing a checkpoint says, which must be one sentence or two, and leave nothing."""
    with pytest.raises(InputError) as caught:
        import_checkpoint(str(source), str(target), WeightOptions(measure()))
    told = str(caught.value)
    assert "\n" not in told
    assert len(told) < 600
    assert not target.exists()
    return told


def test_the_guard_takes_what_is_no_exception_and_lets_our_own_errors_through():
    class Foreign(BaseException):
        pass

    with pytest.raises(InputError, match=r"^'x' cannot be read: why\. Do so\.$"), reading("'x'", "Do so."):
        raise Foreign("why.\nand more")
    with pytest.raises(PlanError, match="own"), reading("'x'", "Do so."):
        raise PlanError("own")
    with pytest.raises(KeyboardInterrupt), reading("'x'", "Do so."):
        raise KeyboardInterrupt


@pytest.mark.parametrize("suffix", [".json", ".toml"])
@pytest.mark.parametrize(
    "text", [DEEP, f'{{"every": {DEEP}', f"every = {DEEP}", f"every = {DIGITS}", '{"every": 1', "3"]
)
def test_plans_and_maps_that_cannot_be_parsed(tmp_path, suffix, text):
    path = tmp_path / f"file{suffix}"
    path.write_text(text)
    with pytest.raises(PlanError, match=r"Expected TOML, or JSON|has the value"):
        Plan.load(path)
    with pytest.raises(InputError, match=r"Expected TOML, or JSON|Unknown key"):
        NameMap.load(path)


def test_texts_of_any_length_and_values_of_any_kind(tmp_path):
    for text in ("x" * 5_000, "a\0b", DIGITS):
        with pytest.raises(PlanError, match="neither a preset"):
            Plan.load(text)
        with pytest.raises(InputError) as caught:
            NameMap.load(text)
        assert len(str(caught.value)) < 600
        with pytest.raises(InputError):
            Tolerance.load(text)
    path = tmp_path / "map.toml"
    path.write_text("built_in = {}")
    with pytest.raises(InputError, match=r"asks for the built-in map \{\}"):
        NameMap.load(path)
    for change in (f"steps={DIGITS}", f"every={DIGITS}", f"every=[{DIGITS}]", f"ranks={DEEP}"):
        with pytest.raises(PlanError):
            Plan().revised(dict([key_and_value(change)]), "--set")


@pytest.mark.parametrize("text", [DEEP, f'{{"task": {DEEP}', f'{{"step": [{DIGITS}]}}', '{"step": ["0-999999999"]}'])
def test_configurations_of_msprobe(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"cannot be parsed|at most 1,000,000"):
        settings_of(read_config(str(path)))


def header(entries: object, values: bytes) -> bytes:
    text = json.dumps(entries).encode() if not isinstance(entries, bytes) else entries
    return struct.pack("<Q", len(text)) + text + values


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
        {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0]},
        {"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]},
        {"dtype": "F32", "data_offsets": [0, 8]},
        None,
        3,
    ],
)
def test_headers_of_safetensors(tmp_path, entry):
    path = tmp_path / "w.safetensors"
    path.write_bytes(header({"x": entry}, bytes(8)))
    assert "safetensors" in refused(path, tmp_path / "run")


def test_headers_of_safetensors_as_a_whole(tmp_path):
    path, value = tmp_path / "w.safetensors", {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for entries in ([value], {"x": value, "y": value}, {"__metadata__": 3, "x": value}, DEEP.encode(), b"\xff" * 9):
        path.write_bytes(header(entries, bytes(8)))
        assert "safetensors" in refused(path, tmp_path / "run")


def test_a_tensor_that_repeats_four_bytes_a_hundred_billion_times(tmp_path):
    path = tmp_path / "w.pt"
    torch.save({"x": torch.zeros(1).expand(100_000_000_000)}, path)
    assert "declares 400,000,000,000 bytes" in refused(path, tmp_path / "run")


def test_lists_that_hold_each_other(tmp_path):
    path, doubled = tmp_path / "w.pt", [torch.zeros(1)]
    for _ in range(60):
        doubled = [doubled, doubled]
    torch.save({"x": doubled}, path)
    assert "more entries than" in refused(path, tmp_path / "run")
    itself: list[object] = []
    itself.append(itself)
    torch.save({"x": itself}, path)
    assert "nested too deeply" in refused(path, tmp_path / "run")


def test_an_archive_that_inflates(tmp_path):
    whole, path = tmp_path / "whole.pt", tmp_path / "w.pt"
    torch.save({"x": torch.zeros(4)}, whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
        target.writestr("archive/data/1", bytes(300 * 2**20))
    assert "declares" in refused(path, tmp_path / "run")


def checkpoint(folder: Path) -> Path:
    dcp.save({"model": {"w": torch.arange(6.0), "b": torch.ones(2)}}, checkpoint_id=folder, no_dist=True)
    return folder


def test_distributed_checkpoints(tmp_path):
    folder = checkpoint(tmp_path / "dcp")
    path = folder / ".metadata"
    whole = path.read_bytes()

    def told(change) -> str:
        metadata = pickle.loads(whole)
        change(metadata)
        path.write_bytes(pickle.dumps(metadata))
        return refused(folder, tmp_path / "run")

    def entry(metadata):
        return next(iter(metadata.storage_data.values()))

    def sized(metadata):
        next(iter(metadata.state_dict_metadata.values())).size = torch.Size([10**12])

    (tmp_path / "other").write_bytes(next(folder.glob("*.distcp")).read_bytes())
    for where in ("../other", str(tmp_path / "other"), "a/../../other"):
        assert "not inside" in told(lambda metadata, where=where: setattr(entry(metadata), "relative_path", where))
    assert "declares" in told(sized)
    told(lambda metadata: metadata.storage_data.clear())
    told(lambda metadata: setattr(metadata, "storage_data", 3))
    told(lambda metadata: setattr(entry(metadata), "offset", 10**9))
    next(folder.glob("*.distcp")).write_bytes(b"")
    path.write_bytes(whole)
    refused(folder, tmp_path / "run")


def test_arrays_of_numpy(tmp_path):
    folder = tmp_path / "dump_tensor_data"
    folder.mkdir()
    np.save(folder / "x.npy", np.zeros(4, np.float32))
    whole = (folder / "x.npy").read_bytes()
    dump = RankDump(0, 0, str(tmp_path))
    assert read_value(dump, "x.npy").tolist() == [0.0] * 4
    (folder / "x.npy").write_bytes(whole.replace(b"(4,), }         ", b"(4000000000,), }"))
    with pytest.raises(InputError):
        read_value(dump, "x.npy")
    torch.save(torch.zeros(1).expand(10**11), folder / "y.pt")
    with pytest.raises(InputError, match="declares"):
        read_value(dump, "y.pt")


def test_a_frame_that_declares_more_than_it_can_hold():
    codec = journals.FrameCodec(worker_schema())
    _, frame = codec.encode({"step": 1, "rank": 0})
    body = struct.pack("<I", 2**32 - 1) + frame[16:]
    lie = struct.pack("<4sII", frame[:4], len(body), zlib.crc32(body, codec.seed)) + body
    data = journals._file_header(codec.schema_bytes, 0) + lie + frame
    content = journals.read_journal(data, worker_schema())
    assert len(content.batches) == 1
    assert "declare 4,294,967,295" in content.problems[0]


def test_call_stacks_that_are_not_what_was_written():
    data = encode_stacks({0: ("train.py:3 main", "model.py:9 forward")})
    assert decode_stacks(data) == {0: ("train.py:3 main", "model.py:9 forward")}
    seal = data.index(b"trueline.crc32")
    for at in range(seal + 14, seal + 30):
        try:
            assert decode_stacks(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        except DamagedStacks:
            break
    else:
        pytest.fail("no flip of the checksum was seen")


def test_a_dtype_or_shape_that_was_not_written(tmp_path):
    from trueline.schema.columns.records import TensorRecord
    from trueline.store.records.tensor_files import TensorFile

    file = TensorFile(str(tmp_path / "t"))
    file.add(TensorRecord(0, "w", "F32", (2, 3), memoryview(np.arange(6, dtype=np.float32)).cast("B")))
    file.finish()
    data = (tmp_path / "t").read_bytes()
    for old, new in ((b'"F32"', b'"I32"'), (b"[2, 3]", b"[3, 2]"), (b'"w": {', b'"x": {')):
        assert data.count(old) == 1
        other = data.replace(old, new)
        with pytest.raises(DamagedTensors, match="not what was written"):
            read_header(lambda begin, end, other=other: other[begin:end], len(other))


def test_an_archive_that_is_damaged_is_named(tmp_path):
    from trueline.store.writer import RunWriter

    RunWriter(tmp_path / "run", rank=0).close()
    path = tmp_path / "run.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "run" / "manifest.json", "manifest.json")
    url = f"zip://::{path}"
    assert Run(url).manifest.world_size == 1
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(RunError):
        Run(url)
    filesystem, root = filesystem_of(url)
    with pytest.raises(OSError, match="Error"):
        filesystem.cat_file(f"{root}/manifest.json")
