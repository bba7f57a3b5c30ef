"""Hold layouts of small jobs to each other by `trial layouts`, healthy and with a fault, and write the page.

python -m benchmarks.layouts.agree [--only TITLE]
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import page
from tests.warm_python import warm_python

_ABOUT = """
Each table is one call of `trueline trial layouts`, with the reference as its first arm, on CPUs, in float32.
*planted* is the fault of an arm; *says* what the trial says: *agrees* with the largest difference, in
times of what rounding makes (8 are allowed), or the first place. ✓ is right, ✗ is not.
""".strip()

_TRANSFORMER, _FRAMEWORKS = "tests/layouts_job.py", "benchmarks/layouts/frameworks_job.py"
_AGREES = "agrees"


@dataclass(frozen=True)
class Layout:
    """An arm: words of the job, what was planted in words, and what the trial is to say of it."""

    name: str
    words: str
    planted: str = ""
    expected: str = _AGREES


@dataclass(frozen=True)
class Table:
    """One trial."""

    title: str
    job: str
    arms: tuple[Layout, ...]
    steps: int = 6


TABLES = (
    Table(
        "A transformer with experts",
        _TRANSFORMER,
        (
            Layout("single", "single"),
            Layout("dp2", "dp --ranks 2"),
            Layout("dp4", "dp --ranks 4"),
            Layout("accum", "accum"),
            Layout("fsdp2", "fsdp2 --ranks 2"),
            Layout("cp", "cp --ranks 2"),
            Layout("ep", "ep --ranks 2"),
            Layout(
                "shard-norm",
                "fsdp2 --ranks 2 --fault shard-norm",
                "each rank clips by the norm of its shard",
                "backward: head.weight",
            ),
            Layout(
                "wrong-group",
                "dp --ranks 4 --fault wrong-group",
                "ranks average in pairs and not over all",
                "backward: head.weight",
            ),
            Layout(
                "mask-off",
                "cp --ranks 2 --fault mask-off",
                "the causal mask of rank 0 is off by a block",
                "forward: blocks.0.attention.out",
            ),
            Layout(
                "expert-dropped",
                "ep --ranks 2 --fault expert-dropped",
                "what one of two experts returns is dropped",
                "forward: blocks.1.mlp",
            ),
            Layout(
                "averaged-twice",
                "dp --ranks 2 --fault averaged-twice",
                "the loss is divided by the ranks, and DDP averages",
                "forward: the loss",
            ),
            Layout(
                "accumulated-twice",
                "accum --fault averaged-twice",
                "the loss is divided twice by the micro-batches",
                "forward: the loss",
            ),
            Layout("other-seed", "dp --ranks 2 --fault other-seed", "weights of another seed", "not the same job"),
            Layout("other-data", "dp --ranks 2 --fault other-data", "samples of another seed", "not the same job"),
        ),
    ),
    Table(
        "The same without experts, cut",
        _TRANSFORMER,
        (
            Layout("dense", "single --no-experts"),
            Layout("tp", "tp --ranks 2"),
            Layout("sp", "sp --ranks 2"),
            Layout("pp", "pp --ranks 2"),
            Layout("fsdp2", "fsdp2 --ranks 2 --no-experts"),
            Layout(
                "bias-per-rank",
                "tp --ranks 2 --fault bias-per-rank",
                "a bias is added once per tensor-parallel rank",
                "forward: blocks.0.attention.out",
            ),
            Layout(
                "norm-not-reduced",
                "sp --ranks 2 --fault norm-not-reduced",
                "gradients of norms on pieces of the sequence are not added up",
                "backward: norm.bias",
            ),
            Layout(
                "tp-shard-norm",
                "tp --ranks 2 --fault shard-norm",
                "each rank clips by the norm of its pieces",
                "backward: head.weight",
            ),
            Layout(
                "no-max",
                "tp --ranks 2 --fault no-max",
                "cross-entropy over a cut vocabulary without its maximum, where logits are small: harmless",
            ),
            Layout(
                "own-max",
                "tp --ranks 2 --fault own-max",
                "each rank takes its own maximum off",
                "forward: the loss",
            ),
            Layout(
                "micro-not-divided",
                "pp --ranks 2 --fault micro-not-divided",
                "losses of micro-batches are added up; clipping hides it",
            ),
        ),
    ),
    Table(
        "The same with logits of hundreds",
        _TRANSFORMER,
        (
            Layout("dense", "single --no-experts --sharp"),
            Layout("tp", "tp --ranks 2 --sharp"),
            Layout(
                "no-max",
                "tp --ranks 2 --sharp --fault no-max",
                "cross-entropy over a cut vocabulary without its maximum",
                "forward: the loss",
            ),
        ),
    ),
    Table(
        "Trainer of transformers, a tiny Llama",
        _FRAMEWORKS,
        (
            Layout("one", "hf"),
            Layout("two", "hf --ranks 2 --per-rank 4"),
            Layout("accumulated", "hf --accumulate 2 --per-rank 4"),
            Layout(
                "divided",
                "hf --ranks 2 --per-rank 4 --fault divided",
                "compute_loss divides by the ranks, as DDP does",
                "backward: lm_head.weight",
            ),
        ),
    ),
    Table(
        "Accelerate, a loop of one's own",
        _FRAMEWORKS,
        (
            Layout("ranks", "accelerate --ranks 2 --per-rank 4"),
            Layout("accumulated", "accelerate --accumulate 2 --per-rank 4"),
            Layout("one", "accelerate"),
            Layout(
                "divided",
                "accelerate --accumulate 2 --per-rank 4 --fault divided",
                "the script divides the loss that accumulate() divides",
                "forward: the loss",
            ),
            Layout(
                "unsharded",
                "accelerate --ranks 2 --per-rank 4 --fault unsharded",
                "the loader was not prepared: ranks read the same samples",
                "not the same job",
            ),
        ),
    ),
    Table(
        "Lightning",
        _FRAMEWORKS,
        (
            Layout("one", "lightning"),
            Layout("accumulated", "lightning --accumulate 2 --per-rank 4"),
            Layout("ranks", "lightning --ranks 2 --per-rank 4 --fault own-sampler"),
            Layout(
                "shuffled",
                "lightning --ranks 2 --per-rank 4",
                "Lightning's sampler for several ranks shuffles, though shuffle=False was asked for",
                "not the same job",
            ),
            Layout(
                "divided",
                "lightning --accumulate 2 --per-rank 4 --fault divided",
                "training_step divides the loss that the trainer divides",
                "forward: the loss",
            ),
        ),
    ),
)


def main() -> None:
    """Run all trials, and write the page."""
    asked = page.arguments(__doc__, only="").parse_args()
    head = page.head("Layouts of one job, and faults of parallelism", command="python -m benchmarks.layouts.agree")
    parts: list[str] = []
    num_right = num_arms = 0
    with tempfile.TemporaryDirectory() as folder, warm_python(Path(folder)) as python:
        for number, table in enumerate(TABLES):
            if asked.only and asked.only not in table.title:
                continue
            rows = _rows(table, python, Path(folder) / f"trial-{number}")
            num_right += sum(row["right"] == "✓" for row in rows)
            num_arms += len(rows)
            parts.append(f"## {table.title}\n\n`{table.job}`\n\n{page.records(rows)}")
            print(parts[-1], flush=True)
    summary = f"{num_right} of {num_arms} arms are judged as expected."
    if not asked.only:
        page.write(__file__, head, _ABOUT, summary, *parts, name="agree.md")


def _rows(table: Table, python: str, out: Path) -> list[dict[str, Any]]:
    arms = [word for arm in table.arms for word in ("--arm", f"{arm.name}={python} {table.job} {arm.words}")]
    trueline = str(Path(python).with_name("trueline"))
    command = [trueline, "trial", "layouts", "--out", str(out), "--steps", str(table.steps), "--json", *arms]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if not done.stdout.startswith("{"):
        raise SystemExit(f"{table.title}: {done.stderr or done.stdout}")
    answer = json.loads(done.stdout)
    where = dict(text.partition(": ")[::2] for text in answer["credible"])
    return [_row(arm, answer["says"], where) for arm in table.arms[1:]]


def _row(arm: Layout, says: list[str], where: dict[str, str]) -> dict[str, Any]:
    line = next((text for text in says if text.startswith(f"{arm.name} ")), "no line")
    begin, _, rest = line.partition(": ")
    if arm.name in where:
        verdict, shown = where[arm.name], f"{where[arm.name]}: {rest}"
    elif " agrees with " in begin:
        verdict, shown = _AGREES, f"agrees: {rest}"
    else:
        verdict = "not the same job" if "is not the same job" in begin else "undecided"
        shown = f"{verdict}: {rest}"
    right = "✓" if verdict == arm.expected else "✗"
    return {"arm": f"`{arm.words}`", "planted": arm.planted or "–", "right": right, "says": shown.replace("|", "/")}


if __name__ == "__main__":
    main()
