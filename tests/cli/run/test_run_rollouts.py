"""Rollouts of a framework whose driver is a process of Ray, below ``trueline run``: real processes, and a package with
verl's names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trueline

pytest.importorskip("ray")

TRAINER = """
import torch
from tests.unit.rl.test_verl import Batch, RayTrainer
RayPPOTrainer = type("RayPPOTrainer", (RayTrainer,), {n: v for n, v in vars(RayTrainer).items() if n[:2] != "__"})
"""
JOB = """
import sys
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=True, logging_level="ERROR")

@ray.remote
class TaskRunner:
    def run(self):
        from verl.trainer.ppo.ray_trainer import RayPPOTrainer
        trainer = RayPPOTrainer()
        trainer.step()
        trainer.step()

ray.get(TaskRunner.remote().run.remote())
"""


@pytest.mark.in_turn
def test_what_a_driver_in_ray_records_is_a_run_beside_that_of_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "verl" / "trainer" / "ppo"
    folder.mkdir(parents=True)
    for part in (folder, folder.parent, folder.parent.parent):
        (part / "__init__.py").write_text("import torch\n", encoding="utf-8")  # as verl's own does
    (folder / "ray_trainer.py").write_text(TRAINER, encoding="utf-8")
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    repository = Path(__file__).parents[3]
    command = [sys.executable, "-m", "trueline", "run", "--out", "runs/it", "--", sys.executable, "job.py"]
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{repository}", "RAY_AUTH_MODE": "disabled"}

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        words = [*command[:4], *more, *command[4:]]
        return subprocess.run(
            words, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=300
        )

    done = run()
    assert done.returncode == 0, done.stderr
    rows = trueline.open_run(tmp_path / "runs/it.rollouts").kept("rollouts").table().to_pylist()
    assert {row["step"] for row in rows} == {0, 1}
    assert f"recorded {len(rows)} sequences of rollouts" in done.stderr
    assert "Next: trueline check runs/it.rollouts" in done.stderr
    again = run()  # nothing is overwritten unasked
    assert again.returncode == 2
    assert "'runs/it.rollouts' already holds a Run" in again.stderr
