"""What a Run gives back: merged rows, arrays by step and rank, and a name for everything that had to be skipped."""

import json
import math
import shutil

import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem
from tests.synthetic_runs import write_part

from trueline.schema.errors import RunError
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.finding import Finding
from trueline.schema.text.documents import decode
from trueline.store.log.part_files import PartFiles
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

NAN = math.nan


def write_run(path, pieces_of_rank, *, close=True, seal_steps=100, findings=()):
    """A Run of as many ranks as there are lists of pieces."""
    world_size = len(pieces_of_rank)
    for rank, pieces in enumerate(pieces_of_rank):
        writer = RunWriter(path, rank=rank, seal_steps=seal_steps, seal_s=math.inf)
        manifest = Manifest(world_size=world_size, data_parallel_ranks=list(range(world_size)))
        writer.describe(manifest if rank == 0 else None, RankEnv(rank=rank, world_size=world_size))
        for piece in pieces:
            writer.write(piece)
        for finding in findings if rank == 0 else ():
            writer.write(finding)
        if close:
            writer.close()
    return path


def only_file(folder, pattern):
    (path,) = sorted(folder.glob(pattern))
    return path


@pytest.fixture
def pieces():
    """Two ranks, four steps, the second half of each step a step late; rank 1 knows no lr."""
    return [
        [
            piece
            for step in range(4)
            for piece in (
                {"step": step, "loss": step + rank / 2, "rng_torch": 2**64 - 1 - step - rank}
                | ({"lr": [0.5, 0.25]} if rank == 0 else {}),
                {"step": step - 1, "cosine_mean": 0.5} if step else {"step": 0, "tokens": 8},
            )
        ]
        for rank in range(2)
    ]


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("seal_steps", [1, 2, 3, 100])
def test_rows_in_two_pieces_become_one_wherever_they_lie(tmp_path, pieces, close, seal_steps):
    run = Run(write_run(tmp_path / "run", pieces, close=close, seal_steps=seal_steps))
    assert run.problems == []
    assert run.ranks == [0, 1]
    assert run.steps.tolist() == [0, 1, 2, 3]
    assert run.steps.dtype == np.int64
    assert run.unclosed == ([] if close else [0, 1])
    assert [(row["step"], row["rank"]) for row in run.table().to_pylist()] == [(t, n) for t in range(4) for n in (0, 1)]
    loss_TN, measured_TN = run.pivot("loss")
    assert loss_TN.tolist() == [[0, 0.5], [1, 1.5], [2, 2.5], [3, 3.5]]
    assert measured_TN.all()
    cosine_TN, measured_TN = run.pivot("cosine_mean")
    assert measured_TN.tolist() == [[True, True]] * 3 + [[False, False]]
    assert np.isnan(cosine_TN[3]).all()
    assert run.pivot("tokens")[0][0].tolist() == [8, 8]


def test_two_pieces_may_lie_in_a_part_and_in_the_journal(tmp_path):
    path = write_run(
        tmp_path / "run", [[{"step": 0, "loss": 1.0}, {"step": 0, "tokens": 3.0}]], close=False, seal_steps=1
    )
    assert len(list((path / "workers").glob("*.parquet"))) == 2
    writer = RunWriter(tmp_path / "b", rank=0, seal_steps=2)
    for piece in ({"step": 0, "loss": 1.0}, {"step": 1, "loss": 2.0}, {"step": 1, "tokens": 3.0}):
        writer.write(piece)
    run = Run(tmp_path / "b")
    assert len(list((tmp_path / "b" / "workers").glob("*.parquet"))) == 1
    assert run.query("select step, loss, tokens from workers order by step") == [(0, 1.0, None), (1, 2.0, 3.0)]


def test_later_values_win_and_none_never_does(tmp_path):
    pieces = [
        {"step": 0, "loss": 1.0, "tokens": 5.0},
        {"step": 0, "loss": NAN, "tokens": None},
        {"step": 0, "epoch": 2},
    ]
    for seal_steps in (1, 100):
        run = Run(write_run(tmp_path / str(seal_steps), [pieces], seal_steps=seal_steps))
        loss_TN, measured_TN = run.pivot("loss")
        assert np.isnan(loss_TN).all()
        assert measured_TN.all()
        assert run.pivot("tokens")[0].tolist() == [[5.0]]
        assert run.pivot("epoch")[0].tolist() == [[2.0]]


@pytest.mark.parametrize("close", [True, False])
def test_the_order_of_writing_counts_and_not_the_set_of_columns(tmp_path, close):
    values = [{"loss": 1.0}, {"loss": 2.0, "tokens": 1.0}, {"loss": 3.0}, {"tokens": 4.0, "loss": 5.0}, {"loss": 6.0}]
    run = Run(write_run(tmp_path / "run", [[{"step": 0} | value for value in values]], close=close))
    assert run.query("select loss, tokens from workers") == [(6.0, 4.0)]


@pytest.mark.parametrize("close", [True, False])
def test_nan_inf_and_not_measured_are_three_things(tmp_path, close):
    rows = [
        {"step": 0, "loss": NAN},
        {"step": 1, "loss": math.inf},
        {"step": 2, "loss": None},
        {"step": 3, "loss": 0.0},
    ]
    run = Run(write_run(tmp_path / "run", [rows], close=close))
    loss_TN, measured_TN = run.pivot("loss")
    assert measured_TN[:, 0].tolist() == [True, True, False, True]
    assert np.array_equal(loss_TN[:, 0], [NAN, math.inf, NAN, 0.0], equal_nan=True)
    assert [row["loss"] is None for row in run.table().to_pylist()] == [False, False, True, False]


@pytest.mark.parametrize("last", [3, 2])
def test_the_last_step_of_each_rank_and_arrays_without_it(tmp_path, last):
    rows = [
        [{"step": step, "loss": step + 10.0 * rank} for step in range(4 if rank == 0 else last + 1)] for rank in (0, 1)
    ]
    run = Run(write_run(tmp_path / "run", rows))
    assert run.last_steps == {0: 3, 1: last}
    assert run.before(2).last_steps == {0: 1, 1: 1}
    losses, measured = run.pivot("loss")
    assert measured.tolist() == [[True, step <= last] for step in range(4)]
    assert losses[measured].tolist() == [
        step + 10.0 * rank for step in range(4) for rank in (0, 1) if rank == 0 or step <= last
    ]


def test_digests_keep_all_64_bits(tmp_path, pieces):
    run = Run(write_run(tmp_path / "run", pieces))
    digest_TN, measured_TN = run.digests("rng_torch")
    assert digest_TN.dtype == np.uint64
    assert digest_TN.tolist() == [[2**64 - 1 - t, 2**64 - 2 - t] for t in range(4)]
    assert measured_TN.all()
    assert run.digests("rng_python")[1].any() is np.False_


def test_stack_has_shape_steps_ranks_values(tmp_path):
    rows = [
        [{"step": t, "param_digests": [2**64 - 1 - n, t], "lr": [t, NAN, n]} for t in range(3) if t + n] for n in (0, 1)
    ]
    run = Run(write_run(tmp_path / "run", rows))
    lr_TNK, measured_TN = run.stack("lr")
    assert lr_TNK.shape == (3, 2, 3)
    assert measured_TN.tolist() == [[False, True], [True, True], [True, True]]
    assert np.array_equal(lr_TNK[2], [[2, NAN, 0], [2, NAN, 1]], equal_nan=True)
    assert np.isnan(lr_TNK[0, 0]).all()
    digest_TNK, _ = run.stack("param_digests")
    assert digest_TNK.dtype == np.uint64
    assert digest_TNK[2].tolist() == [[2**64 - 1, 2], [2**64 - 2, 2]]
    assert run.stack("sketch")[0].shape == (3, 2, 0)


@pytest.mark.parametrize("seal_steps", [1, 3, 100])
def test_stack_and_lists_of_some_steps_are_those_of_all(tmp_path, seal_steps):
    rows = [[{"step": t, "sketch": [t, n]} for t in range(9) if t % 2 == 0] for n in (0, 1)]
    path = write_run(tmp_path / "run", rows, close=False, seal_steps=seal_steps)
    all_TNK, measured_TN = Run(path).stack("sketch")
    some_TNK, some_measured_TN = Run(path).stack("sketch", steps=[8, 3, 2])
    assert some_TNK.shape == (3, 2, 2)
    assert np.array_equal(some_TNK, np.stack([all_TNK[4], np.full((2, 2), NAN), all_TNK[1]]), equal_nan=True)
    assert some_measured_TN.tolist() == [[True, True], [False, False], [True, True]]
    some = Run(path).lists("sketch", steps=[2, 3])
    assert {key: value.tolist() for key, value in some.items()} == {(2, 0): [2, 0], (2, 1): [2, 1]}
    assert measured_TN.all()


def test_where_a_column_was_measured_is_known_without_its_values(tmp_path):
    rows = [[{"step": t, "sketch": [t] if t % 3 == n else None} for t in range(7)] for n in (0, 1)]
    run = Run(write_run(tmp_path / "run", rows, close=False, seal_steps=2))
    assert run.measured("sketch").tolist() == [[t % 3 == 0, t % 3 == 1] for t in range(7)]
    assert np.array_equal(run.measured("sketch"), run.stack("sketch")[1])
    assert not run.measured("loss").any()


def test_lists_keep_their_own_lengths(tmp_path):
    rows = [[{"step": t, "sample_digests": list(range(t)), "sketch": [0.5] * n} for t in range(3)] for n in (0, 1)]
    run = Run(write_run(tmp_path / "run", rows))
    lists = run.lists("sample_digests")
    assert {key: value.tolist() for key, value in lists.items()} == {
        (t, n): list(range(t)) for t in range(3) for n in (0, 1)
    }
    assert lists[2, 0].dtype == np.uint64
    assert run.lists("sketch")[0, 1].dtype == np.float32
    assert run.lists("lr") == {}
    with pytest.raises(RunError, match="lists of 0 to 2 values, and a stack needs equal lengths"):
        run.stack("sample_digests")


def test_a_wrong_column_is_one_sentence(tmp_path, pieces):
    run = Run(write_run(tmp_path / "run", pieces))
    for ask, words in (
        (lambda: run.pivot("los"), "'los' is not a column of a Run. Did you mean 'loss'"),
        (lambda: run.stack("lrs"), "'lrs' is not a column of a Run. Did you mean 'lr'"),
        (lambda: run.pivot("lr"), "holds list<.*not numbers"),
        (lambda: run.pivot("rng_torch"), "holds uint64, not numbers"),
        (lambda: run.digests("loss"), "holds double, not digests"),
        (lambda: run.lists("loss"), "Column 'loss' holds no lists"),
        (lambda: run.stack("loss", steps=[1]), "Column 'loss' holds no lists"),
        (lambda: run.query("select nothing"), "The query on Run .* failed: Binder Error"),
        (lambda: run.query(" "), "is empty"),
    ):
        with pytest.raises(RunError, match=words) as raised:
            ask()
        assert "\n" not in str(raised.value)


def test_a_query_sees_every_column_and_no_python_variable(tmp_path, pieces):
    run = Run(write_run(tmp_path / "run", pieces))
    names, rows = run.query_named(
        "select rank, max(loss) as worst, lr from workers where step = 3 group by all order by 1"
    )
    assert names == ["rank", "worst", "lr"]
    assert rows == [(0, 3.0, [0.5, 0.25]), (1, 3.5, None)]
    with pytest.raises(RunError, match="Table with name connection does not exist"):
        run.query("select * from connection")


def test_a_run_without_rows_is_legal(tmp_path):
    run = Run(write_run(tmp_path / "run", [[], []], close=False))
    assert run.steps.tolist() == []
    assert run.ranks == [0, 1]
    assert run.table().num_rows == 0
    assert run.pivot("loss")[0].shape == (0, 2)
    assert run.digests("rng_torch")[0].shape == (0, 2)
    assert run.stack("lr")[0].shape == (0, 2, 0)
    assert run.lists("lr") == {}
    assert run.query("select count(*) from workers") == [(0,)]
    assert run.problems == []


def test_env_and_findings_come_back(tmp_path):
    findings = [
        Finding("worker-nonfinite", "error", "Rank 1 has NaN.", ranks=(1,), step_first=3, measured=NAN, next=("stop",)),
        Finding("rng-streams", "info", "Dieselbe Saat für α."),
    ]
    run = Run(write_run(tmp_path / "run", [[{"step": 0}], []], findings=findings))
    assert run.live_findings[1] == findings[1]
    assert run.live_findings[0].ranks == (1,)
    assert math.isnan(run.live_findings[0].measured)
    assert run.env == {0: RankEnv(rank=0, world_size=2), 1: RankEnv(rank=1, world_size=2)}
    assert run.world_size == 2
    assert run.manifest.data_parallel_ranks == [0, 1]


def test_a_rank_that_left_nothing_is_named(tmp_path):
    path = write_run(tmp_path / "run", [[{"step": 0}]] * 3)
    for file in [*path.glob("*/*rank-00001*"), *path.glob("workers/part-r00001*"), path / "env" / "rank-00002.json"]:
        file.unlink()
    run = Run(path)
    assert run.ranks == [0, 2]
    assert run.problems == [
        "rank 1: it wrote nothing in this Run of 3 ranks",
        "rank 2: it wrote rows but no environment file",
    ]


def test_damaged_env_and_findings_are_named_and_the_rest_is_read(tmp_path):
    findings = [Finding("rng-streams", "info", "A."), Finding("rng-streams", "info", "B.")]
    path = write_run(tmp_path / "run", [[{"step": 0}], []], findings=findings)
    (path / "env" / "rank-00001.json").write_text('{"rank": 1, "wor')
    text = (path / "findings.jsonl").read_text()
    (path / "findings.jsonl").write_text(
        text + '{"code": "x", "sev\n{"code": "x", "severity": "dire", "claim": ""}\n3\n'
    )
    run = Run(path)
    assert list(run.env) == [0]
    assert run.live_findings == findings
    assert run.problems[0].startswith("env/rank-00001.json: it is damaged")
    told = [problem.split(" (")[0] for problem in run.problems[1:4]]
    assert told == [f"findings.jsonl: line {n} is damaged" for n in (3, 4, 5)]


def test_a_damaged_part_is_named_and_the_rest_is_read(tmp_path):
    """Every byte counts: data pages, page headers, footer."""
    rows = [{"step": step, "loss": float(step), "lr": [0.5]} for step in range(6)]
    path = write_run(tmp_path / "run", [rows], seal_steps=2)
    part = only_file(path / "workers", "part-r00000-000001-*")
    data = part.read_bytes()
    for position in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        part.write_bytes(damaged)
        run = Run(path)
        assert run.steps.tolist() == [0, 1, 4, 5]
        assert len(run.problems) == 1
        assert run.problems[0].startswith(f"workers/{part.name}: ")
    for length in range(0, len(data), 31):
        part.write_bytes(data[:length])
        run = Run(path)
        assert run.steps.tolist() == [0, 1, 4, 5]
        assert len(run.problems) == 1


def test_a_flip_that_fools_the_name_is_caught_by_the_page_checksum(tmp_path):
    import zlib

    path = write_run(tmp_path / "run", [[{"step": step, "loss": step / 7} for step in range(50)]])
    part = only_file(path / "workers", "part-*")
    damaged = bytearray(part.read_bytes())
    damaged[len(damaged) // 4] ^= 1
    part.unlink()
    (part.parent / f"part-r00000-000000-{zlib.crc32(damaged):08x}.parquet").write_bytes(damaged)
    run = Run(path)
    assert "not readable as Parquet" in run.problems[0]
    assert run.steps.tolist() == []


def test_a_journal_stands_in_for_its_damaged_part(tmp_path):
    """Killed between sealing and emptying the journal, both hold the rows."""
    path = write_run(tmp_path / "run", [[{"step": 0, "loss": 1.0}]], close=False)
    journal = only_file(path / "journal", "*.tlj")
    kept = journal.read_bytes()
    shutil.rmtree(path)
    write_run(path, [[{"step": 0, "loss": 1.0}]])
    journal.write_bytes(kept)
    assert Run(path).pivot("loss")[0].tolist() == [[1.0]]
    assert Run(path).problems == []
    part = only_file(path / "workers", "part-*")
    part.write_bytes(part.read_bytes()[:-1])
    run = Run(path)
    assert run.pivot("loss")[0].tolist() == [[1.0]]
    assert len(run.problems) == 1


def test_a_part_is_younger_than_the_journal_it_was_made_of(tmp_path):
    """A reader that has the journal just before it is sealed finds a part that may know more."""
    writer = RunWriter(tmp_path, rank=0)
    writer.write({"step": 0, "loss": 1.0})
    journal = only_file(tmp_path / "journal", "*.tlj")
    seen = journal.read_bytes()
    writer.write({"step": 0, "loss": 2.0})
    writer.close()
    journal.write_bytes(seen)
    assert Run(tmp_path).pivot("loss")[0].tolist() == [[2.0]]


def test_missing_parts_and_strange_files_are_named(tmp_path):
    path = write_run(tmp_path / "run", [[{"step": step} for step in range(6)]], seal_steps=1, close=False)
    for sequence in (1, 3, 5):
        only_file(path / "workers", f"part-r00000-{sequence:06d}-*").unlink()
    (path / "workers" / "part-9.parquet").write_bytes(b"")
    (path / "workers" / ".part-r00000-000009-00000000.parquet.tmp").write_bytes(b"half")
    run = Run(path)
    assert run.steps.tolist() == [0, 2, 4]
    assert run.problems == [
        "workers/part-9.parquet: it is not named like a part of a Run and was skipped",
        "workers: part 1, 3, 5 of rank 0 is missing, and the rows in it with it",
    ]


def test_files_that_cannot_be_read_are_named(tmp_path):
    path = write_run(tmp_path / "run", [[{"step": 0}]], close=False)
    for name in ("journal/rank-00001.tlj", "findings.jsonl", "env/rank-00001.json"):
        (path / name).mkdir()
    run = Run(path)
    assert run.steps.tolist() == [0]
    assert [problem.split(": ")[0] for problem in run.problems] == [
        "journal/rank-00001.tlj",
        "env/rank-00001.json",
        "findings.jsonl",
    ]
    (path / "manifest.json").unlink()
    (path / "manifest.json").mkdir()
    with pytest.raises(RunError, match=r"The manifest.json of .* cannot be read"):
        Run(path)


@pytest.mark.parametrize("before_reading", [True, False])
def test_a_journal_may_be_sealed_while_it_is_read(tmp_path, monkeypatch, before_reading):
    """Closed between listing journals and reading one, or between reading it and listing parts."""
    writer = RunWriter(tmp_path, rank=0)
    writer.write({"step": 0, "loss": 1.0})
    cat_file = LocalFileSystem.cat_file

    def meanwhile(self, path, *args, **kwargs):
        if not path.endswith(".tlj"):
            return cat_file(self, path, *args, **kwargs)
        if before_reading:
            writer.close()
        data = cat_file(self, path, *args, **kwargs)
        writer.write({"step": 1, "loss": 2.0})
        writer.close()
        return data

    monkeypatch.setattr(LocalFileSystem, "cat_file", meanwhile)
    run = Run(tmp_path)
    assert run.pivot("loss")[0].tolist() == ([[1.0]] if before_reading else [[1.0], [2.0]])
    assert [text for text in run.problems if not text.startswith("rank 0")] == []


def test_steps_that_are_not_asked_for_are_not_read(tmp_path):
    path = write_run(tmp_path / "run", [[{"step": step, "lr": [step]} for step in range(4)]], seal_steps=2)
    run = Run(path)
    only_file(path / "workers", "part-r00000-000000-*").unlink()
    assert run.stack("lr", steps=[3])[0].tolist() == [[[3.0]]]
    with pytest.raises(RunError, match="has changed since"):
        run.stack("lr", steps=[1])


def test_a_stretch_of_steps_is_the_rows_of_these_steps(tmp_path):
    """Also of a step in two pieces, of a rank without a row there, and of a stretch of a stretch."""
    rows = [
        [row for step in range(9) for row in ({"step": step, "loss": step + 0.5 * rank}, {"step": step, "lr": [step]})]
        for rank in range(2)
    ]
    run = Run(write_run(tmp_path / "run", [rows[0], rows[1][:8]], seal_steps=7))
    part = run.between(2, 7).between(0, 6)
    assert part.steps.tolist() == [2, 3, 4, 5]
    assert part.ranks == [0, 1]
    assert part.last_steps == {0: 5, 1: 3}
    assert np.array_equal(part.pivot("loss")[0], [[2, 2.5], [3, 3.5], [4, NAN], [5, NAN]], equal_nan=True)
    assert part.lists("lr").keys() == {(step, rank) for step in range(2, 6) for rank in (0, 1) if step < 4 or not rank}
    assert run.between(4, 9).last_steps == {0: 8}


def test_a_part_that_changes_after_opening_is_an_error(tmp_path):
    path = write_run(tmp_path / "run", [[{"step": 0, "lr": [0.5]}]])
    run = Run(path)
    only_file(path / "workers", "part-*").unlink()
    with pytest.raises(RunError, match="has changed since the Run was opened"):
        run.stack("lr")


def test_a_byte_that_changes_after_opening_is_an_error_or_makes_no_difference(tmp_path):
    path = write_run(tmp_path / "run", [[{"step": step, "lr": [step / 3]} for step in range(40)]])
    run, part = Run(path), only_file(path / "workers", "part-*")
    data, whole = part.read_bytes(), run.before(100).stack("lr")[0]
    refused = 0
    for place in range(4, len(data) - 8, 3):
        part.write_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
        try:
            assert np.array_equal(run.before(100).stack("lr")[0], whole), place
        except RunError:
            refused += 1
    assert refused > 100


def damage(path, text):
    (path / "manifest.json").write_text(text)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (shutil.rmtree, "There is no Run at '.*': nothing is there"),
        (lambda path: (shutil.rmtree(path), path.write_text("x")), "is a file, and a Run is a directory"),
        (lambda path: (shutil.rmtree(path), path.mkdir()), "is an empty directory, not a Run"),
        (lambda path: (path / "manifest.json").unlink(), "is not a Run: it has no manifest.json"),
        (lambda path: damage(path, ""), "manifest.json of '.*' is damaged"),
        (lambda path: damage(path, (path / "manifest.json").read_text()[:30]), "manifest.json of '.*' is damaged"),
        (lambda path: (path / "manifest.json").write_bytes(b"\xff\xfe{}"), "manifest.json of '.*' is damaged"),
        (lambda path: damage(path, "[1]"), "it holds a list, expected an object"),
        (lambda path: damage(path, '{"name": "an app"}'), "its manifest.json has no 'schema_version'"),
        (lambda path: damage(path, '{"schema_version": 2}'), "has schema version 2, and this Trueline reads up to 1"),
        (lambda path: damage(path, '{"schema_version": 0}'), "has schema version 0; versions start at 1"),
        (lambda path: damage(path, '{"schema_version": 1, "world_size": "many"}'), "has 'many' as 'world_size'"),
    ],
)
def test_what_is_no_run_is_one_sentence(tmp_path, spoil, words):
    path = write_run(tmp_path / "run", [[{"step": 0}]])
    spoil(path)
    with pytest.raises(RunError, match=words) as raised:
        Run(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_folder_of_runs_lists_them(tmp_path):
    write_run(tmp_path / "s1-1", [[]])
    write_run(tmp_path / "s1-2", [[]])
    with pytest.raises(RunError, match="is not a Run but holds 2: s1-1, s1-2"):
        Run(tmp_path)


def test_a_run_is_read_through_fsspec(tmp_path, pieces):
    path = write_run(tmp_path / "run", pieces, seal_steps=2, close=False)
    memory = fsspec.filesystem("memory")
    memory.put(str(path), "/run", recursive=True)
    try:
        run = Run("memory://run")
        assert run.problems == []
        assert run.table().equals(Run(path).table())
        with pytest.raises(RunError, match="nothing is there"):
            Run("memory://other")
    finally:
        memory.rm("/run", recursive=True)


def test_a_run_is_read_from_an_archive(tmp_path, pieces):
    path = write_run(tmp_path / "run", pieces, seal_steps=2)
    archive = shutil.make_archive(str(tmp_path / "run"), "zip", path)
    assert Run(f"zip://::{archive}").table().equals(Run(path).table())


@pytest.mark.parametrize("url", ["nowhere://run", "zip://::/no/such.zip"])
def test_a_file_system_that_cannot_be_opened_is_one_sentence(url):
    with pytest.raises(RunError, match="cannot be opened") as raised:
        Run(url)
    assert "\n" not in str(raised.value)


def test_a_file_system_that_does_not_answer_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*_: object) -> bool:
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "exists", refuse)
    with pytest.raises(RunError, match="cannot be reached"):
        Run("memory://run")


def test_unknown_fields_of_a_manifest_are_named(tmp_path):
    path = write_run(tmp_path / "run", [[{"step": 0}]])
    document = decode((path / "manifest.json").read_bytes())[0] | {"later": 1}
    damage(path, json.dumps(document))
    run = Run(path)
    assert run.world_size == 1
    assert "'later'" in run.problems[0]


def test_a_column_that_no_part_has_opens_none(tmp_path, monkeypatch):
    run = Run(write_run(tmp_path / "run", [[{"step": 0, "loss": 1.0, "lr": [0.5]}]]))
    opened = []
    again = PartFiles.again
    monkeypatch.setattr(
        PartFiles, "again", lambda files, part, names, **of: opened.append(names) or again(files, part, names, **of)
    )
    assert run.lists("clip_values") == {} == run.texts("clip_facts")
    assert not run.measured("grad_norm").any()
    assert run.column("update_facts").null_count == 1
    assert opened == []
    assert run.lists("lr")[0, 0].tolist() == [0.5]
    assert opened == [["lr"]]


def test_numbers_are_read_together(tmp_path, monkeypatch):
    run = Run(write_run(tmp_path / "run", [[{"step": 0, "loss": 1.0, "grad_norm": 2.0, "tokens": 3.0}]]))
    opened = []
    again = PartFiles.again
    monkeypatch.setattr(
        PartFiles, "again", lambda files, part, names, **of: opened.append(names) or again(files, part, names, **of)
    )
    assert [run.pivot(name)[0].item() for name in ("loss", "grad_norm", "tokens")] == [1.0, 2.0, 3.0]
    assert len(opened) == 1


def test_a_part_that_was_read_is_not_read_again(tmp_path, monkeypatch):
    path = write_run(tmp_path / "run", [[{"step": step, "loss": step / 3} for step in range(20)]], seal_steps=10)
    earlier = Run(path)
    decoded = []
    decode = PartFiles._decoded
    monkeypatch.setattr(
        PartFiles, "_decoded", lambda files, part, names: decoded.append(part) or decode(files, part, names)
    )
    write_part(path, 1, [{"step": step, "loss": 7.0} for step in range(20)])
    run = Run(path, parts=earlier.parts)
    assert [part.rank for part in decoded] == [1]
    assert run.table().equals(Run(path).table())
    assert earlier.ranks == [0]


def test_damage_since_a_part_was_read_is_met_where_its_values_are_read(tmp_path):
    path = write_run(tmp_path / "run", [[{"step": step, "loss": step / 3} for step in range(20)]])
    earlier = Run(path)
    part = only_file(path / "workers", "part-*")
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(RunError, match="has changed since the Run was opened"):
        Run(path, parts=earlier.parts).pivot("loss")
    assert "was sealed; the part was skipped" in Run(path).problems[0]
