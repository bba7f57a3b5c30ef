"""A few entries as scripts that know nothing of Trueline, attached to as under `trueline run`."""

import json
from pathlib import Path

import pytest
from gallery.entry import Fault, chosen_entries
from gallery.entry_context import PLAN
from gallery.scoring import judge
from tests.forked_scripts import run_watched

import trueline

SCRIPT = """
import sys
import torch.distributed as dist
from gallery.entry import train_on_rank

dist.init_process_group("gloo")
train_on_rank(dist.get_rank(), dist.get_world_size(), sys.argv[1], sys.argv[2])
dist.destroy_process_group()
"""


def run(entry_id: str, variant: str, folder: Path) -> list:
    """The warnings and errors of one entry's Run, made from a script in ``folder``."""
    script, plan, out = folder / "train.py", folder / "plan.json", folder / "run"
    script.write_text(SCRIPT)
    plan.write_text(json.dumps(PLAN))
    run_watched(script, entry_id, variant, out=out, plan=str(plan))
    return [finding for finding in trueline.check(str(out)).findings if finding.is_grave]


@pytest.mark.parametrize("entry_id", ["D2.no-sampler", "R3", "R4.checkpoint"])
def test_fault_in_an_unchanged_script_is_found_at_its_place(entry_id, tmp_path):
    fault = next(entry for entry in chosen_entries([entry_id]) if entry.id == entry_id)
    assert isinstance(fault, Fault)
    score = judge(fault, run(entry_id, "faulty", tmp_path))
    assert (score.missed, score.unexpected) == ((), ()), score.claims
    assert score.localised, score.claims


@pytest.mark.in_turn
@pytest.mark.parametrize("entry_id", ["healthy.no-sync", "healthy.fsdp"])
def test_healthy_unchanged_script_is_left_alone(entry_id, tmp_path):
    assert [finding.claim for finding in run(entry_id, "healthy", tmp_path)] == []
