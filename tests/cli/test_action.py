"""`action.yml`: its steps in order, as a runner of GitHub starts them, but for the actions of others."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from sarif_pydantic import Sarif

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())

JOB = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    x = torch.randn(16, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    if sys.argv[1] == "bad job" and step >= 6:
        loss = loss / 0.0
    if sys.argv[1] != "no update":
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
sys.exit(5 if sys.argv[1] == "dies" else 0)
"""


def value_of(expression, contexts):
    """Of an expression of a workflow: names are looked up, `&&`, `||`, `==`, `!=` and texts are as in Python."""
    names = re.sub(r"always\(\)", "True", expression).replace("&&", " and ").replace("||", " or ")
    code = re.sub(
        r"'[^']*'|[a-z][a-z-]*(?:\.[a-z_-]+)+",
        lambda name: name.group() if name.group().startswith("'") else repr(contexts.get(name.group(), "")),
        names,
    )
    return eval(code)


def filled(text, contexts):
    return re.sub(r"\$\{\{(.*?)\}\}", lambda part: str(value_of(part.group(1).strip(), contexts)), str(text))


@pytest.fixture
def act(tmp_path, warm_trueline):
    """Runs the action with inputs; its outputs, the status of its last step, what it printed, its summary, and what it
    asked other actions to do.
    """
    (tmp_path / "train.py").write_text(JOB)

    def run(**inputs):
        contexts = {f"inputs.{name}": about.get("default", "") for name, about in ACTION["inputs"].items()}
        contexts |= {f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()}
        contexts["github.action_path"] = str(ROOT)
        printed, status, used = "", 0, {}
        for step in ACTION["runs"]["steps"]:
            condition = step.get("if", "True")
            if (status and "always()" not in condition) or not value_of(condition, contexts):
                continue
            if "uses" in step:
                used[step["uses"]] = {name: filled(value, contexts) for name, value in step["with"].items()}
                continue
            files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
            files["GITHUB_OUTPUT"].unlink(missing_ok=True)
            body = tmp_path / "step.sh"
            body.write_text(step["run"])
            environ = {name: filled(value, contexts) for name, value in step.get("env", {}).items()}
            environ = os.environ | {name: str(path) for name, path in files.items()} | environ
            environ["PATH"] = f"{Path(warm_trueline).parent}:{os.environ['PATH']}"
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(body)]
            done = subprocess.run(command, cwd=tmp_path, env=environ, text=True, capture_output=True, check=False)
            printed += done.stdout + done.stderr
            status = done.returncode
            if files["GITHUB_OUTPUT"].exists():
                for line in files["GITHUB_OUTPUT"].read_text().splitlines():
                    name, _, value = line.partition("=")
                    contexts[f"steps.{step['id']}.outputs.{name}"] = value
        outputs = {name: filled(about["value"], contexts) for name, about in ACTION["outputs"].items()}
        summary = tmp_path / "GITHUB_STEP_SUMMARY"
        return outputs, status, printed, summary.read_text() if summary.exists() else "", used

    return run


def test_the_workflow_of_the_page_asks_for_what_the_action_takes():
    page = (ROOT / "docs/ci.md").read_text()
    workflow, *_ = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    (used,) = (step["with"] for step in workflow["jobs"]["numerics"]["steps"] if "trueline/" in step.get("uses", ""))
    required = {name for name, about in ACTION["inputs"].items() if about.get("required")}
    assert required <= set(used) <= set(ACTION["inputs"])
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == set(ACTION["inputs"])


@pytest.mark.in_turn
def test_a_healthy_training_is_green_and_keeps_its_report(act, tmp_path):
    outputs, status, printed, summary, used = act(command="python train.py 'good job'", install="none")
    assert (status, outputs["exit-code"]) == (0, "0")
    assert outputs["verdict"].startswith("No fault found in 12 steps")
    assert "::notice title=trueline check runs/ci::No fault found" in printed
    assert "No fault found in 12 steps" in summary
    (artifact,) = used.values()
    assert all((tmp_path / path).exists() for path in artifact["path"].split())


@pytest.mark.in_turn
def test_a_fault_is_red_and_shown_where_asked(act, tmp_path):
    outputs, status, printed, _, used = act(
        command="python train.py 'bad job'", install="none", code_scanning="true", artifact="", run="bad run"
    )
    assert (status, outputs["exit-code"]) == (1, "1")
    assert "::error title=trueline check bad run::Fault found" in printed
    assert re.search(r"^::error title=[^:]*,file=train.py,line=13::", printed, re.MULTILINE)
    (scan,) = used.values()
    text = (tmp_path / scan["sarif_file"]).read_text()
    Sarif.model_validate_json(text)
    assert json.loads(text)["runs"][0]["results"][0]["level"] == "error"


@pytest.mark.in_turn
@pytest.mark.parametrize(("job", "code"), [("no update", 3), ("dies", 5)])
def test_what_cannot_be_told_and_what_died_is_red(act, job, code):
    outputs, status, *_ = act(command=f"python train.py '{job}'", install="none")
    assert (status, outputs["exit-code"]) == (code, str(code))


def test_a_run_that_is_not_there_is_red_and_asks_nobody_to_scan(act):
    outputs, status, _, summary, used = act(command="true", install="none", artifact="", code_scanning="true")
    assert (status, outputs["exit-code"], summary, used) == (2, "2", "", {})
