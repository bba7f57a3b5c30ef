"""The example script does what its docstring and the documentation say, watched from outside."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRUELINE = [sys.executable, "-c", "from trueline.cli.main import main; main()"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize(("flags", "codes"), [([], set()), (["--no-sampler"], {"duplicate-data"})])
def test_example_is_judged_as_documented(flags: list[str], codes: set[str], tmp_path: Path) -> None:
    script = str(ROOT / "examples/train_ddp.py")
    command = [*TRUELINE, "run", "--out", str(tmp_path / "run"), "--", *TORCHRUN, script, "--epochs", "2", *flags]
    trained = subprocess.run(command, capture_output=True, text=True, check=False)
    assert trained.returncode == 0, trained.stderr
    assert "epoch 1: loss" in trained.stdout

    checked = subprocess.run(
        [*TRUELINE, "check", str(tmp_path / "run"), "--json"], capture_output=True, text=True, check=False
    )

    findings = json.loads(checked.stdout)["findings"]
    assert {finding["code"] for finding in findings if finding["severity"] != "info"} == codes
    assert checked.returncode == (1 if codes else 0)
