"""Clusters of one machine for the engines of trials: a real Ray, and SLURM, or programs that do as SLURM's do."""

import os
import shutil
import subprocess
import sys

import pytest

SBATCH = """#!/bin/sh
# A batch job in a session of its own; like SLURM's it prints the number first, and then waits for the job.
for word in "$@"; do
  case $word in --output=*) output=${word#--output=};; --partition=none) echo "invalid partition" >&2; exit 1;; esac
done
setsid sh "$word" > "$output" 2>&1 &
echo "$!;cluster"
wait $!
"""
SCANCEL = "#!/bin/bash\nkill -KILL -- -$1\n"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The engine slurm: a cluster that answers, else the stub."""
    if shutil.which("sinfo") is None or subprocess.run(["sinfo"], capture_output=True, check=False).returncode:
        for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
            program = tmp_path / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return "slurm"


@pytest.fixture(scope="session")
def ray_cluster():
    """The engine ray, with one CPU."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    if not ray.is_initialized():  # for tests of another file
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield "ray:num_cpus=1"
    ray.shutdown()


@pytest.fixture(params=["local", "torchrun", "slurm", "ray"])
def engine(request, monkeypatch):
    """Each engine by its text."""
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}")  # of torchrun
    needs = {"slurm": "slurm", "ray": "ray_cluster"}.get(request.param)
    return request.getfixturevalue(needs) if needs else request.param


@pytest.fixture
def warm_torchrun(engine, request, tmp_path, monkeypatch):
    """Where the engine is torchrun, that of an interpreter that has imported torch."""
    if engine == "torchrun":
        program = tmp_path / "warm" / "torchrun"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {request.getfixturevalue("python")} -m torch.distributed.run "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
