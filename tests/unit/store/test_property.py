"""Any sequence of writes with seals in between reads back as the merge by hand says."""

import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trueline.store.file_names import PartName
from trueline.store.reader import Run
from trueline.store.rows import worker_schema
from trueline.store.writer import RunWriter

FLOATS = st.floats(width=64)
DIGESTS = st.integers(0, 2**64 - 1)
VALUES = {
    "loss": FLOATS,
    "tokens": FLOATS,
    "epoch": st.integers(-(2**31), 2**31 - 1),
    "time_ns": st.integers(-(2**63), 2**63 - 1),
    "optimizer_digest": DIGESTS,
    "lr": st.lists(FLOATS, max_size=3),
    "sample_digests": st.lists(DIGESTS, max_size=3),
    "sketch": st.lists(st.floats(width=32), max_size=3).map(lambda values: np.array(values, dtype=np.float32)),
}
PIECES = st.fixed_dictionaries(
    {"step": st.integers(0, 4)}, optional={name: st.none() | values for name, values in VALUES.items()}
)
WRITES = st.lists(st.tuples(st.integers(0, 1), PIECES), max_size=25)


def merged_by_hand(writes):
    """{(step, rank): {column: value}} by a dict update for each piece."""
    rows = {}
    for rank, piece in writes:
        row = rows.setdefault((piece["step"], rank), {"rank": rank})
        row.update({name: value for name, value in piece.items() if value is not None})
    return rows


def plain(value):
    """Values that compare with ==; NaN is a text."""
    if isinstance(value, list | np.ndarray):
        return [plain(float(entry) if isinstance(entry, float | np.floating) else entry) for entry in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def write_all(path, writes, seal_steps, num_closed):
    writers = [RunWriter(path, rank=rank, seal_steps=seal_steps) for rank in (0, 1)]
    for rank, piece in writes:
        writers[rank].write(piece)
    for writer in writers[:num_closed]:
        writer.close()


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(writes=WRITES, seal_steps=st.integers(1, 6), num_closed=st.integers(0, 2))
def test_any_writes_with_seals_between_read_back_equal(writes, seal_steps, num_closed):
    with tempfile.TemporaryDirectory() as folder:
        write_all(Path(folder), writes, seal_steps, num_closed)
        run = Run(folder)
        rows = run.table().to_pylist()
    expected = merged_by_hand(writes)
    assert [(row["step"], row["rank"]) for row in rows] == sorted(expected)
    for row in rows:
        wanted = expected[row["step"], row["rank"]]
        for name in worker_schema().names:
            assert plain(row[name]) == plain(wanted.get(name))
    assert [text for text in run.problems if not text.startswith("rank ")] == []


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(
    num_steps=st.integers(1, 12),
    seal_steps=st.integers(1, 6),
    position=st.integers(0, 10**6),
    bit=st.integers(0, 7),
    cut=st.booleans(),
    data=st.data(),
)
def test_any_damage_is_named_and_costs_no_row_outside_it(num_steps, seal_steps, position, bit, cut, data):
    """A frame of the journal, or a part; but all of the journal survives where its header is hit."""
    with tempfile.TemporaryDirectory() as folder:
        write_all(Path(folder), [(0, {"step": step, "loss": step / 3}) for step in range(num_steps)], seal_steps, 0)
        victims = sorted(path for path in Path(folder).glob("*/[!.]*") if "00000" in path.name)
        victim = data.draw(st.sampled_from(victims))
        content = bytearray(victim.read_bytes())
        position %= len(content)
        content[position] ^= 1 << bit
        victim.write_bytes(content[:position] if cut else content)
        run = Run(folder)
        loss = run.column("loss").to_pylist()
    num_sealed = num_steps - num_steps % seal_steps
    part = PartName.parse(victim.name)
    if part is not None:
        lost = set(range(part.sequence * seal_steps, (part.sequence + 1) * seal_steps))
        assert set(run.steps.tolist()) == set(range(num_steps)) - lost
    else:
        lost = set(range(num_steps)) - set(run.steps.tolist())
        assert lost <= set(range(num_sealed, num_steps))
        assert cut or len(lost) <= 1
    named = [text for text in run.problems if not text.startswith("rank ")]
    assert len(named) == 1 or (cut and not lost)
    assert all(text.startswith(f"{victim.parent.name}/{victim.name}: ") for text in named)
    assert loss == (run.steps / 3).tolist()
