"""The journal's frames: what is torn or flipped costs that frame and no other, and is named."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueline.schema.errors import InputError
from trueline.store.log.journal import FrameCodec, JournalWriter, read_journal
from trueline.store.rows import merge_batches, worker_schema

NUM_FRAMES = 5


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """The bytes of a journal of five rows, and where its frames start (and the last one ends)."""
    path = tmp_path_factory.mktemp("journal") / "rank-00000.tlj"
    codec = FrameCodec(worker_schema())
    writer = JournalWriter(str(path), sequence=7, codec=codec)
    offsets = [path.stat().st_size]
    for step in range(NUM_FRAMES):
        writer.append(codec.encode({"step": step, "rank": 0, "loss": step / 4, "lr": np.arange(step + 1.0)})[1])
        offsets.append(path.stat().st_size)
    writer.close()
    return path.read_bytes(), offsets


def steps_of(content):
    return [batch["step"][0].as_py() for batch in content.batches]


def test_frames_read_back_as_written(journal):
    content = read_journal(journal[0], worker_schema())
    assert content.sequence == 7
    assert content.problems == []
    assert steps_of(content) == list(range(NUM_FRAMES))
    assert content.batches[3].to_pylist() == [{"step": 3, "rank": 0, "loss": 0.75, "lr": [0.0, 1.0, 2.0, 3.0]}]


@pytest.mark.in_turn
def test_every_truncation_loses_only_the_torn_frame(journal):
    data, offsets = journal
    for length in range(offsets[0], len(data)):
        content = read_journal(data[:length], worker_schema())
        whole = sum(end <= length for end in offsets[1:])
        assert steps_of(content) == list(range(whole))
        torn_bytes = length - offsets[whole]
        assert [f"last {torn_bytes} bytes are an incomplete frame" in problem for problem in content.problems] == (
            [True] if torn_bytes else []
        )


@pytest.mark.in_turn
def test_every_flipped_byte_loses_only_its_frame(journal):
    data, offsets = journal
    for position in range(offsets[0], len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0xFF
        content = read_journal(bytes(damaged), worker_schema())
        hit = sum(start <= position for start in offsets[1:])
        assert steps_of(content) == [step for step in range(NUM_FRAMES) if step != hit]
        assert len(content.problems) == 1
        if hit < NUM_FRAMES - 1:
            assert content.problems == [f"bytes {offsets[hit]} to {offsets[hit + 1] - 1} are damaged and were skipped"]


def test_a_flipped_byte_of_the_header_is_named_and_loses_nothing(journal):
    """All bytes of its beginning, and of the names of columns, which one checksum covers, every eighth."""
    data, offsets = journal
    for position in (*range(64), *range(64, offsets[0], 8)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        content = read_journal(bytes(damaged), worker_schema())
        assert steps_of(content) == list(range(NUM_FRAMES))
        assert content.problems == ["its header is damaged; the columns of this version were assumed"]
        assert content.sequence is None


@pytest.mark.parametrize("length", [0, 0xFFFFFFFF, 2**31, 12])
def test_a_wrong_length_field_skips_one_frame(journal, length):
    data, offsets = journal
    damaged = bytearray(data)
    struct.pack_into("<I", damaged, offsets[2] + 4, length)
    content = read_journal(bytes(damaged), worker_schema())
    assert steps_of(content) == [0, 1, 3, 4]
    assert len(content.problems) == 1


def test_the_mark_of_a_frame_within_damage_is_no_frame(journal):
    data, offsets = journal
    damaged = bytearray(data)
    for position in (offsets[1] + 40, offsets[1] + 60):
        damaged[position : position + 4] = data[offsets[0] : offsets[0] + 4]
    content = read_journal(bytes(damaged), worker_schema())
    assert steps_of(content) == [0, 2, 3, 4]
    assert content.problems == [f"bytes {offsets[1]} to {offsets[2] - 1} are damaged and were skipped"]


def test_a_lost_block_is_one_problem(journal):
    data, offsets = journal
    damaged = bytearray(data)
    damaged[offsets[1] + 3 : offsets[3] + 5] = bytes(offsets[3] + 5 - offsets[1] - 3)
    content = read_journal(bytes(damaged), worker_schema())
    assert steps_of(content) == [0, 4]
    assert content.problems == [f"bytes {offsets[1]} to {offsets[4] - 1} are damaged and were skipped"]


@given(noise=st.binary(max_size=200))
def test_no_bytes_make_reading_fail(noise):
    content = read_journal(noise, worker_schema())
    assert content.batches == []
    assert content.problems


def test_frames_of_other_columns_are_not_mistaken(journal):
    """A frame is only taken under the schema that wrote it: the header's, or where that is damaged the reader's."""
    data, _ = journal
    other = FrameCodec(pa.schema([("step", pa.int64()), ("rank", pa.int32()), ("time_ns", pa.float64())]))
    frame = other.encode({"step": 9, "rank": 0, "time_ns": 1.0})[1]
    content = read_journal(data + frame, worker_schema())
    assert steps_of(content) == list(range(NUM_FRAMES))
    assert len(content.problems) == 1


def test_a_journal_of_other_columns_is_read_under_its_own(tmp_path):
    codec = FrameCodec(pa.schema([("rank", pa.int32()), ("weight", pa.float64()), ("step", pa.int64())]))
    writer = JournalWriter(str(tmp_path / "j"), sequence=0, codec=codec)
    writer.append(codec.encode({"step": 1, "rank": 0, "weight": 0.5})[1])
    writer.close()
    content = read_journal((tmp_path / "j").read_bytes(), worker_schema())
    assert content.batches[0].to_pylist() == [{"rank": 0, "weight": 0.5, "step": 1}]


def short(step, **more):
    """The row of a step that only has a loss and digests, and a schedule or two."""
    rows = {"step": step, "rank": 3, "loss": step / 7, "own_s": float("nan"), "time_ns": 1700000000000000000 + step}
    digests = [2**64 - 1 - step, step, 2**63]
    return rows | {"num_micro": 1, "sample_digests": digests, "lr": [0.5, step], "schedule_epochs": [], **more}


def test_the_frame_of_a_short_row_is_the_one_that_arrow_makes():
    codec = FrameCodec(worker_schema())
    rows = [short(step, **more) for step in range(4) for more in ({}, {"tokens": 8}, {"part_losses": [0.1] * step})]
    for row in rows + rows:
        assert codec.encode(row)[1] == FrameCodec(worker_schema()).encode(row)[1]
    assert isinstance(codec.encode(rows[0])[0], dict), "made without Arrow"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"rank": 2**31}, "Column 'rank' of a workers row takes int32, got 2147483648"),
        ({"loss": "high"}, "Column 'loss' of a workers row takes double, got 'high'"),
        ({"sample_digests": [-1, 2, 3]}, "Column 'sample_digests' of a workers row takes list"),
        ({"lr": [[1.0], 2.0]}, "Column 'lr' of a workers row takes list"),
        ({"time_ns": 0.5}, "Column 'time_ns' of a workers row takes int64, got 0.5"),
    ],
)
def test_a_short_row_that_does_not_fit_is_refused_like_any(value, words):
    codec = FrameCodec(worker_schema())
    for step in range(3):
        codec.encode(short(step))
    with pytest.raises(InputError, match=words):
        codec.encode(short(4, **value))
    assert isinstance(codec.encode(short(5))[0], dict)


@pytest.mark.parametrize("more", [{"num_micro": 2.0}, {"lr": np.ones(2)}, {"lr": [1.0] * 1000}, {"own_draws": "[]"}])
def test_what_only_arrow_takes_is_left_to_it(more):
    codec = FrameCodec(worker_schema())
    for step in range(2):
        codec.encode(short(step))
        assert codec.encode(short(step, **more))[1] == FrameCodec(worker_schema()).encode(short(step, **more))[1]


def test_short_rows_and_batches_merge_as_batches_do():
    codec = FrameCodec(worker_schema())
    rows = [short(step) for step in range(3)] + [{"step": 1, "rank": 3, "cosine_mean": 0.5}, short(1, loss=9.0)]
    rows += [short(2, grad_norm=1.0, param_grad_norms=np.ones(2)), {"step": 2, "rank": 3, "own_draws": "[]"}]
    pieces = [codec.encode(row)[0] for row in rows + rows]
    assert {type(piece) for piece in pieces} == {dict, pa.RecordBatch}
    merged = merge_batches(pieces)
    expected = merge_batches([FrameCodec(worker_schema()).encode(row)[0] for row in rows + rows])
    for name in expected.column_names:
        assert str(merged[name].to_pylist()) == str(expected[name].to_pylist()), "NaN is equal here"
        assert merged.schema.field(name).type == worker_schema().field(name).type


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"step": 1, "los": 1.0}, "'los' is not a column"),
        ({"step": 1, "loss": "high"}, "Column 'loss' of a workers row takes double, got 'high'"),
        ({"step": 1, "rng_torch": -1}, "Column 'rng_torch' of a workers row takes uint64, got -1"),
        ({"step": 1, "lr": np.ones((2, 2))}, "Column 'lr' of a workers row takes list"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_in_a_sentence(record, words):
    with pytest.raises(InputError, match=words):
        FrameCodec(worker_schema()).encode(record)
