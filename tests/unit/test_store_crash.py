"""Real processes that are killed while they write: what was written before is there, once."""

import functools
import itertools
import random
import signal
import subprocess
import sys
import textwrap

import pytest

from trueline.store.reader import Run

WRITE = textwrap.dedent("""
    import os, sys
    from trueline.schema.run_manifest import Manifest, RankEnv
    from trueline.store.writer import RunWriter

    def pieces():
        step = 0
        while True:
            yield {"step": step, "loss": step * 0.5, "lr": [step, 0.25], "param_grad_norms": [step] * 300}
            yield {"step": step, "cosine_mean": -step * 0.5}
            step += 1
""")

WRITE_FOREVER = WRITE + textwrap.dedent("""
    writer = RunWriter(sys.argv[1], rank=0, seal_steps=int(sys.argv[2]))
    os.write(1, b"-1\\n")
    for index, piece in enumerate(pieces()):
        writer.write(piece)
        os.write(1, b"%d\\n" % index)
""")

DIE_AT_EACH_CALL = WRITE + textwrap.dedent("""
    import signal

    CALLS = ("open", "write", "fsync", "replace", "close", "remove")
    STEPS = 3

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def arm(fatal, when):
        left = [fatal]
        def armed(call, name):
            def run(*args, **kwargs):
                left[0] -= 1
                if left[0] == 0 and when == "before":
                    die()
                if left[0] == 0 and when == "within" and name == "write":
                    call(args[0], args[1][: len(args[1]) // 2])
                    die()
                done = call(*args, **kwargs)
                if left[0] == 0:
                    die()
                return done
            return run
        for name in CALLS:
            setattr(os, name, armed(getattr(os, name), name))

    def train(path, fatal, when):
        tell = os.write
        log = os.open(path + ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        writer = RunWriter(path, rank=0, seal_steps=2)
        arm(fatal, when)
        writer.describe(Manifest(), RankEnv())
        for index, piece in zip(range(2 * STEPS), pieces()):
            writer.write(piece)
            tell(log, b"%d\\n" % index)
        writer.close()

    train(f"{sys.argv[1]}/warm", 0, "never")
    for when in ("before", "within", "after"):
        for fatal in range(1, 1000):
            child = os.fork()
            if child == 0:
                train(f"{sys.argv[1]}/{when}-{fatal}", fatal, when)
                os._exit(0)
            if os.waitpid(child, 0)[1] == 0:
                break
""")


def start(code, *args, **kwargs):
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, bufsize=0, **kwargs)


def damage(run):
    """Problems of the Run but for the frame in flight, and for the environment that these ranks do not describe."""
    return [text for text in run.problems if "incomplete frame" not in text and not text.startswith("rank 0: it left")]


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
    moments = random.Random(seal_steps)
    for attempt in range(4):
        path = tmp_path / str(attempt)
        writer = start(WRITE_FOREVER, path, seal_steps)
        for _ in range(moments.randrange(1, 250)):
            writer.stdout.readline()
        for _ in range(moments.randrange(10_000)):
            pass
        writer.send_signal(signal.SIGKILL)
        told, _ = writer.communicate(timeout=200)
        assert writer.returncode == -signal.SIGKILL
        last = told.split()[-1:] or [b"-1"]
        if int(last[0]) >= 0:
            assert_nothing_lost(path, num_written=int(last[0]) + 1)


def test_sigkill_at_each_system_call_loses_at_most_the_frame_in_flight(tmp_path):
    """Before, after, and for writes half through, every call that the writer makes, sealing and closing included."""
    done = start(DIE_AT_EACH_CALL, tmp_path)
    done.communicate(timeout=200)
    assert done.returncode == 0
    num_deaths = 0
    for when in ("before", "within", "after"):
        for fatal in itertools.count(1):
            path = tmp_path / f"{when}-{fatal}"
            told = (tmp_path / f"{path.name}.log").read_text().split()
            assert_nothing_lost(path, num_written=len(told))
            if not (tmp_path / f"{when}-{fatal + 1}").exists():
                break
            num_deaths += 1
    assert num_deaths > 60


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
    for _ in range(40):
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
    assert_nothing_lost(tmp_path / "run", num_written=40 * 12)


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
    code = WRITE + textwrap.dedent("""
        import signal
        writer = RunWriter(sys.argv[1], rank=0, seal_steps=4)
        def leave(*_):
            writer.close()
            os._exit(0)
        signal.signal(signal.SIGTERM, leave)
        for index, piece in enumerate(pieces()):
            writer.write(piece)
            os.write(1, b"%d\\n" % index)
    """)
    for attempt in range(6):
        writer = start(code, tmp_path / str(attempt))
        for _ in range(20 + 7 * attempt):
            writer.stdout.readline()
        writer.send_signal(signal.SIGTERM)
        told, _ = writer.communicate(timeout=200)
        assert writer.returncode == 0
        num_written = int(told.split()[-1]) + 1 if told else 20 + 7 * attempt
        assert_nothing_lost(tmp_path / str(attempt), num_written=num_written)
