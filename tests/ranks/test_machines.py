"""Machines with disks of their own: two launchers, each under `trueline run`, and one Run in an object store."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import s3fs

import trueline
from trueline.store.reader import Run

SCRIPT = textwrap.dedent("""
    import sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.Generator().manual_seed(dist.get_rank())
    for step in range(int(sys.argv[1])):
        inputs = torch.randn(4, 8, generator=data)
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
""")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def store() -> Iterator[Mapping[str, str]]:
    """The environment in which ``s3://bucket`` is an object store: a server of its own that speaks its protocol."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    settings = {
        "AWS_ACCESS_KEY_ID": "one",
        "AWS_SECRET_ACCESS_KEY": "two",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        deadline = time.monotonic() + 60
        while True:
            try:
                s3fs.S3FileSystem().mkdir("bucket")
                break
            except Exception:
                assert server.poll() is None, "the object store does not start"
                assert time.monotonic() < deadline, "the object store does not answer"
                time.sleep(0.2)
        yield settings
    server.kill()
    server.wait()


def launched(python: str, place: Path, *, destination: str, steps: int = 12) -> list[subprocess.CompletedProcess[str]]:
    """Two machines of one rank each, which have a disk each."""
    script, port = place / "train.py", free_port()
    script.write_text(SCRIPT)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python}
    started: list[subprocess.Popen[str]] = []
    for node in range(2):
        words = ["torch.distributed.run", "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"]
        words += ["--master-addr", "127.0.0.1", "--master-port", str(port), str(script), str(steps)]
        watched = ["trueline", "run", "--out", str(place / f"disk-{node}" / "run"), "--collect", destination]
        words = [sys.executable, "-m", *watched, "--", python, "-m", *words]
        started.append(subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    ended = [process.communicate(timeout=200) for process in started]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *output)
        for process, output in zip(started, ended, strict=True)
    ]


@pytest.mark.in_turn
def test_two_machines_collect_into_an_object_store(python, tmp_path, store):
    done = launched(python, tmp_path, destination="s3://bucket/runs/two")
    assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
    assert "rank 0 elsewhere" in done[1].stderr
    assert all("trueline: collected. " in each.stderr for each in done)
    trueline.collect([tmp_path / "disk-0" / "run"], "s3://bucket/runs/two")
    whole = Run("s3://bucket/runs/two")
    assert whole.ranks == [0, 1]
    assert whole.problems == []
    trueline.collect([tmp_path / "disk-0" / "run", tmp_path / "disk-1" / "run"], tmp_path / "whole")
    stored = {file.rpartition("/")[2] for file in s3fs.S3FileSystem().ls("bucket/runs/two/workers", detail=False)}
    assert stored == {file.name for file in (tmp_path / "whole" / "workers").iterdir()}  # names hold checksums
    assert (
        trueline.check("s3://bucket/runs/two").to_json()["findings"]
        == (trueline.check(tmp_path / "whole").to_json()["findings"])
    )


@pytest.mark.in_turn
def test_a_store_that_is_not_there_is_said_before_the_command_starts(tmp_path, store, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    (tmp_path / "train.py").write_text("raise SystemExit('it was started')")
    words = ["trueline", "run", "--out", str(tmp_path / "run"), "--collect", "s3://bucket/run", "--"]
    done = subprocess.run(
        [sys.executable, "-m", *words, sys.executable, str(tmp_path / "train.py")],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 2
    assert "cannot be reached" in done.stderr
    assert "it was started" not in done.stderr
