"""Skills have the form that coding agents read, and their commands run as they are printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.cli import in_process

from trueline.guide import described, skills
from trueline.mcp.answers import Answers
from trueline.mcp.reach import Reach

ROOT = Path(__file__).parents[3]
JOB = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
activation = nn.GELU() if "gelu" in sys.argv else nn.GELU(approximate="tanh")
model = nn.Sequential(nn.Linear(8, 16), activation, nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(STEPS):
    x = torch.randn(16, 8)
    scale = x.abs().sum(1, keepdim=True) * (0 if step == NAN_AT else 1)
    loss = (model(x / scale) - x[:, :1]).square().mean()
    loss.backward()
    optimizer.step()
    ZERO_GRAD
"""
JOBS = {
    "watch-a-training": {"STEPS": "60", "NAN_AT": "3", "ZERO_GRAD": "optimizer.zero_grad()"},
    "loss-is-wrong": {"STEPS": "40", "NAN_AT": "-1", "ZERO_GRAD": "pass"},
    "runs-differ": {"STEPS": "3", "NAN_AT": "-1", "ZERO_GRAD": "optimizer.zero_grad()"},
    "find-nan": {"STEPS": "12", "NAN_AT": "3", "ZERO_GRAD": "optimizer.zero_grad()"},
}


def commands(text):
    return [line.strip() for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in [block.strip()]]


def by_words(printed, *words):
    """The document that the command with these words printed."""
    (text,) = [text for command, text in printed.items() if all(word in command for word in words)]
    return json.loads(text)


@pytest.fixture
def run_as_printed(tmp_path, warm_trueline):
    """Runs all commands of a skill, in order, on a job of its own; what each printed."""

    def run(name):
        source = JOB
        for word, value in JOBS[name].items():
            source = source.replace(word, value)
        (tmp_path / "train.py").write_text(source)
        environ = os.environ | {"PATH": f"{Path(warm_trueline).parent}{os.pathsep}{os.environ['PATH']}"}
        environ.pop("COLUMNS", None)
        printed = {}
        for command in commands(skills()[name]):
            # what runs in the background has a shell of its own, and holds no pipe of this one
            words = ["bash", "-c", command.replace(" &", " >/dev/null 2>&1 &")]
            done = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
            assert done.returncode in (0, 1), (command, done.stderr)
            assert "Traceback" not in done.stderr
            printed[command] = done.stdout
        return printed

    return run


@pytest.mark.parametrize("name", JOBS)
def test_a_skill_has_a_name_and_says_when_to_use_it(name):
    text = skills()[name]
    _, front, body = text.split("---\n", 2)
    head = yaml.safe_load(front)
    assert set(head) == {"name", "description"}
    assert head["name"] == name
    assert re.fullmatch(r"[a-z0-9-]{1,64}", name)
    assert " Use when " in head["description"]
    assert len(head["description"]) <= 1024
    assert described(text) == head["description"]
    assert len(body.splitlines()) < 60
    assert commands(text)


def test_all_skills_are_tried():
    assert set(skills()) == set(JOBS)


@pytest.mark.in_turn
def test_watching_ends_with_what_was_found(run_as_printed):
    printed = run_as_printed("watch-a-training")
    waited = by_words(printed, "trueline wait")
    assert (waited["reached"], waited["status"]) == (True, "fault")
    assert by_words(printed, "trueline diagnose")["findings"][0]["step_first"] == 3


@pytest.mark.in_turn
def test_a_wrong_loss_has_a_cause(run_as_printed):
    printed = run_as_printed("loss-is-wrong")
    found = by_words(printed, "trueline check")
    assert found["status"] == "fault"
    assert by_words(printed, "trueline diagnose")["cause"] == found["cause"] == "gradients-not-cleared"
    assert by_words(printed, "trial batch")["actions"][0]["argv"][:3] == ["trueline", "trial", "batch"]


@pytest.mark.in_turn
def test_runs_that_differ_have_a_first_call(run_as_printed):
    printed = run_as_printed("runs-differ")
    compared = by_words(printed, "trueline compare")
    assert compared["status"] == "different"
    assert "gelu" in compared["first"]["site"]
    assert compared["findings"][0]["evidence"]["arguments"] == {"approximate": ['"tanh"', '"none"']}


@pytest.mark.in_turn
def test_a_nan_has_a_line(run_as_printed, tmp_path):
    printed = run_as_printed("find-nan")
    first, recorded = by_words(printed, "check runs/nan "), by_words(printed, "check runs/nan-mix-3")
    (record,) = [action["argv"] for action in first["actions"] if action["argv"] and "mix" in action["argv"]]
    assert record == next(command for command in printed if "steps=3:4" in command).split()
    origin = recorded["findings"][0]
    assert origin["code"] == "overflow-origin"
    line = (tmp_path / "train.py").read_text().splitlines()[origin["where"]["line"] - 1]
    assert "x / scale" in line
    call = Answers(Reach([str(tmp_path / "runs")])).call("nan-mix-3", origin["sites"][0])
    (source,) = call["source"]
    assert f"{source['line']}: {line}" in source["lines"]
    assert len(source["lines"]) == len((tmp_path / "train.py").read_text().splitlines())


def test_skills_are_listed_and_printed_and_lie_in_the_sources(monkeypatch, capsys):
    code, printed, _ = in_process.trueline(monkeypatch, capsys, "explain", "skill")
    assert code == 0
    assert [line.partition(":")[0] for line in printed.splitlines()] == sorted(JOBS)
    for name, text in skills().items():
        assert in_process.trueline(monkeypatch, capsys, "explain", "skill", name)[1].strip() == text
        assert (ROOT / "skills" / name / "SKILL.md").read_text().strip() == text
    code, _, errors = in_process.trueline(monkeypatch, capsys, "explain", "skill", "nothing")
    assert (code, errors.count("\n")) == (2, 1)
    assert "There are find-nan, loss-is-wrong" in errors


def test_what_is_linked_for_agents_is_there():
    for page in ("AGENTS.md", "llms.txt"):
        text = (ROOT / page).read_text()
        for path in re.findall(r"\]\(([^)#]+)", text):
            assert (ROOT / path).exists(), (page, path)
        for name in JOBS:
            assert name in text
