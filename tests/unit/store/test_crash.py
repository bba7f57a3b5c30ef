"""Real processes that are killed while they write: what was written before is there, once."""

import functools
import random
import signal
import subprocess
import textwrap

import pytest
from tests.unit.writer_deaths import damage, killed_at_each_call, signalled, start

from trueline.store.reader import Run

WRITE = textwrap.dedent("""
    import os, sys
    from trueline.schema.files.run_manifest import Manifest, RankEnv
    from trueline.store.writer import RunWriter

    def pieces():
        step = 0
        while True:
            yield {"step": step, "loss": step * 0.5, "lr": [step, 0.25], "param_grad_norms": [step] * 300}
            yield {"step": step, "cosine_mean": -step * 0.5}
            step += 1
""")

WRITE_ON = WRITE + textwrap.dedent("""
    import signal

    def make(path):
        return RunWriter(path, rank=0, seal_steps=SEAL_STEPS)

    def write(writer, tell):
        def leave(*_):
            writer.close()
            os._exit(0)
        signal.signal(signal.SIGTERM, leave)
        for index, piece in enumerate(pieces()):
            writer.write(piece)
            tell(index)
""")

WRITE_THREE_STEPS = WRITE + textwrap.dedent("""
    def make(path):
        return RunWriter(path, rank=0, seal_steps=2)

    def write(writer, tell):
        writer.describe(Manifest(), RankEnv())
        for index, piece in zip(range(6), pieces()):
            writer.write(piece)
            tell(index)
        writer.close()
""")


def assert_nothing_lost(path, *, num_written):
    """Of the pieces, the first ``num_written`` and at most the one in flight are there, each step once.

    The one in flight is torn, whole, or not there at all.
    """
    run = Run(path)
    rows = {row["step"]: row for row in run.table().to_pylist()}
    assert len(rows) == run.table().num_rows
    num_first = sum(row["loss"] is not None for row in rows.values())
    num_second = sum(row["cosine_mean"] is not None for row in rows.values())
    assert num_first + num_second in (num_written, num_written + 1)
    assert num_first - num_second in (0, 1)
    assert sorted(rows) == list(range(num_first))
    for step, row in rows.items():
        assert row["loss"] == step * 0.5
        assert row["lr"] == [step, 0.25]
        assert row["param_grad_norms"] == [step] * 300
        assert row["cosine_mean"] in (None, -step * 0.5)
    assert damage(run) == []


@pytest.mark.parametrize("seal_steps", [1, 3, 40])
def test_sigkill_at_any_moment_loses_at_most_the_frame_in_flight(tmp_path, seal_steps):
    draw = random.Random(seal_steps)
    moments = [(draw.randrange(1, 250), draw.randrange(10_000)) for _ in range(4)]
    code = WRITE_ON.replace("SEAL_STEPS", str(seal_steps))
    for path, num_written in signalled(code, tmp_path, moments, signal.SIGKILL):
        assert_nothing_lost(path, num_written=num_written)


@pytest.mark.in_turn
def test_sigkill_at_each_system_call_loses_at_most_the_frame_in_flight(tmp_path):
    deaths = killed_at_each_call(WRITE_THREE_STEPS, tmp_path)
    assert len(deaths) > 60
    for path, num_written in deaths:
        assert_nothing_lost(path, num_written=num_written)


@pytest.mark.in_turn
def test_a_reader_never_fails_while_a_writer_writes_and_seals(tmp_path):
    """The writer starts on twelve pieces and two seals at the moment at which the reader starts to open."""
    code = WRITE + textwrap.dedent("""
        writer = RunWriter(sys.argv[1], rank=0, seal_steps=3)
        told = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
        os.write(1, b"ready\\n")
        stream = enumerate(pieces(), start=1)
        while os.read(0, 1):
            for _ in range(12):
                index, piece = next(stream)
                writer.write(piece)
                os.pwrite(told, index.to_bytes(8, "little"), 0)
        writer.close()
    """)
    num_told = functools.partial(lambda path: int.from_bytes(path.read_bytes(), "little"), tmp_path / "told")
    writer = start(code, tmp_path / "run", tmp_path / "told", stdin=subprocess.PIPE)
    assert writer.stdout.readline() == b"ready\n"
    seen = set()
    for _ in range(20):
        writer.stdin.write(b"x")
        num_before = num_told()
        run = Run(tmp_path / "run")
        num_after = num_told() + 1
        rows = run.table().to_pylist()
        num_pieces = sum((row["loss"] is not None) + (row["cosine_mean"] is not None) for row in rows)
        assert num_before <= num_pieces <= num_after
        assert [row["step"] for row in rows] == list(range((num_pieces + 1) // 2))
        assert [row["lr"] for row in rows] == [[step, 0.25] for step in range(len(rows))]
        assert damage(run) == []
        seen.add(len(rows))
    writer.communicate(timeout=200)
    assert writer.returncode == 0
    assert len(seen) > 5
    assert_nothing_lost(tmp_path / "run", num_written=20 * 12)


def test_a_forked_child_leaves_its_parents_run_alone(tmp_path):
    code = WRITE + textwrap.dedent("""
        writer = RunWriter(sys.argv[1], rank=0)
        stream = pieces()
        writer.write(next(stream))
        child = os.fork()
        if child == 0:
            writer.write({"step": 99, "loss": 0.0})
            writer.close()
            os._exit(0)
        os.waitpid(child, 0)
        writer.write(next(stream))
    """)
    done = start(code, tmp_path / "run")
    done.communicate(timeout=200)
    assert done.returncode == 0
    assert_nothing_lost(tmp_path / "run", num_written=2)


def test_closing_from_a_signal_handler_keeps_every_row(tmp_path):
    moments = [(20 + 7 * attempt, 0) for attempt in range(6)]
    for path, num_written in signalled(WRITE_ON.replace("SEAL_STEPS", "4"), tmp_path, moments, signal.SIGTERM):
        assert_nothing_lost(path, num_written=num_written)
