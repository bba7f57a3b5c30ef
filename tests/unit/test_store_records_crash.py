"""Real processes that are killed, or whose disk fills up, while they record: what is left is whole and nothing else
looks as if it were.
"""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.unit.recorded_steps import make_step, read_rows, rows_of, tensor_record

from trueline.schema.records import StackRecord
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

RECORD = textwrap.dedent("""
    import os, signal, sys
    import numpy as np
    from trueline.schema.records import StackRecord
    from trueline.store.writer import RunWriter
    from tests.unit.recorded_steps import make_step, tensor_record

    def pieces(elements):
        step = 0
        while True:
            yield step, StackRecord(step % 3, (f"f{step % 3}",))
            for row in (1, 4):
                yield step, tensor_record(step, f"t{row}", np.full(elements, step + row / 16))
            yield step, make_step(step)
            step += 1
""")

RECORD_FOREVER = RECORD + textwrap.dedent("""
    writer = RunWriter(sys.argv[1], rank=0, seal_steps=int(sys.argv[2]), queue_bytes=1 << 20)
    writer.write({"step": 0})
    for step, piece in pieces(int(sys.argv[3])):
        writer.write(piece)
        if hasattr(piece, "columns"):
            writer._records.drain()
            os.write(1, b"%d\\n" % step)
""")

DIE_AT_EACH_CALL = RECORD + textwrap.dedent("""
    CALLS = ("open", "write", "pwrite", "fsync", "replace", "close", "remove")
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
                if left[0] == 0 and when == "within":
                    call(args[0], args[1][: len(args[1]) // 2], *args[2:])
                    die()
                done = call(*args, **kwargs)
                if left[0] == 0:
                    die()
                return done
            return run
        for name in ("write", "pwrite") if when == "within" else CALLS:
            setattr(os, name, armed(getattr(os, name), name))

    def train(path, fatal, when):
        tell = os.write
        log = os.open(path + ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        writer = RunWriter(path, rank=0, seal_steps=2)
        arm(fatal, when)
        for step, piece in pieces(9):
            if step == STEPS:
                break
            writer.write(piece)
            if hasattr(piece, "columns"):
                writer._records.drain()
                tell(log, b"%d\\n" % step)
        writer.close()

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
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, bufsize=0, cwd=os.getcwd(), **kwargs
    )


def damage(run):
    return [text for text in run.problems if "incomplete frame" not in text and not text.startswith("rank 0: it left")]


def assert_nothing_lost(path, *, num_steps, elements):
    """The first ``num_steps`` steps and at most the one in flight are there, with every value and stack."""
    run = Run(path)
    steps = run.record_steps.tolist()
    assert steps in (list(range(num_steps)), list(range(num_steps + 1)))
    rows = read_rows(run.records())
    assert rows == [row for step in steps for row in rows_of(make_step(step), 0, resolve=True)]
    for row in rows:
        if row["tensor"] in ("t1", "t4"):
            number = int(row["tensor"][1:])
            value = run.tensor(row)
            assert value.shape == (elements,)
            assert (value.data == np.float32(row["step"] + number / 16)).all()
    for number in {step % 3 for step in steps}:
        assert run.stack_frames(0, number) == (f"f{number}",)
    assert damage(run) == []
    named = run.tensor_problems()
    for file in path.glob("tensors/*/*"):
        if not any(file.name in text for text in named):
            assert len(load_file(file)) == 2
    assert len(named) <= 1


@pytest.mark.parametrize(("seal_steps", "elements"), [(1, 100), (3, 100), (100, 200_000)])
def test_sigkill_at_any_moment_loses_at_most_the_step_in_flight(tmp_path, seal_steps, elements):
    moments = random.Random(seal_steps)
    for attempt in range(3):
        path = tmp_path / str(attempt)
        writer = start(RECORD_FOREVER, path, seal_steps, elements)
        for _ in range(moments.randrange(1, 12)):
            writer.stdout.readline()
        for _ in range(moments.randrange(100_000)):
            pass
        writer.send_signal(signal.SIGKILL)
        told, _ = writer.communicate(timeout=200)
        assert writer.returncode == -signal.SIGKILL
        last = max((int(line) for line in told.split()), default=None)
        if last is not None:
            assert_nothing_lost(path, num_steps=last + 1, elements=elements)


def test_sigkill_at_each_system_call_loses_at_most_the_step_in_flight(tmp_path):
    """Before, after, and for writes half through, every call of both threads, sealing and closing included."""
    done = start(DIE_AT_EACH_CALL, tmp_path)
    done.communicate(timeout=230)
    assert done.returncode == 0
    deaths = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    assert len(deaths) > 60
    for path in deaths:
        told = path.with_name(f"{path.name}.log").read_text().split()
        assert_nothing_lost(path, num_steps=len(told), elements=9)


def test_a_reader_never_fails_while_steps_are_recorded_and_sealed(tmp_path):
    writer = start(RECORD_FOREVER, tmp_path / "run", 2, 9)
    writer.stdout.readline()
    seen = set()
    while len(seen) < 5:
        run = Run(tmp_path / "run")
        steps = run.record_steps.tolist()
        assert steps == list(range(len(steps)))
        assert read_rows(run.records(steps=steps[-3:])) == [
            row for step in steps[-3:] for row in rows_of(make_step(step), 0, resolve=True)
        ]
        assert damage(run) == []
        seen.add(len(steps))
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=200)


def test_a_forked_child_leaves_its_parents_records_alone(tmp_path):
    code = RECORD + textwrap.dedent("""
        writer = RunWriter(sys.argv[1], rank=0)
        writer.write(make_step(0))
        child = os.fork()
        if child == 0:
            writer.write(make_step(9))
            writer.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        writer.write(make_step(1))
        writer.close()
    """)
    done = start(code, tmp_path)
    done.communicate(timeout=200)
    assert done.returncode == 0
    assert Run(tmp_path).record_steps.tolist() == [0, 1]


def test_closing_from_a_signal_handler_keeps_every_step(tmp_path):
    code = RECORD + textwrap.dedent("""
        writer = RunWriter(sys.argv[1], rank=0, seal_steps=4, queue_bytes=20_000)
        def leave(*_):
            writer.close()
            os._exit(0)
        signal.signal(signal.SIGTERM, leave)
        for step, piece in pieces(9):
            writer.write(piece)
            if hasattr(piece, "columns"):
                os.write(1, b"%d\\n" % step)
    """)
    for attempt in range(4):
        path = tmp_path / str(attempt)
        writer = start(code, path)
        for _ in range(10 + attempt):
            writer.stdout.readline()
        writer.send_signal(signal.SIGTERM)
        told, _ = writer.communicate(timeout=200)
        assert writer.returncode == 0
        num_steps = int(told.split()[-1]) + 1 if told else 10 + attempt
        assert Run(path).record_steps.tolist() in (list(range(num_steps)), list(range(num_steps + 1)))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "none", path], check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def test_a_disk_that_is_too_small_for_values_loses_only_values_and_says_so(small_disk):
    writer = RunWriter(small_disk / "run", rank=0, seal_steps=3)
    for step in range(6):
        writer.write({"step": step, "loss": 0.5})
        for row in (1, 4):
            writer.write(tensor_record(step, f"t{row}", np.full(100_000 if step >= 2 else 10, row)))
        writer.write(make_step(step))
        writer._records.drain()
    writer.close()
    run = Run(small_disk / "run")
    assert run.steps.tolist() == list(range(6))
    assert read_rows(run.records()) == [row for step in range(6) for row in rows_of(make_step(step), 0, resolve=True)]
    (finding,) = run.live_findings
    assert finding.code == "watch-degraded"
    assert finding.step_first == 2
    assert "Tensors could not be stored from step 2 on rank 0: [Errno 28] No space left on device" in finding.claim
    assert sorted(file.name for file in small_disk.glob("run/tensors/*/*")) == [
        "step-00000000.safetensors",
        "step-00000001.safetensors",
    ]
    assert damage(run) == []


def steps_until_refused(writer):
    """The steps that were written; the one after them failed, and the write after that said so."""
    for step in range(10_000):
        try:
            writer.write(make_step(step, num_rows=400))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return list(range(step - 1))
        writer._records.drain()
    raise AssertionError("the disk took everything")


def test_a_full_disk_is_an_os_error_of_a_later_write_and_keeps_what_it_took(small_disk):
    writer = RunWriter(small_disk / "run", rank=0, seal_steps=1000)
    taken = steps_until_refused(writer)
    with pytest.raises(OSError, match="No space left"):
        writer.close()
    run = Run(small_disk / "run")
    assert run.record_steps.tolist() == taken
    assert read_rows(run.records(steps=[taken[-1]])) == rows_of(make_step(taken[-1], num_rows=400), 0, resolve=True)
    assert damage(run) == []
    assert not writer._records._background._thread.is_alive()


CALLS = ("open", "write", "pwrite", "fsync", "replace", "remove")


def refusing(call, left):
    def refuse_once(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(*args, **kwargs)

    return refuse_once


def test_a_disk_that_refuses_once_costs_one_step_or_the_values_and_says_so(tmp_path, monkeypatch):
    """At every call of the thread that writes; when the disk takes data again, so does the writer."""
    for fatal in range(1, 200):
        path = tmp_path / str(fatal)
        writer = RunWriter(path, rank=0, seal_steps=2)
        left = [fatal]
        raised = 0

        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, refusing(getattr(os, name), left))
            for step in range(5):
                for record in (StackRecord(step, ("f",)), tensor_record(step, "t1", [step]), make_step(step)):
                    try:
                        writer.write(record)
                        writer._records.drain()
                    except OSError:
                        raised += 1
        reached = left[0] <= 0
        try:
            writer.close()
        except OSError:
            raised += 1
        run = Run(path)
        lost = set(range(5)) - set(run.record_steps.tolist())
        assert len(lost) <= 1
        assert damage(run) == []
        assert [text for text in run.tensor_problems() if "partial" not in text] == []
        degraded = [finding for finding in run.live_findings if finding.code == "watch-degraded"]
        assert bool(raised or degraded) == reached
        if not reached:
            assert fatal > 30
            break
