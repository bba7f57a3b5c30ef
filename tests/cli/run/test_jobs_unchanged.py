"""Jobs that touch what watching is built of: under `trueline run` they print and end as they do alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRUELINE = str(Path(sys.executable).parent / "trueline")

MODEL = """
import gc, io, copy, logging, os, pickle, sys, warnings, weakref
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps=4, model=model, optimizer=optimizer):
    for _ in range(steps):
        model(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
WEIGHTS = "\nprint([param.double().sum().item() for param in model.parameters()])"

JOBS = {
    "log-handlers-raise": """
def fail(*args): raise RuntimeError("a handler of the user's")
logging.getLogger("trueline").addFilter(fail)
if run := os.environ.get("TRUELINE_RUN"):
    open(run, "w").close()  # so that it cannot be watched, of which the log tells
train()
""",
}


def run(python: str, script: Path, *words: str) -> tuple[int, str]:
    """Exit status and output of a script, run by ``words``; what it leaves on standard error is shown where a test
    fails.
    """
    done = subprocess.run(
        [*words, python, str(script)], cwd=script.parent, env=os.environ, capture_output=True, text=True
    )
    sys.stderr.write(done.stderr)
    return done.returncode, done.stdout


@pytest.mark.parametrize("job", JOBS)
def test_a_job_ends_and_prints_as_it_does_alone(job, tmp_path, python):
    script = tmp_path / "train.py"
    script.write_text(MODEL + JOBS[job] + WEIGHTS, encoding="utf-8")
    alone = run(python, script)
    assert alone[0] == 0
    assert run(python, script, TRUELINE, "run", "--out", str(tmp_path / "run"), "--") == alone
    assert (tmp_path / "run").is_file() or (tmp_path / "run" / "manifest.json").exists(), "the job was not watched"
