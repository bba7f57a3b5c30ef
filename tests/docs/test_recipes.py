"""Each recipe runs as it stands on its page, and the job is seen and found healthy."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "docs/recipes"
TRIED = ("accelerate", "ddp", "deepspeed", "fsdp2", "lightning", "trainer")
"""Those whose page has a script and a command; TRL is in no list of what the tests install."""


def first_block(page: str, language: str) -> str:
    return re.search(rf"^```{language}\n(.*?)^```", (RECIPES / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)[1]


def env() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.mark.in_turn
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", TRIED)
def test_recipe_runs_as_written(page: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(first_block(page, "python"))
    train, check = first_block(page, "").splitlines()

    done = subprocess.run(
        shlex.split(train), cwd=tmp_path, env=env(), capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert "NOTHING WAS WATCHED" not in done.stderr
    said = subprocess.run(
        [*shlex.split(check), "--json"], cwd=tmp_path, env=env(), capture_output=True, text=True, check=False
    )
    report = json.loads(said.stdout)
    assert (said.returncode, report["status"]) == (0, "fine"), report["verdict"]
    assert "2 ranks" in report["verdict"]


@pytest.mark.in_turn
def test_the_cell_of_the_notebook_runs_twice(tmp_path: Path) -> None:
    cell = first_block("notebook", "python")
    code = f"{cell}\nexec({cell!r})\nprint(trueline.check('runs/notebook'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env(), capture_output=True, text=True, check=False
    )

    assert done.stdout.startswith("No fault found in 128 steps of one process."), done.stdout + done.stderr
