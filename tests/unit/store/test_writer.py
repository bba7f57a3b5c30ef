"""Where a Run may be written, what is refused, and what happens when the disk says no."""

import contextlib
import errno
import math
import os
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest

from trueline.capture.job.safe_sink import SafeSink
from trueline.schema.errors import InputError, RunExistsError
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.finding import Finding
from trueline.schema.roles import Sink
from trueline.store.reader import Run
from trueline.store.writer import RunWriter


def files_in(path):
    """What a reader looks at."""
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file.suffix != ".tmp")


def write_run(path, num_steps=1, **settings):
    writer = RunWriter(path, rank=0, **settings)
    for step in range(num_steps):
        writer.write({"step": step, "loss": step / 2})
    writer.close()
    return path


def test_a_run_writer_is_a_sink(tmp_path):
    assert isinstance(RunWriter(tmp_path / "run", rank=0), Sink)


def test_each_rank_writes_files_of_its_own(tmp_path):
    writers = [RunWriter(tmp_path, rank=rank) for rank in (0, 3)]
    for writer in writers:
        writer.describe(Manifest(world_size=4) if writer is writers[0] else None, RankEnv())
        writer.write({"step": 0})
        writer.write(Finding("rng-streams", "info", "Equal."))
    assert files_in(tmp_path) == [
        "env/rank-00000.json",
        "env/rank-00003.json",
        "findings-r00003.jsonl",
        "findings.jsonl",
        "journal/rank-00000.tlj",
        "journal/rank-00003.tlj",
        "manifest.json",
    ]
    for writer in writers:
        writer.close()
        writer.close()
    names = [name.split("-")[:3] for name in files_in(tmp_path) if name.startswith("workers")]
    assert names == [["workers/part", "r00000", "000000"], ["workers/part", "r00003", "000000"]]
    assert not any(name.startswith("journal") for name in files_in(tmp_path))


@pytest.mark.parametrize(("settings", "num_parts"), [({"seal_steps": 3}, 2), ({"seal_s": 0.0}, 7), ({}, 0)])
def test_rows_are_sealed_by_steps_and_by_time(tmp_path, settings, num_parts):
    writer = RunWriter(tmp_path, rank=0, **({"seal_s": math.inf} | settings))
    for step in range(7):
        writer.write({"step": step, "loss": 0.0})
    assert len(list((tmp_path / "workers").iterdir())) == num_parts
    assert Run(tmp_path).steps.tolist() == list(range(7))


def test_a_seal_counts_steps_and_not_pieces(tmp_path):
    writer = RunWriter(tmp_path, rank=0, seal_steps=3)
    for piece in ({"step": 0}, {"step": 1}, {"step": 0, "loss": 1.0}, {"step": 1, "loss": 1.0}):
        writer.write(piece)
    assert not list((tmp_path / "workers").iterdir())
    writer.write({"step": 2})
    assert len(list((tmp_path / "workers").iterdir())) == 1


def test_a_described_run_may_be_described_again(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    assert Run(tmp_path).manifest == Manifest()
    writer.describe(Manifest(world_size=2), RankEnv())
    optimizer = {"lr": np.float32(0.5), "betas": (0.9, np.float64(0.5)), "dtype": np.dtype("f4"), "max_norm": math.inf}
    writer.describe(Manifest(world_size=2, notes=["slow"]), RankEnv(optimizer=optimizer))
    run = Run(tmp_path)
    assert run.manifest.notes == ["slow"]
    assert run.env[0].optimizer == {"lr": 0.5, "betas": [0.9, 0.5], "dtype": "float32", "max_norm": math.inf}


def test_text_that_is_no_utf8_is_written_with_its_bytes_named(tmp_path):
    with contextlib.closing(RunWriter(tmp_path / "run", rank=0)) as writer:
        argument = os.fsdecode(b"caf\xe9 \xf0\x9f\x98\x80")
        writer.describe(Manifest(command=[argument]), RankEnv(environ={"TORCH_HOME": argument}))
        writer.write(Finding(code="x", severity="info", claim=argument))
    run = Run(tmp_path / "run")
    assert run.problems == []
    told = [run.manifest.command[0], run.env[0].environ["TORCH_HOME"], run.live_findings[0].claim]
    assert told == ["caf\\xe9 \U0001f600"] * 3


def test_values_may_change_after_they_were_written(tmp_path):
    lr = np.array([0.5])
    writer = RunWriter(tmp_path, rank=0)
    writer.write({"step": 0, "lr": lr})
    lr[:] = 9.0
    writer.close()
    assert Run(tmp_path).stack("lr")[0].tolist() == [[[0.5]]]


def test_records_that_do_not_fit_are_refused_and_the_rest_is_kept(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    writer.write({"step": 0, "loss": 1.0})
    for record, words in (
        ({"loss": 1.0}, "needs 'step', got only loss"),
        ({"step": None}, "needs 'step', got only nothing"),
        ({"step": 1, "lose": 1.0}, "'lose' is not a column"),
        ({"step": 1, "loss": [1.0]}, "Column 'loss'"),
    ):
        with pytest.raises(InputError, match=words):
            writer.write(record)
    writer.write({"step": 1, "loss": 2.0})
    writer.close()
    with pytest.raises(OSError, match="closed"):
        writer.write({"step": 2})
    assert Run(tmp_path).pivot("loss")[0].tolist() == [[1.0], [2.0]]


def test_closing_while_writing_takes_effect_after_it(tmp_path, monkeypatch):
    """As a signal handler does that runs between two lines of write."""
    writer = RunWriter(tmp_path, rank=0)
    writer.write({"step": 0})
    encode = writer._codec.encode

    def interrupted(row):
        writer.close()
        return encode(row)

    monkeypatch.setattr(writer._codec, "encode", interrupted)
    writer.write({"step": 1})
    run = Run(tmp_path)
    assert run.steps.tolist() == [0, 1]
    assert run.unclosed == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_directories_and_files_are_refused(tmp_path, overwrite):
    foreign = tmp_path / "thesis"
    for name in ("chapter.tex", "env/bin", "manifest.json", "journal/monday"):
        (foreign / name).parent.mkdir(parents=True, exist_ok=True)
        (foreign / name).write_text('{"name": "an app"}')
    before = files_in(foreign)
    with pytest.raises(RunExistsError, match=r"is not empty and not a Trueline Run .*'chapter\.tex'"):
        RunWriter(foreign, rank=0, overwrite=overwrite)
    (foreign / "manifest.json").unlink()
    with pytest.raises(RunExistsError, match="is not empty and not a Trueline Run"):
        RunWriter(foreign, rank=0, overwrite=overwrite)
    assert files_in(foreign) == [name for name in before if name != "manifest.json"]
    with pytest.raises(RunExistsError, match="is a file, and a Run is a directory"):
        RunWriter(foreign / "chapter.tex", rank=0, overwrite=overwrite)


def test_a_run_is_refused_without_overwrite_and_replaced_with_it(tmp_path):
    write_run(tmp_path, num_steps=5, seal_steps=2)
    (tmp_path / "findings.jsonl").write_text("old\n")
    (tmp_path / "weights.pt").write_text("mine")
    before = files_in(tmp_path)
    with pytest.raises(RunExistsError, match=r"already holds a Run\..* --overwrite"):
        RunWriter(tmp_path, rank=0)
    assert files_in(tmp_path) == before
    RunWriter(tmp_path, rank=0, overwrite=True).write({"step": 9})
    assert files_in(tmp_path) == ["journal/rank-00000.tlj", "manifest.json", "weights.pt"]
    assert Run(tmp_path).steps.tolist() == [9]


def test_a_run_with_a_damaged_manifest_may_be_overwritten(tmp_path):
    write_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema_ver')
    with pytest.raises(RunExistsError, match="already holds a Run"):
        RunWriter(tmp_path, rank=0)
    RunWriter(tmp_path, rank=0, overwrite=True)
    assert Run(tmp_path).steps.tolist() == []


def test_an_empty_directory_is_taken(tmp_path):
    write_run(tmp_path)
    assert Run(tmp_path).steps.tolist() == [0]


def test_what_a_rank_left_before_is_not_mixed_with_what_comes(tmp_path):
    RunWriter(tmp_path, rank=0)
    writer = RunWriter(tmp_path, rank=1, seal_steps=1)
    writer.write({"step": 0})
    with pytest.raises(RunExistsError, match=r"already holds 'workers/part-r00001-.*' of rank 1"):
        RunWriter(tmp_path, rank=1)
    RunWriter(tmp_path, rank=11)
    RunWriter(tmp_path, rank=1, overwrite=True).write({"step": 7})
    assert Run(tmp_path).steps.tolist() == [7]


def test_a_url_that_cannot_be_appended_to_is_refused():
    with pytest.raises(InputError, match="cannot be written to 'memory://run': a journal is appended to"):
        RunWriter("memory://run", rank=0)


def test_a_path_under_a_file_is_an_os_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="Not a directory"):
        RunWriter(tmp_path / "file" / "run", rank=0)


CALLS = ("open", "write", "fsync", "replace", "remove")


def fail_at(monkeypatch, fatal, *, code, whole_disk):
    """Let the ``fatal``-th call that a disk can refuse fail; with ``whole_disk``, all that follow fail too."""
    left = [fatal]

    def refusing(call):
        def run(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0 or (left[0] < 0 and whole_disk):
                if call is os_calls["write"]:
                    return call(args[0], args[1][: len(args[1]) // 2]) if left[0] % 2 else refuse()
                refuse()
            return call(*args, **kwargs)

        return run

    def refuse():
        raise OSError(code, os.strerror(code))

    os_calls = {name: getattr(os, name) for name in CALLS}
    for name, call in os_calls.items():
        monkeypatch.setattr(os, name, refusing(call))
    return left


@pytest.mark.in_turn
@pytest.mark.parametrize("whole_disk", [False, True])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_refusing_disk_is_an_os_error_and_costs_no_earlier_row(tmp_path, monkeypatch, code, whole_disk):
    """At every call that the writer makes; when the disk takes data again, so does the writer."""
    for fatal in range(1, 200):
        path = tmp_path / str(fatal)
        writer = RunWriter(path, rank=0, seal_steps=2)
        taken, codes = set(), set()
        with monkeypatch.context() as patch:
            left = fail_at(patch, fatal, code=code, whole_disk=whole_disk)
            for step in range(5):
                try:
                    writer.write({"step": step, "loss": step / 2})
                    taken.add(step)
                except OSError as error:
                    codes.add(error.errno)
        reached = left[0] <= 0
        assert codes <= {code}
        assert taken <= set(Run(path).steps.tolist())
        assert not [text for text in Run(path).problems if not text.startswith("rank 0")]
        writer.write({"step": 5, "loss": 2.5})
        writer.close()
        run = Run(path)
        assert taken | {5} <= set(run.steps.tolist())
        assert run.pivot("loss")[0][:, 0].tolist() == (run.steps / 2).tolist()
        assert not [text for text in run.problems if not text.startswith("rank 0")]
        if not reached:
            assert fatal > 10
            break


def test_a_disk_that_refuses_to_close_leaves_the_journal(tmp_path, monkeypatch):
    writer = RunWriter(tmp_path, rank=0)
    writer.write({"step": 0})
    with monkeypatch.context() as patch:
        fail_at(patch, 1, code=errno.ENOSPC, whole_disk=True)
        with pytest.raises(OSError, match="No space left"):
            writer.close()
    assert Run(tmp_path).steps.tolist() == [0]
    assert Run(tmp_path).unclosed == [0]


def num_descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_a_writer_that_nobody_closes_gives_its_descriptors_back(tmp_path):
    """Its files stay as those of a process that was killed."""
    before = num_descriptors()
    writer = RunWriter(tmp_path, rank=0)
    writer.write({"step": 0})
    writer.write(Finding("loss-spike", "warning", "The loss jumped."))
    assert num_descriptors() > before
    del writer
    assert num_descriptors() == before
    assert Run(tmp_path).unclosed == [0]


def test_a_writer_that_cannot_begin_keeps_no_descriptor(tmp_path, monkeypatch):
    """Whichever call the disk refuses."""
    began = 0
    for fatal in range(1, 200):
        before = num_descriptors()
        with monkeypatch.context() as patch:
            fail_at(patch, fatal, code=errno.ENOSPC, whole_disk=True)
            with contextlib.suppress(OSError):
                RunWriter(tmp_path / str(fatal), rank=0)
                began = fatal
        assert num_descriptors() == before, fatal
        if began:
            break
    assert began > 10


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=256k", "none", path], check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(writer, *, until_step):
    """Write until the disk refuses; the steps that it took."""
    values = np.random.default_rng(0)
    taken = []
    for step in range(until_step):
        try:
            writer.write({"step": step, "param_grad_norms": values.normal(size=300)})
            taken.append(step)
        except OSError:
            return taken
    raise AssertionError("the disk took everything")


@pytest.mark.parametrize("seal_steps", [7, 1000])
def test_a_full_disk_keeps_what_it_took(small_disk, seal_steps):
    writer = RunWriter(small_disk / "run", rank=0, seal_steps=seal_steps)
    taken = fill(writer, until_step=1000)
    assert taken
    if seal_steps == 1000:
        with pytest.raises(OSError, match="No space left"):
            writer.close()
    run = Run(small_disk / "run")
    assert set(taken) <= set(run.steps.tolist())
    assert not [text for text in run.problems if not text.startswith("rank 0")]
    assert run.stack("param_grad_norms")[1].all()


def test_a_full_disk_still_takes_the_finding_that_says_so(small_disk):
    writer = RunWriter(small_disk / "run", rank=0)
    writer.write({"step": 0, "loss": 1.0})
    with open(small_disk / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))
    said = Finding(code="watch-degraded", severity="warning", claim="The disk is full.")
    writer.write(said)
    assert Run(small_disk / "run").live_findings == [said]


@pytest.fixture
def no_descriptors():
    """Calls open all that this process may have; they are closed again."""
    held = []
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def take_all():
        highest = max(map(int, os.listdir("/proc/self/fd")))  # tests before this one may have left many open
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))

    yield take_all
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_without_free_descriptors_a_finding_still_says_so_and_the_run_is_closed(tmp_path, no_descriptors):
    outlet = SafeSink(RunWriter(tmp_path, rank=0, seal_steps=3), rank=0)
    no_descriptors()
    for step in range(5):
        outlet.step = step
        outlet.write({"step": step, "loss": 1.0})
    outlet.close()
    run = Run(tmp_path)
    (said,) = run.live_findings
    assert (said.code, said.step_first) == ("watch-degraded", 2)
    assert "Too many open files" in said.claim
    assert run.steps.tolist() == [0, 1, 2]
    assert run.unclosed == []


def test_nothing_is_left_of_the_room_that_was_kept(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    assert (tmp_path / "journal" / ".rank-00000-reserve.tmp").stat().st_size == 4096
    assert Run(tmp_path).problems == ["rank 0: it wrote nothing in this Run of 1 ranks"]
    writer.close()
    assert list((tmp_path / "journal").iterdir()) == []


def test_a_read_only_disk_is_an_os_error_and_its_run_stays(small_disk):
    path = write_run(small_disk / "run", num_steps=3)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for refused in (
        lambda: RunWriter(small_disk / "other", rank=0),
        lambda: RunWriter(path, rank=1),
        lambda: RunWriter(path, rank=0, overwrite=True),
    ):
        with pytest.raises(OSError, match="Read-only file system"):
            refused()
    assert Run(path).pivot("loss")[0].tolist() == [[0.0], [0.5], [1.0]]


LIMITED = """
import resource, signal, sys
from trueline.store.writer import RunWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
writer = RunWriter(sys.argv[1], rank=0, seal_steps=1000)
step = 0
try:
    while step < 10_000:
        writer.write({"step": step, "loss": step / 2})
        step += 1
except OSError:
    print(step)
"""


def test_a_file_size_limit_keeps_what_was_taken(tmp_path):
    done = subprocess.run([sys.executable, "-c", LIMITED, tmp_path], stdout=subprocess.PIPE, check=True, timeout=120)
    num_taken = int(done.stdout)
    assert num_taken
    run = Run(tmp_path)
    assert run.steps.tolist() == list(range(num_taken))
    assert not [text for text in run.problems if not text.startswith("rank 0")]


def test_writing_leaves_out_the_library_of_computations():
    """It would cost every rank 9 MiB."""
    program = (
        "import sys, tempfile\n"
        "from trueline.store.writer import RunWriter\n"
        "writer = RunWriter(tempfile.mkdtemp() + '/run', rank=0, seal_steps=2)\n"
        "for step in range(5):\n"
        "    writer.write({'step': step, 'loss': 1.0, 'lr': [0.1]})\n"
        "    writer.write({'step': step, 'sketch': [1.0, 2.0]})\n"
        "writer.close()\n"
        "sys.exit('pyarrow.compute' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
