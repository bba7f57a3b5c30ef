"""The process beside training looks once more when training is killed, and ends by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from tests.synthetic_runs import write_run

KILLED = """
import os, sys
from trueline.sinks.side_process import Settings, start
sinks = ("jsonl:" + sys.argv[2], "jsonl:/proc/nowhere/live.jsonl")
beside = start(Settings(sys.argv[1], 0, sinks, None, 3, sends_numbers=True), [])
sys.stdout.write(str(beside._process.pid))
sys.stdout.flush()
os._exit(9)
"""


def same_samples(step, rank, row):
    row["sample_digests"] = [step + 1]


def test_what_was_found_reaches_the_sinks_when_training_was_killed(tmp_path):
    run, lines = write_run(tmp_path / "run", num_ranks=2, change=same_samples), tmp_path / "live.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, run, lines], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    while os.path.exists(f"/proc/{done.stdout}"):  # the time-out of the test is its limit
        time.sleep(0.05)
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert "duplicate-data" in {line["code"] for line in told if line["kind"] == "finding"}
    assert {line["step"] for line in told if line["kind"] == "numbers"} == set(range(40))
