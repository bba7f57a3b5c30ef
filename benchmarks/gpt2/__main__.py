"""What recording and comparing three steps of a GPT-2 of 124 million parameters costs, and what compare then says.

    python -m benchmarks.gpt2 [--rounds 3] [--folder DIR]

The commands are those of a user, on `examples/train_gpt2.py`. Unmonitored and recorded processes take turns; a fault
(another GELU) and a healthy change (another attention kernel) are recorded once each. Rewrites README.md beside this.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.page import arguments, head, table, write

ROOT = Path(__file__).parents[2]
SCRIPT = "examples/train_gpt2.py"
PLAN = """\
preset = "mix"
steps = [0, 3]
stacks = true
"""
RECORDED, STEPS = 3, 6
CHANGES = {"gelu": ["--activation", "gelu"], "eager": ["--attention", "eager"]}
ABOUT = f"""\
GPT-2 with random weights, 2 x 256 tokens, float32, AdamW, one process. {RECORDED} of {STEPS} steps are recorded with
`preset = "mix"`, `depth = "stats"` and stacks: forward pass, backward pass and update, modules and operators."""


def main() -> None:
    """Train, record, compare, and write the page."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--folder", type=Path, help="an empty directory")
    chosen = parser.parse_args()
    title = head("GPT-2 with 124 million parameters", command=f"python -m benchmarks.gpt2 --rounds {chosen.rounds}")
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        plan = Path(folder) / "plan.toml"
        plan.write_text(PLAN, encoding="utf-8")
        rounds = []
        for turn in range(chosen.rounds):
            rounds.append((_steps(), _steps(run=Path(folder) / f"ref{turn}", plan=plan)))
            print(f"round {turn}: {_ratio(rounds[-1:], slice(0, RECORDED))}", file=sys.stderr, flush=True)
        for name, change in CHANGES.items():
            _steps(*change, run=Path(folder) / name, plan=plan)
        bytes_ = sum(file.stat().st_size for file in (Path(folder) / "ref0").rglob("*") if file.is_file())
        verdicts = {name: _compared(Path(folder), name) for name in CHANGES}
    write(__file__, title, ABOUT, _costs(rounds, bytes_), *(_verdict(name, *verdicts[name]) for name in CHANGES))


Times = list[tuple[float, float]]
"""Seconds on the clock and of CPU of each step."""


def _steps(*options: str, run: Path | None = None, plan: Path | None = None) -> Times:
    command = [sys.executable, SCRIPT, "--steps", str(STEPS), *options]
    if run is not None:
        command = [sys.executable, "-m", "trueline", "run", "--out", str(run), "--plan", str(plan), "--", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [(float(wall), float(cpu)) for wall, cpu in re.findall(r"([\d.]+) s ([\d.]+) CPU s", done.stdout)]


def _compared(folder: Path, name: str) -> tuple[str, int, float]:
    """The screen without paths of this machine, the exit code, and the CPU seconds of the process."""
    before = os.times()
    command = [sys.executable, "-m", "trueline", "compare", name, "ref0"]
    environ = os.environ | {"NO_COLOR": "1", "COLUMNS": "100"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environ)
    after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return done.stdout, done.returncode, cpu_s


def _costs(rounds: list[tuple[Times, Times]], bytes_: int) -> str:
    bare = median(cpu for times, _ in rounds for _, cpu in times)
    rows = [
        ("CPU time of an unmonitored step", f"{bare:.2f} s"),
        ("a recorded step, times the unmonitored one", _ratio(rounds, slice(0, RECORDED))),
        ("the steps after, times the unmonitored one", _ratio(rounds, slice(RECORDED, STEPS))),
        ("written, for a recorded step", f"{bytes_ / RECORDED / 1000:,.0f} kB"),
    ]
    return table(("what", "measured"), rows)


def _ratio(rounds: list[tuple[Times, Times]], steps: slice) -> str:
    """``1.10 (1.05 – 1.12; on the clock 1.11)``: median, least and largest over rounds, of CPU time."""
    ratios = [
        [sum(time[kind] for time in ours[steps]) / sum(time[kind] for time in bare[steps]) for bare, ours in rounds]
        for kind in (0, 1)
    ]
    wall, cpu = ratios
    return f"{median(cpu):.2f} ({min(cpu):.2f} – {max(cpu):.2f}; on the clock {median(wall):.2f})"


def _verdict(name: str, screen: str, code: int, cpu_s: float) -> str:
    what = {"gelu": "A fault: GELU instead of GPT-2's approximation", "eager": "Healthy: eager attention, not SDPA"}
    lines = screen.split("\nwhat else differs")[0].rstrip()
    about = f"`trueline compare {name} ref0`: exit code {code}, {cpu_s:.1f} s of CPU."
    return f"## {what[name]}\n\n{about}\n\n```text\n{lines}\n```"


if __name__ == "__main__":
    main()
