"""Real processes that are killed, or whose disk fills up, while they record: what is left is whole and nothing else
looks as if it were.
"""

import errno
import os
import random
import shutil
import signal
import subprocess
import textwrap

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.unit.recorded_steps import make_step, read_rows, rows_of, tensor_record
from tests.unit.writer_deaths import damage, killed_at_each_call, signalled, start

from trueline.schema.columns.records import StackRecord
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

RECORD = textwrap.dedent("""
    import os, signal, sys
    import numpy as np
    from trueline.schema.columns.records import StackRecord
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

RECORD_ON = RECORD + textwrap.dedent("""
    def make(path):
        return RunWriter(path, rank=0, seal_steps=SEAL_STEPS, queue_bytes=1 << 20)

    def write(writer, tell):
        writer.write({"step": 0})
        for step, piece in pieces(ELEMENTS):
            writer.write(piece)
            if hasattr(piece, "columns"):
                writer._records.drain()
                tell(step)
""")

RECORD_THREE_STEPS = RECORD + textwrap.dedent("""
    def make(path):
        return RunWriter(path, rank=0, seal_steps=2)

    def write(writer, tell):
        for step, piece in pieces(9):
            if step == 3:
                break
            writer.write(piece)
            if hasattr(piece, "columns"):
                writer._records.drain()
                tell(step)
        writer.close()
""")

RECORD_AND_CLOSE = RECORD + textwrap.dedent("""
    def make(path):
        return RunWriter(path, rank=0, seal_steps=4, queue_bytes=20_000)

    def write(writer, tell):
        def leave(*_):
            writer.close()
            os._exit(0)
        signal.signal(signal.SIGTERM, leave)
        for step, piece in pieces(9):
            writer.write(piece)
            if hasattr(piece, "columns"):
                tell(step)
""")


def recording_on(seal_steps, elements):
    return RECORD_ON.replace("SEAL_STEPS", str(seal_steps)).replace("ELEMENTS", str(elements))


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
    draw = random.Random(seal_steps)
    moments = [(draw.randrange(1, 12), draw.randrange(100_000)) for _ in range(3)]
    code = recording_on(seal_steps, elements)
    for path, num_steps in signalled(code, tmp_path, moments, signal.SIGKILL):
        assert_nothing_lost(path, num_steps=num_steps, elements=elements)


@pytest.mark.in_turn
def test_sigkill_at_each_system_call_loses_at_most_the_step_in_flight(tmp_path):
    """Of both threads, sealing and closing included."""
    deaths = killed_at_each_call(RECORD_THREE_STEPS, tmp_path)
    assert len(deaths) > 60
    for path, num_steps in deaths:
        assert_nothing_lost(path, num_steps=num_steps, elements=9)


def test_a_reader_never_fails_while_steps_are_recorded_and_sealed(tmp_path):
    ready = 'write(make(sys.argv[1]), lambda step: os.write(1, b"%d\\n" % step))'
    writer = start(recording_on(2, 9) + ready, tmp_path / "run")
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
    moments = [(10 + attempt, 0) for attempt in range(4)]
    for path, num_steps in signalled(RECORD_AND_CLOSE, tmp_path, moments, signal.SIGTERM):
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
    assert "Tensors could not be stored from step 2 on rank 0: No space left on device" in finding.claim
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


@pytest.mark.in_turn
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
