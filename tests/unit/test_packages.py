"""The wheel holds all that is needed beside what it declares, with torch and without; a release is one command."""

import datetime
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import types
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.unit.healthy_run import healthy_rows, write_run
from tools.release import PLACES, ReleaseError, release

import trueline
from trueline import capture
from trueline.capture import require_torch
from trueline.schema.errors import CaptureError

ROOT = Path(__file__).parents[2]

JOB = """
import torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    (model(torch.randn(8, 4)) ** 2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def required(name, extras=()):
    """Names of the distributions that the installed ``name`` declares, with those that these declare."""
    pending, seen = [(name, frozenset(extras))], set()
    while pending:
        name, extras = pending.pop()
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            applies = requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in (extras or {""})
            )
            asked = (requirement.name, frozenset(requirement.extras))
            if applies and asked not in seen and requirement.name.lower() != "trueline":
                seen.add(asked)
                pending.append(asked)
    return {name for name, _ in seen}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Makes an empty environment with the wheel and, of what is installed here, what it declares: as pip would, but
    for the download.
    """
    folder = tmp_path_factory.mktemp("packages")
    sources = folder / "sources"
    sources.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, sources)
    leave = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    shutil.copytree(ROOT / "src", sources / "src", ignore=leave)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(sources)]
    done = subprocess.run(build, env=os.environ | {"TRUELINE_PURE": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    assert wheel.name == f"trueline-{trueline.__version__}-py3-none-any.whl"

    def make(*extras):
        place = folder / ("with " + " ".join(extras) if extras else "plain")
        venv.create(place, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(place / "bin/python"), "install", "--no-deps", "--no-index"]
        subprocess.run([*pip, "--quiet", str(wheel)], check=True)
        (packages,) = place.glob("lib/python*/site-packages")
        for name in required("trueline", extras):
            distribution = importlib.metadata.distribution(name)
            for top in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
                if not (packages / top).exists():
                    (packages / top).symlink_to(distribution.locate_file(top))
        return place / "bin"

    return make


def call(place, *words, folder):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(words, executable=place / words[0], cwd=folder, env=environ, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.in_turn
def test_the_wheel_reads_runs_where_there_is_no_torch(environment, tmp_path):
    place = environment()
    write_run(tmp_path / "run", healthy_rows(2, 10))
    assert call(place, "python", "-c", "import torch", folder=tmp_path)[0] == 1
    status, printed, errors = call(place, "trueline", "check", "run", folder=tmp_path)
    assert (status, errors) == (0, "")
    assert printed.startswith("No fault found in 10 steps of 2 ranks.")
    assert call(place, "trueline", "report", "run", "-o", "report.html", folder=tmp_path)[0] == 0
    assert "trueline check" in call(place, "trueline", "explain", "skill", "loss-is-wrong", folder=tmp_path)[1]
    status, printed, errors = call(place, "trueline", "mcp", ".", folder=tmp_path)
    assert (status, printed, errors.count("\n")) == (2, "", 1)
    assert "needs the MCP SDK" in errors
    status, printed, errors = call(place, "trueline", "trial", "batch", "--", "python", "train.py", folder=tmp_path)
    assert (status, printed, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("trueline: This needs torch, which Python at '")


@pytest.mark.in_turn
def test_the_wheel_watches_with_the_torch_that_is_there(environment, tmp_path):
    place = environment("torch")
    (tmp_path / "train.py").write_text(JOB)
    command = ("trueline", "run", "--out", "run", "--", str(place / "python"), "train.py")
    status, _, errors = call(place, *command, folder=tmp_path)
    assert status == 0
    assert "trueline: watched model (single, 1 rank): 8 steps" in errors


@pytest.mark.parametrize("version", ["2.5.1", "1.13.0+cu117", "2.5.0a0"])
def test_a_torch_that_is_too_old_is_said(version):
    with pytest.raises(CaptureError, match=re.escape(f"torch is {version} here, and watching needs 2.6 or newer.")):
        require_torch(version)


def test_a_torch_is_asked_for_its_version_where_it_is_loaded_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.4.0"))
    with pytest.raises(CaptureError, match=r"torch is 2\.4\.0 here"):
        importlib.reload(capture)
    monkeypatch.delitem(sys.modules, "torch")
    importlib.reload(capture)


@pytest.mark.parametrize("version", ["2.6.0", "2.13.0+cpu", "2.14.0.dev20261101", "3.0.0", "mine", "main.abc"])
def test_other_torches_are_taken(version):
    require_torch(version)


@pytest.fixture
def sources(tmp_path):
    for name in (*PLACES, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (unreleased)\n\n- It began.\n")
    return tmp_path


DAY = datetime.date(2026, 12, 1)


def test_a_release_writes_version_and_changelog(sources):
    assert release(sources, "0.1.0rc1", DAY) == "- It began."
    changelog = "# Changelog\n\n## {} (unreleased)\n\n## {} (2026-12-01)\n\n- It began.\n\n"
    assert (sources / "CHANGELOG.md").read_text() == changelog.format("0.1.0", "0.1.0rc1")
    assert '__version__ = "0.1.0rc1"\n' in (sources / "src/trueline/__init__.py").read_text()
    assert "\nversion: 0.1.0rc1\n" in (sources / "CITATION.cff").read_text()
    with pytest.raises(ReleaseError, match="nothing under"):
        release(sources, "0.1.0", DAY)


@pytest.mark.parametrize(
    ("version", "why"), [("next", "'next' is no version"), ("0.0.9", "has 0.0.9 already"), ("0.2", "is no version")]
)
def test_a_release_that_cannot_be_leaves_all_as_it_is(sources, version, why):
    with (sources / "CHANGELOG.md").open("a") as file:
        file.write("\n## 0.0.9 (2026-01-01)\n\n- Before.\n")
    before = {name: (sources / name).read_text() for name in (*PLACES, "CHANGELOG.md")}
    with pytest.raises(ReleaseError, match=why):
        release(sources, version, DAY)
    assert before == {name: (sources / name).read_text() for name in before}
