"""`trueline trial repeat` on a script that knows nothing of it."""

import json

from tests.cli import in_process

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


def test_a_call_is_named_what_comes_from_between_is_not_and_dropout_is_no_difference(
    python, tmp_path, monkeypatch, capsys
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
    assert found["credible"][0].startswith("before 0.0/r0/fwd/"), found
    code, found = tried("none")
    assert (code, found["answer"], found["runs"]) == (0, "excluded", 3), found

    code, _, err = in_process.trueline(monkeypatch, capsys, "trial", "repeat", "--seed", "-1", "--", python, "job.py")
    assert (code, "--seed is -1" in err) == (2, True)
    code, out, _ = in_process.trueline(monkeypatch, capsys, "trial", "repeat", "--dry-run", "--", python, "job.py")
    assert code == 0
    assert "Runs: 4." in out
