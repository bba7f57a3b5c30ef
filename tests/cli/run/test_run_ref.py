"""`trueline run --ref`: the command ends as it would by itself, and what the checks find is said on standard error."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.cli.in_process import trueline
from tests.synthetic_runs import write_run

from trueline.cli.foreground import threads_without_signals

TRUELINE = str(Path(sys.executable).parent / "trueline")

TRAIN = """
import sys, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=float(sys.argv[1]))
for step in range(2):
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
sys.exit(int(sys.argv[2]))
"""

WAITS = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(5))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(6))
signal.signal(signal.SIGUSR1, lambda *_: print("told", flush=True))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def ref(tmp_path):
    return write_run(tmp_path / "ref", num_ranks=1, num_steps=2)


def words_for(*command: str, trueline: str = TRUELINE) -> list[str]:
    return [trueline, "run", "--out", "run", "--ref", "ref", "--", *command]


@pytest.mark.in_turn
def test_the_comparison_is_on_standard_error_and_the_exit_code_is_the_commands(tmp_path, python, warm_trueline):
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for out, decay, exit_code in (("ref", "0.0", 0), ("run", "0.5", 41)):
        options = ["--out", out, "--plan", "mix", *(["--ref", "ref"] if out == "run" else [])]
        words = [warm_trueline, "run", *options, "--", python, "train.py", decay, str(exit_code)]
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == exit_code
        assert done.stdout == ""
    assert "optimizer-differs" in done.stderr
    assert "Fault found" in done.stderr


@pytest.mark.parametrize(
    ("ends", "status"), [("import sys; sys.exit(37)", 37), ("import os; os.kill(os.getpid(), 9)", -9), ("raise", 1)]
)
def test_the_command_ends_as_it_would_by_itself(tmp_path, ref, warm_trueline, ends, status):
    done = subprocess.run(
        words_for(sys.executable, "-c", f"print('mine')\n{ends}", trueline=warm_trueline),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert "the command wrote no Run at 'run'" in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 5), (signal.SIGTERM, 6), (signal.SIGALRM, -14)])
def test_a_signal_reaches_the_command(tmp_path, ref, number, status):
    with subprocess.Popen(
        words_for(sys.executable, "-c", WAITS), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "told\n"
        process.send_signal(number)
        assert process.wait(timeout=30) == status


def test_threads_that_a_library_starts_take_no_signal_that_is_to_reach_the_command():
    """One that they took would end the process, and not reach the command."""
    blocked: list[set[signal.Signals]] = []
    with threads_without_signals():
        thread = threading.Thread(target=lambda: blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        thread.start()
        thread.join()
    assert blocked[0] >= {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_ctrl_c_in_a_terminal_reaches_the_command_once(tmp_path, ref):
    counts = "import signal, time\nseen = []\nsignal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
    counts += "print('ready', flush=True)\ntime.sleep(1)\nprint(len(seen), flush=True)\n"
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execv(TRUELINE, words_for(sys.executable, "-c", counts))
    shown = b""
    while b"ready" not in shown:
        shown += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # the terminal is gone when both have ended
        while more := os.read(terminal, 1000):
            shown += more
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"ready^C1" in shown.replace(b"\r\n", b"")


def test_a_reference_that_cannot_be_used_is_refused_before_anything_starts(tmp_path, monkeypatch, capsys, ref):
    monkeypatch.chdir(tmp_path)
    starts = ["--", "touch", "started"]
    for words, says in (
        (["--out", "run", "--ref", "nowhere"], "There is no Run at 'nowhere'"),
        (["--out", "ref", "--overwrite", "--ref", "ref"], "--ref and --out are both 'ref'"),
    ):
        code, out, err = trueline(monkeypatch, capsys, "run", *words, *starts)
        assert (code, out) == (2, "")
        assert says in err
        assert err.count("\n") == 1
    assert not (tmp_path / "started").exists()
