"""Where ``trueline run`` gets into a process: with torch, once, whoever has asked for it before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import trueline

SCRIPT = """
import importlib.util
assert importlib.util.find_spec("torch") and importlib.util.find_spec("torch").origin  # as transformers and TRL ask
import torch, torch as again
"""


def test_it_attaches_once_though_torch_was_asked_for_before(tmp_path):
    for name, text in {
        "torch/__init__.py": "print('torch')",
        "trueline/__init__.py": "watch = None",
        "trueline/capture/__init__.py": "",
        "trueline/capture/launch.py": "def attach(watch): print('attached')",
        "trueline/rl.py": "def follow(): print('following')",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    attach = Path(trueline.__file__).parent / "capture" / "attach"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (attach, tmp_path))), "TRUELINE_RUN": "runs/it"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["torch", "attached", "following"], "")
