"""Arrow arrays made of buffers are those that pyarrow makes, and no pandas is imported for them."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueline.store.records.arrays import (
    empty,
    empty_table,
    floats,
    from_numpy,
    from_values,
    lists_from,
    take_rows,
    to_numpy,
)

INTS = st.integers(-(2**31), 2**31 - 1)
FLOATS = st.floats(width=32)
KINDS = {
    pa.int32(): INTS,
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float32(): FLOATS,
    pa.float64(): st.floats(),
    pa.string(): st.text(),
    pa.list_(pa.int64()): st.lists(INTS),
    pa.list_(pa.float32()): st.lists(FLOATS) | st.lists(FLOATS, min_size=1).map(np.float32),
    pa.list_(pa.string()): st.lists(st.text()),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_values_become_the_array_that_pyarrow_makes_of_them(kind, data):
    values = data.draw(st.lists(st.none() | KINDS[kind]))
    made = from_values(values, kind)
    made.validate(full=True)
    assert made.type == kind
    assert repr(made.to_pylist()) == repr(pa.array(values, kind).to_pylist())  # NaN differs from itself


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("high", pa.float64()),
        (-1, pa.uint64()),
        (2**31, pa.int32()),
        (1.5, pa.int64()),
        (3, pa.string()),
        ("\ud800", pa.string()),
        (3, pa.list_(pa.int64())),
        (np.ones((2, 2)), pa.list_(pa.float64())),
        (np.array([-1]), pa.list_(pa.uint64())),
        (np.array([2**40]), pa.list_(pa.int32())),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value, kind):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        from_values([value], kind)


def test_whole_numbers_may_come_as_floats():
    assert from_values([3.0, np.float32(4), None], pa.int64()).to_pylist() == [3, 4, None]


@given(numbers=st.lists(INTS), seed=st.integers(0, 99))
def test_arrays_of_numpy_and_back_keep_their_numbers(numbers, seed):
    values_N = np.array(numbers, np.int64)
    absent_N = np.random.default_rng(seed).random(len(numbers)) < 0.5
    made = from_numpy(values_N, absent_N=absent_N)
    assert made.to_pylist() == [None if absent else value for value, absent in zip(numbers, absent_N, strict=True)]
    assert to_numpy(made.is_null()).tolist() == absent_N.tolist()
    chunks = pa.chunked_array([from_numpy(values_N), from_numpy(values_N)])
    assert to_numpy(chunks.slice(1)).tolist() == (numbers + numbers)[1:]
    assert to_numpy(made.is_null().slice(3)).tolist() == absent_N.tolist()[3:]
    assert from_numpy(absent_N).slice(1).to_pylist() == absent_N.tolist()[1:]
    shown = [-7 if absent else value for value, absent in zip(numbers, absent_N, strict=True)]
    assert to_numpy(made, -7).tolist() == shown
    assert to_numpy(made.slice(2), -7).tolist() == shown[2:]
    known = [float(value) for value, absent in zip(numbers, absent_N, strict=True) if not absent]
    assert floats(made)[~absent_N].tolist() == known
    assert np.isnan(floats(made)[absent_N]).all()


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint64(), pa.float32(), pa.bool_()])
def test_of_nothing_there_is_nothing(kind):
    assert not len(to_numpy(empty(kind)))
    assert empty_table(pa.schema([("one", kind), ("other", pa.list_(pa.int64()))])).num_rows == 0


def test_lists_are_cut_where_it_is_said():
    ends_N = np.array([0, 2, 2, 3], np.int32)
    lists = lists_from(from_numpy(np.array([4, 5, 6])), ends_N, absent_N=np.array([False, True, False]))
    assert lists.to_pylist() == [[4, 5], None, [6]]


@pytest.mark.parametrize(
    "lists",
    [
        [[1.0, 2.0], [3.0, float("nan")], [5.0, 6.0]],
        [[1.0, 2.0], None, [5.0, 6.0]],
        [[1.0, 2.0], [3.0], [5.0, 6.0]],
        [[1.0, None], [3.0, 4.0], [5.0, 6.0]],
        [[], [], []],
        [],
    ],
)
@pytest.mark.parametrize("begin", [0, 1])
def test_values_are_taken_as_arrow_takes_them(lists, begin):
    values = pa.array(lists, pa.list_(pa.field("element", pa.float64()))).slice(begin)
    at = np.arange(len(values))[::-1]
    made = take_rows(values, at)
    made.validate(full=True)
    assert made.type == values.type
    assert repr(made.to_pylist()) == repr(values.take(pa.array(at)).to_pylist())


SCRIPT = """
import sys, torch, trueline
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with trueline.watch(model, optimizer, out=sys.argv[1], plan={"preset": "mix", "depth": "fingerprint"}):
    for _ in range(3):
        model(torch.ones(2, 2)).sum().backward()
        optimizer.step()
trueline.check(sys.argv[1])
assert "pandas" not in sys.modules
"""


def test_recording_and_checking_import_no_pandas(tmp_path):
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas" / "__init__.py").write_text("__version__ = '3.0'\n")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SCRIPT}", tmp_path / "run"]
    subprocess.run(command, check=True, timeout=120)
