"""A few entries as scripts that know nothing of Trueline, started by `trueline run -- torchrun …`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import trueline
from trueline.testing.entry import Fault, chosen_entries
from trueline.testing.gallery import judge
from trueline.testing.seat import PLAN

SCRIPT = """
import os, sys
import torch.distributed as dist
from trueline.testing.play import play

dist.init_process_group("gloo")
play(dist.get_rank(), dist.get_world_size(), sys.argv[1], sys.argv[2])
dist.destroy_process_group()
"""


def run(entry_id: str, variant: str, folder: Path) -> list:
    """The warnings and errors of one entry's Run, made by `trueline run` from a script in ``folder``."""
    script, plan, out = folder / "train.py", folder / "plan.json", folder / "run"
    script.write_text(SCRIPT)
    plan.write_text(json.dumps(PLAN))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *torchrun, str(script), entry_id, variant]
    trueline_run = [sys.executable, "-c", "from trueline.cli.main import main; main()", "run"]
    done = subprocess.run(
        [*trueline_run, "--out", str(out), "--plan", str(plan), "--", *command],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [finding for finding in trueline.check(str(out)).findings if finding.severity != "info"]


@pytest.mark.parametrize("entry_id", ["D2.no-sampler", "R3", "R4.checkpoint"])
def test_fault_in_an_unchanged_script_is_found_at_its_place(entry_id, tmp_path):
    fault = next(entry for entry in chosen_entries([entry_id]) if entry.id == entry_id)
    assert isinstance(fault, Fault)
    score = judge(fault, run(entry_id, "faulty", tmp_path))
    assert (score.missed, score.unexpected) == ((), ()), score.claims
    assert score.localised, score.claims


@pytest.mark.parametrize("entry_id", ["healthy.no-sync", "healthy.fsdp"])
def test_healthy_unchanged_script_is_left_alone(entry_id, tmp_path):
    assert [finding.claim for finding in run(entry_id, "healthy", tmp_path)] == []
