"""Recorded steps read back as they were written, in any order of writing, sealing, filtering and damage."""

import dataclasses
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.recorded_steps import make_step, read_rows, rows_of, tensor_record

from trueline.schema.columns.records import RECORD_COLUMNS, StackRecord
from trueline.schema.errors import InputError, RunError, RunExistsError, SiteError
from trueline.store.file_names import PartName
from trueline.store.reader import Run
from trueline.store.records.record_reader import site_of
from trueline.store.records.step_parts import check_records
from trueline.store.rows import RECORD_SCHEMA
from trueline.store.writer import RunWriter


def write_steps(path, steps, *, rank=0, close=True, **settings):
    writer = RunWriter(path, rank=rank, **settings)
    for records in steps:
        writer.write(records)
    writer._records.drain()
    if close:
        writer.close()
    return path


def damage(run):
    return [text for text in run.problems if not text.startswith("rank ")]


@pytest.mark.parametrize("resolve", [False, True])
@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("seal_steps", [1, 3, 100])
def test_steps_of_two_ranks_read_back_as_rows(tmp_path, seal_steps, close, resolve):
    steps = {rank: [make_step(step, seed=rank, exponents=rank == 1) for step in (5, 6, 9, 7)] for rank in (0, 1)}
    for rank in steps:
        write_steps(tmp_path, steps[rank], rank=rank, seal_steps=seal_steps, close=close)
    run = Run(tmp_path)
    wanted = [
        row
        for step in (5, 6, 7, 9)
        for rank in steps
        for records in steps[rank]
        if records.step == step
        for row in rows_of(records, rank, resolve=resolve)
    ]
    table = run.records(resolve=resolve)
    assert table.schema.equals(RECORD_SCHEMA)
    assert read_rows(table) == wanted
    assert run.record_steps.tolist() == [5, 6, 7, 9]
    assert run.record_ranks == [0, 1]
    assert run.has_records
    assert damage(run) == []


def test_rows_are_chosen_by_step_rank_name_phase_and_column(tmp_path):
    steps = {rank: [make_step(step, seed=rank) for step in range(5)] for rank in (0, 1)}
    for rank in steps:
        write_steps(tmp_path, steps[rank], rank=rank, seal_steps=2, close=rank == 0)
    run = Run(tmp_path)
    everything = [row for step in range(5) for rank in steps for row in rows_of(steps[rank][step], rank, resolve=True)]
    for chosen, keep in (
        ({"steps": [1, 4, 77]}, lambda row: row["step"] in (1, 4)),
        ({"ranks": [1]}, lambda row: row["rank"] == 1),
        ({"names": ["layers.0.*", "lm_head[[]0]"]}, lambda row: row["name"].startswith(("layers.0.", "lm_"))),
        ({"names": ["*.attn"]}, lambda row: row["name"].endswith(".attn")),
        ({"phases": ["bwd"], "steps": [2]}, lambda row: row["phase"] == "bwd" and row["step"] == 2),
        ({"names": ["nothing"]}, lambda row: False),
        ({"steps": []}, lambda row: False),
    ):
        assert read_rows(run.records(**chosen)) == [row for row in everything if keep(row)]
    columns = ["min", "slot", "numel"]
    table = run.records(names=["layers.0.mlp"], columns=columns)
    assert table.column_names == columns
    assert read_rows(table) == [
        {name: row[name] for name in columns} for row in everything if row["name"] == "layers.0.mlp"
    ]


def test_opening_a_run_reads_no_records(tmp_path):
    write_steps(tmp_path, [make_step(0)])
    for part in (tmp_path / "records").rglob("*.parquet"):
        part.write_bytes(b"")
    run = Run(tmp_path)
    assert damage(run) == []
    assert not run.has_records
    assert len(damage(run)) == 1


def test_a_run_without_records_says_so(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    writer.write({"step": 0, "loss": 1.0})
    writer.close()
    run = Run(tmp_path)
    assert not run.has_records
    assert run.record_steps.tolist() == []
    assert run.records().num_rows == 0
    assert run.query("select count(*) from records") == [(0,)]


def test_columns_that_differ_from_step_to_step_are_not_mixed_up(tmp_path):
    """Columns are kept from the step before where they are equal, also where they are other objects."""
    first = make_step(0)
    second = dataclasses.replace(make_step(1), columns=first.columns | {"slot": list(first.columns["slot"])})
    third = dataclasses.replace(make_step(2), columns=first.columns | {"slot": ["x"] * 12, "note": ["why"] * 12})
    fourth = dataclasses.replace(make_step(3, num_rows=5), columns=make_step(3, num_rows=5).columns)
    steps = [first, second, third, fourth, make_step(4)]
    write_steps(tmp_path, steps)
    assert read_rows(Run(tmp_path).records(resolve=False)) == [
        row for records in steps for row in rows_of(records, 0, resolve=False)
    ]


def test_what_the_plan_does_not_ask_for_is_null(tmp_path):
    write_steps(tmp_path, [make_step(0, stats=False, fingerprints=False)])
    table = Run(tmp_path).records()
    for name in ("nan", "min", "sum_sq", "fingerprint", "exponents", "mesh"):
        assert table[name].null_count == table.num_rows


def test_a_step_recorded_again_replaces_the_one_before(tmp_path):
    steps = [make_step(0), make_step(1), make_step(1, seed=9), make_step(0, seed=9, num_rows=4), make_step(2)]
    for seal_steps in (1, 2, 100):
        path = write_steps(tmp_path / str(seal_steps), steps, seal_steps=seal_steps)
        assert read_rows(Run(path).records(resolve=False)) == [
            row for records in (steps[3], steps[2], steps[4]) for row in rows_of(records, 0, resolve=False)
        ]


def test_every_row_has_a_site_and_every_site_its_row(tmp_path):
    write_steps(tmp_path, [make_step(step) for step in (3, 4)], rank=0)
    run = Run(tmp_path)
    for row in run.records().to_pylist():
        at = run.records_at(str(site_of(row)))
        assert row["row"] in at["row"].to_pylist()
        assert {str(site_of(found)) for found in at.to_pylist()} == {str(site_of(row))}
    assert run.records_at("3.9/r0/fwd/layers.0.mlp#0:in0").num_rows == 0
    with pytest.raises(SiteError, match=r"'layers\.0' is not a site"):
        run.records_at("layers.0")


def test_sql_joins_workers_and_records(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    writer.write({"step": 0, "loss": 1.5})
    writer.write(make_step(0))
    writer.close()
    sql = "select loss, count(*), count(fingerprint) from workers join Records using (step, rank) group by 1"
    hashed = [row for row in rows_of(make_step(0), 0, resolve=True) if row["fingerprint"] is not None]
    assert Run(tmp_path).query(sql) == [(1.5, 12, len(hashed))]


def test_an_unknown_column_is_named(tmp_path):
    write_steps(tmp_path, [make_step(0)])
    with pytest.raises(RunError, match=r"'fingerprnt' is not a column of a Run\. Did you mean 'fingerprint'"):
        Run(tmp_path).records(columns=["fingerprnt"])


def test_stacks_are_kept_by_id(tmp_path):
    writer = RunWriter(tmp_path, rank=2, creates=True)
    writer.write(StackRecord(0, ("model.py:7 forward", "train.py:90 main")))
    writer.write(StackRecord(7, ()))
    writer.write(make_step(0))
    writer._records.drain()
    assert Run(tmp_path).stack_frames(2, 0) == ("model.py:7 forward", "train.py:90 main")
    writer.write(StackRecord(8, ("é",)))
    writer.close()
    run = Run(tmp_path)
    assert run.stack_frames(2, 0) == ("model.py:7 forward", "train.py:90 main")
    assert run.stack_frames(2, 7) == ()
    assert run.stack_frames(2, 8) == ("é",)
    with pytest.raises(RunError, match="has no call stack 9 of rank 2"):
        run.stack_frames(2, 9)


def test_a_damaged_file_of_stacks_is_named(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    writer.write(StackRecord(0, ("model.py:7 forward",)))
    writer.write(make_step(0))
    writer.close()
    (path,) = (tmp_path / "stacks").iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    run = Run(tmp_path)
    with pytest.raises(RunError, match="has no call stack 0"):
        run.stack_frames(0, 0)
    assert [text.split(":")[0] for text in damage(run)] == ["stacks/rank-00000.parquet"]


def shorter(name):
    return lambda records: dataclasses.replace(records, **{name: getattr(records, name)[:-1]})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda r: dataclasses.replace(r, columns=r.columns | {"nam": [0] * 12}), "'nam' is not a column"),
        (lambda r: dataclasses.replace(r, columns=r.columns | {"min": [0] * 12}), "'min' is not a column"),
        (lambda r: dataclasses.replace(r, columns=r.columns | {"slot": ["x"]}), "differ in length"),
        (lambda r: dataclasses.replace(r, measured_M=r.measured_M + 9), "must ascend within its 12 rows"),
        (lambda r: dataclasses.replace(r, measured_M=r.measured_M[::-1]), "must ascend"),
        (shorter("stats_MS"), "stats_MS of step 0 has shape"),
        (shorter("fingerprint_M"), "fingerprint_M of step 0 has shape"),
        (lambda r: dataclasses.replace(r, exponents_ME=np.zeros((1, 256))), "exponents_ME of step 0 has shape"),
    ],
)
def test_records_that_do_not_fit_are_refused_at_once(spoil, words):
    check_records(make_step(0))
    with pytest.raises(InputError, match=words):
        check_records(spoil(make_step(0)))


def test_a_value_of_the_wrong_type_costs_its_step_and_comes_out_of_the_next_write(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    wrong = make_step(1)
    writer.write(make_step(0))
    writer.write(dataclasses.replace(wrong, columns=wrong.columns | {"micro": ["x"] * 12}))
    writer._records.drain()
    with pytest.raises(InputError, match="Column 'micro' of a records row takes int32, got"):
        writer.write({"step": 0})
    writer.write(make_step(2))
    writer.close()
    assert Run(tmp_path).record_steps.tolist() == [0, 2]


def test_what_a_rank_recorded_before_is_not_mixed_with_what_comes(tmp_path):
    writers = {rank: RunWriter(tmp_path, rank=rank) for rank in (0, 1, 11)}
    for rank, writer in writers.items():
        writer.write(StackRecord(rank, ("f",)))
        writer.write(tensor_record(0, "x", [1.0]))
        writer.write(make_step(0))
        writer._records.drain()
    for path in ("env/rank-00001.json", "journal/rank-00001.tlj", "journal/rank-00001-records.tlj"):
        (tmp_path / path).unlink(missing_ok=True)
    with pytest.raises(RunExistsError, match="already holds 'records/rank-00001' of rank 1"):
        RunWriter(tmp_path, rank=1)
    RunWriter(tmp_path, rank=1, overwrite=True).close()
    assert Run(tmp_path).record_ranks == [0, 11]
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*rank-00001*")) == []
    for rank in (0, 11):
        writers[rank].close()
    RunWriter(tmp_path, rank=0, overwrite=True)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".tmp"}
    assert left == {"rank-00000.tlj", "manifest.json"}


STEPS = st.lists(
    st.builds(
        make_step,
        st.integers(0, 5),
        num_rows=st.integers(0, 20),
        seed=st.integers(0, 9),
        exponents=st.booleans(),
        fingerprints=st.booleans(),
        stats=st.booleans(),
    ),
    max_size=8,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(steps=STEPS, seal_steps=st.integers(1, 6), close=st.booleans(), resolve=st.booleans())
def test_any_steps_with_seals_between_read_back_equal(steps, seal_steps, close, resolve):
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(folder, rank=0, seal_steps=seal_steps)
        for records in steps:
            writer.write(records)
        if close:
            writer.close()
        elif steps:
            writer._records.drain()
        run = Run(folder)
        rows = read_rows(run.records(resolve=resolve))
        assert damage(run) == []
    last = {records.step: records for records in steps if len(records.columns["name"])}
    assert rows == [row for step in sorted(last) for row in rows_of(last[step], 0, resolve=resolve)]


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    num_steps=st.integers(1, 7),
    seal_steps=st.integers(1, 4),
    position=st.integers(0, 10**6),
    bit=st.integers(0, 7),
    cut=st.booleans(),
    data=st.data(),
)
def test_any_damage_is_named_and_costs_no_step_outside_it(num_steps, seal_steps, position, bit, cut, data):
    with tempfile.TemporaryDirectory() as folder:
        write_steps(folder, [make_step(step) for step in range(num_steps)], seal_steps=seal_steps, close=False)
        victims = [*Path(folder).glob("records/*/*"), *Path(folder).glob("journal/*-records.tlj")]
        victim = data.draw(st.sampled_from(sorted(victims)))
        content = bytearray(victim.read_bytes())
        position %= len(content)
        content[position] ^= 1 << bit
        victim.write_bytes(content[:position] if cut else content)
        run = Run(folder)
        found = set(run.record_steps.tolist())
        rows = read_rows(run.records())
        named = damage(run)
    num_sealed = num_steps - num_steps % seal_steps
    part = PartName.parse(victim.name)
    if part is not None:
        lost = set(range(part.sequence * seal_steps, (part.sequence + 1) * seal_steps))
        assert found == set(range(num_steps)) - lost
    else:
        lost = set(range(num_steps)) - found
        assert lost <= set(range(num_sealed, num_steps))
        assert cut or len(lost) <= 1
    assert len(named) == 1 or (cut and not lost)
    assert all(text.startswith(f"{victim.relative_to(folder)}: ") for text in named)
    assert rows == [row for step in sorted(found) for row in rows_of(make_step(step), 0, resolve=True)]


def test_a_missing_part_is_named(tmp_path):
    write_steps(tmp_path, [make_step(step) for step in range(6)], seal_steps=2)
    (victim,) = (tmp_path / "records").rglob("part-r00000-000001-*")
    victim.unlink()
    run = Run(tmp_path)
    assert run.record_steps.tolist() == [0, 1, 4, 5]
    assert damage(run) == ["records/rank-00000: part 1 of rank 0 is missing, and the rows in it with it"]


def test_a_part_that_goes_after_opening_is_named(tmp_path):
    write_steps(tmp_path, [make_step(0)])
    run = Run(tmp_path)
    assert run.has_records
    (victim,) = (tmp_path / "records").rglob("*.parquet")
    victim.unlink()
    with pytest.raises(RunError, match=r"records/rank-00000/part-.* has changed since the Run was opened"):
        run.records()


def test_equal_structure_costs_little_more_than_its_numbers(tmp_path):
    """100 steps of 300 rows: at most the bytes of the measured numbers and a twentieth of the texts on top."""
    steps = [make_step(step, num_rows=300) for step in range(100)]
    write_steps(tmp_path, steps)
    size_bytes = sum(path.stat().st_size for path in (tmp_path / "records").rglob("*") if path.is_file())
    numbers_bytes = sum(records.stats_MS.nbytes + records.fingerprint_M.nbytes for records in steps)
    texts_bytes = sum(len(str(value)) for records in steps for column in records.columns.values() for value in column)
    assert numbers_bytes / 2 < size_bytes < numbers_bytes + texts_bytes / 20


def test_large_steps_are_sealed_by_their_bytes(tmp_path, monkeypatch):
    """A step of 300 rows with histograms is half a megabyte before compression."""
    monkeypatch.setattr("trueline.store.writer.SEAL_BYTES", 2**20)
    write_steps(tmp_path, [make_step(step, num_rows=300, exponents=True) for step in range(9)], close=False)
    num_parts = len(list((tmp_path / "records").rglob("*.parquet")))
    assert 2 <= num_parts <= 4
    assert Run(tmp_path).record_steps.tolist() == list(range(9))


def test_every_column_of_the_schema_can_be_written(tmp_path):
    step = make_step(0, exponents=True)
    texts = {column.name: ["x"] * 12 for column in RECORD_COLUMNS if column.type == "string"}
    step = dataclasses.replace(step, columns=texts | step.columns)
    write_steps(tmp_path, [step], seal_s=math.inf)
    table = Run(tmp_path).records()
    assert [name for name in table.column_names if table[name].null_count == table.num_rows] == []
