"""`trueline trial repeat` on a script that knows nothing of it."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.cli import in_process

JOB = Path(__file__).parents[1] / "repeating_job.py"
SCRIPT = """
import sys, random, torch
from torch import nn

other = random.SystemRandom()

def scaled(x):
    if sys.argv[1] == "inside":
        return x.mul(1 + other.random())
    return x.mul(2.0)

model, dropout = nn.Linear(32, 64), nn.Dropout(0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(3):
    x = torch.randn(16, 32)
    if sys.argv[1] == "between":
        x = torch.tensor([[other.random()] * 32] * 16)
    loss = scaled(dropout(model(x))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.in_turn
def test_a_call_is_named_also_before_the_first_pass_and_dropout_is_no_difference(
    python, forks, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(SCRIPT)

    def tried(kind):
        words = ("trial", "repeat", "--again", "2", "--out", kind, "--json", "--", python, "job.py", kind)
        code, out, err = in_process.trueline(monkeypatch, capsys, *words)
        assert out, err
        return code, json.loads(out)

    code, found = tried("inside")
    assert (code, found["answer"]) == (0, "confirmed"), found
    assert found["credible"] == ["torch.Tensor.mul at 0.0/r0/fwd/mul#0:out0"], found
    code, found = tried("between")
    assert found["credible"] == ["torch.tensor at 0.0/r0/fwd/tensor#0:out0"], found
    code, found = tried("none")
    assert (code, found["answer"], found["runs"]) == (0, "excluded", 3), found

    code, _, err = in_process.trueline(monkeypatch, capsys, "trial", "repeat", "--seed", "-1", "--", python, "job.py")
    assert (code, "--seed is -1" in err) == (2, True)
    code, out, _ = in_process.trueline(monkeypatch, capsys, "trial", "repeat", "--dry-run", "--", python, "job.py")
    assert code == 0
    assert "Runs: 4." in out


@pytest.mark.in_turn
def test_in_place_every_operation_that_does_not_repeat_itself_is_named_with_its_rate(
    python, forks, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)

    def tried(kind, *more):
        words = ("trial", "repeat", "--in-place", "--steps", "10", "--out", kind, *more, "--", python, str(JOB), kind)
        code, out, err = in_process.trueline(monkeypatch, capsys, *words)
        assert out, err
        return code, out

    code, out = tried("flips", "--json")
    found = json.loads(out)
    assert (code, found["answer"], found["runs"]) == (0, "confirmed", 1), found
    assert found["credible"] == ["mine.total.default(float32[64, 16])"], found
    (finding,) = found["findings"]
    assert (finding["code"], finding["evidence"]["calls"]) == ("nondeterministic-op", 60)
    assert 5 <= finding["evidence"]["differ"] <= 45  # 1 - 0.9 ** 4 = 0.34 of 60
    assert finding["severity"] == "info", "the last bit"
    assert finding["evidence"]["where"].startswith("repeating_job.py:")
    assert "an operator of your own: add up in a fixed order" in found["next"][0]
    found = json.loads(tried("order", "--json")[1])
    assert found["credible"] == ["mine.total.default(float32[64, 16])"]
    code, out = tried("none")
    assert code == 0
    assert out.startswith("Excluded: the job repeats itself.")
    assert "of calls may differ" in " ".join(out.split())
    code, out, _ = in_process.trueline(
        monkeypatch, capsys, "trial", "repeat", "--in-place", "--dry-run", "--", python, str(JOB), "none"
    )
    assert (code, "each operation of steps 0 to 1 called 4 times" in out) == (0, True)


def test_a_job_whose_operations_are_repeated_computes_what_it_would(python, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("trial", "repeat", "--in-place", "--steps", "10", "--keep", "--", python, str(JOB), "none")
    in_process.trueline(monkeypatch, capsys, *words)
    plain = subprocess.run([python, str(JOB), "none"], capture_output=True, text=True, check=True).stdout.split()
    printed = (tmp_path / "trials/repeat-in-place/000-in-place/printed.txt").read_text().split()
    assert printed == plain[: len(printed)]
    assert len(printed) >= 9
