"""Settings that are held at another value in a script that sets them itself, and which of them it is seen to have."""

import json
import subprocess

import pytest

from trueline.capture.child_env import CHANGES, environment

SCRIPT = """
import json, sys, torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.backends.mkldnn.enabled = True
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
loader = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4, num_workers=0, pin_memory=True)
torch.backends.cuda.enable_flash_sdp(True)
seen = []
for number, (x,) in enumerate(loader):
    with torch.autocast("cpu", torch.bfloat16):
        y = checkpoint(model, x, use_reentrant=False)
    seen.append(str(y.dtype))
    functional.scaled_dot_product_attention(y[None], y[None], y[None])
    y.float().sum().backward()
    seen.append([torch.backends.mkldnn.enabled, torch.backends.cuda.flash_sdp_enabled()])
    optimizer.step()
    seen.append(optimizer.param_groups[0]["fused"])
print(json.dumps([loader.pin_memory, *seen]))
"""
SWITCHES = [
    {"name": "fused", "how": "optimizer", "where": "fused", "off": False},
    {"name": "foreach", "how": "optimizer", "where": "foreach", "off": False},
    {"name": "onednn", "how": "setting", "where": "torch.backends.mkldnn.enabled", "off": False},
    {"name": "absent", "how": "setting", "where": "torch.backends.no_such.enabled", "off": False},
    {"name": "tf32", "how": "setting", "where": "torch.backends.cudnn.allow_tf32", "off": False, "device": "cuda"},
    {"name": "pin", "how": "keyword", "where": "torch.utils.data.DataLoader", "keyword": "pin_memory", "off": False},
    {"name": "autocast", "how": "keyword", "where": "torch.autocast", "keyword": "enabled", "off": False},
    {
        "name": "flash",
        "how": "function",
        "where": "torch.backends.cuda.enable_flash_sdp",
        "off": False,
        "reads": "torch.backends.cuda.flash_sdp_enabled",
        "seen": "torch.nn.functional.scaled_dot_product_attention",
    },
    {
        "name": "checkpoint",
        "how": "bypass",
        "where": "torch.utils.checkpoint.checkpoint",
        "off": None,
        "drops": ["use_reentrant"],
    },
]
MET = {"fused", "onednn", "pin", "autocast", "flash", "checkpoint"}


@pytest.fixture
def ran(python, tmp_path):
    """What the script saw with changes, and what was met."""

    def run(**changes):
        (tmp_path / "script.py").write_text(SCRIPT)
        environ = environment(out=str(tmp_path / "run"), plan={}, overwrite=True, base={})
        changes = {"switches": SWITCHES, "met": str(tmp_path), **changes}
        done = subprocess.run(
            [python, str(tmp_path / "script.py")], env=environ | {CHANGES: json.dumps(changes)}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        met = {name for path in tmp_path.glob("met-*.json") for name in json.loads(path.read_text())}
        return json.loads(done.stdout) if done.stdout else done, met

    return run


def test_nothing_is_changed_that_is_not_named_and_all_that_is_met_is_told(ran):
    seen, met = ran()
    assert seen == [True, *["torch.bfloat16", [True, True], True] * 2]
    assert {name for name in met if ":" not in name} - {"tf32"} == MET
    assert {"job:torch", "job:cpu"} <= met or "job:cuda" in met


def test_what_is_off_is_held_off_and_is_met_as_before(ran):
    seen, met = ran(off=[switch["name"] for switch in SWITCHES])
    assert seen == [False, *["torch.float32", [False, False], False] * 2]
    assert {name for name in met if ":" not in name} - {"tf32"} == MET


def test_a_job_ends_after_so_many_updates(ran):
    ended, met = ran(updates=1)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
    assert "fused" in met
