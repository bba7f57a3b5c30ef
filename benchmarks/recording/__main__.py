"""Measure what recording costs beside msProbe and rewrite the tables in benchmarks/recording/README.md.

    python -m benchmarks.recording [--rounds 12] [--threads 1] [--part NAME ...]

Each thing that is recorded is a part. For each, one process trains bare, one under msProbe and one under Trueline;
they take turns of a few steps in rotating order, and only the one whose turn it is runs. Times are compared round by
round. Needs msProbe: pip install -e '.[bench]'.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.page import arguments, head, write
from benchmarks.recording import tables
from benchmarks.recording.measure import Measured, measure
from benchmarks.recording.model import BATCH, INNER, LAYERS, LENGTH, VOCAB, WIDTH
from benchmarks.recording.parts import NOT_SELECTED, RECORDED, Part

STEPS = {"bare": 4, "msprobe": 2, "trueline": 2}
STEPS_NOT_SELECTED = dict.fromkeys(STEPS, 5)
ROUNDS_NOT_SELECTED = 3
"""Times as many rounds there: a hundredth is to be told from none."""

ADDED = """Median over rounds of the step time over that of the unmonitored step of the same round, on the clock and \
of CPU time (which has what threads do until the process is idle again). What Trueline adds to the unmonitored step is \
given as a share of what msProbe adds, with quartiles; the aim is met where the larger of both shares is within it. In \
it are the signals of gradients that Trueline also takes at every one of these steps, as at the start of any run."""

LEFT = """Everything that was written, over the steps that were recorded. A value is a tensor that has an entry of \
its own, and each tool decides which ones those are: of structure msProbe writes none, and otherwise it leaves out \
reshapes and the like (`risk_level` is `FOCUS` unless set)."""

MEMORY = "Peak resident memory of the process, with the libraries that each tool imports."

AWAY = "Both tools are attached with modules and ops, at steps that are not selected. The aim is 1.01."


def main() -> None:
    """Run the chosen parts, and write the page if they are all."""
    parts = {part.name: part for part in (*RECORDED, NOT_SELECTED)}
    parser = arguments(__doc__, rounds=12)
    parser.add_argument("--threads", type=int, default=1, help="that compute in each process")
    parser.add_argument("--part", choices=parts, action="append")
    chosen = parser.parse_args()
    if importlib.util.find_spec("msprobe") is None:
        sys.exit("msProbe is not installed. Install the version that is compared with: pip install -e '.[bench]'.")
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)  # for the processes that train
    with tempfile.TemporaryDirectory() as folder:
        measured = [
            _take(parts[name], rounds=chosen.rounds, folder=Path(folder) / str(number))
            for number, name in enumerate(chosen.part or parts)
        ]
    text = _page(measured, rounds=chosen.rounds)
    if chosen.part:
        print(text)
    else:
        command = f"python -m benchmarks.recording --rounds {chosen.rounds} --threads {chosen.threads}"
        title = f"{head('What recording costs', command=command)}\n- {_versions()}"
        write(__file__, title, text)


def _take(part: Part, *, rounds: int, folder: Path) -> Measured:
    print(f"measuring {part.name} …", file=sys.stderr, flush=True)
    if part is NOT_SELECTED:
        return measure(part, rounds=ROUNDS_NOT_SELECTED * rounds, steps=STEPS_NOT_SELECTED, folder=folder)
    return measure(part, rounds=max(2, round(part.rounds_share * rounds)), steps=STEPS, folder=folder)


def _page(measured: list[Measured], *, rounds: int) -> str:
    recorded = [one for one in measured if one.part is not NOT_SELECTED]
    away = [one for one in measured if one.part is NOT_SELECTED]
    sections = [
        f"A Llama of {LAYERS} layers, {WIDTH} wide, {INNER} inside, {VOCAB:,} words, with random weights; {BATCH} x "
        f"{LENGTH} tokens, float32, AdamW. Forward pass, backward pass and update are recorded. {rounds} rounds "
        f"(half as many with tensors, {ROUNDS_NOT_SELECTED} times as many where no step is selected); "
        f"{tables.bare_step(measured)}."
    ]
    if recorded:
        sections += ["## Time", ADDED, tables.added_time(recorded)]
        sections += ["## What is left on disk", LEFT, tables.what_is_left(recorded)]
        sections += ["## Memory", MEMORY, tables.memory(recorded)]
    for one in away:
        sections += ["## Steps that are not selected", AWAY, tables.not_selected(one)]
    return "\n\n".join(sections)


def _versions() -> str:
    found = [f"{name} {importlib.metadata.version(name)}" for name in ("mindstudio-probe", "transformers")]
    return ", ".join(found)


if __name__ == "__main__":
    main()
