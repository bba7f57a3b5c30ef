"""Drill small trainings under four frameworks, and write the page: which faults are seen, when, by what, at which rank.

python -m benchmarks.trials.drills [--jobs ddp,trainer,accelerate,lightning] [--ranks N] [--steps N] [--long N]
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import page
from tests.warm_engine import WarmEngine
from tests.warm_python import warm_python

from trueline.demo import ranks
from trueline.trials.frame.asked import Asked
from trueline.trials.frame.engines.local import Local
from trueline.trials.start import prepared

JOB = Path(__file__).with_name("drilled_jobs.py")
RESULTS = Path(__file__).with_name("drills")
"""What was answered, job by job."""
PRELOADED = ("transformers.trainer", "transformers.models.gpt2.modeling_gpt2", "accelerate", "lightning.pytorch")
WHAT = {
    "ddp": "DistributedDataParallel by hand, a classifier",
    "trainer": "Trainer of transformers, GPT-2 of two layers",
    "accelerate": "a loop with Accelerate, GPT-2 of two layers",
    "lightning": "Trainer of Lightning, a classifier",
}
FORECAST = ("worker-loss-outlier", "worker-scale", "worker-grad-norm-outlier", "schedule-passed")
"""Codes of what forecasts are of."""
_FORECASTS = """
Forecasts, and what `check` then said. Of larger losses: the steps until a detector of losses or gradient norms alarms,
from the undisturbed run alone, at the noise of its steps; *seen so* is by these detectors. Of a cosine of half the
length: the update past which it climbs again. Forecasts are the middle of five draws, and take losses for what they
were in the short run: where they go on falling, as in 1000 steps, a factor of 1.02 is never seen so. Up to commit
dda2026f they were drawn from all steps of the undisturbed run, since then from those after the fault begins: of the
Trainer's run 81 and 23 in place of 64 and 23.
""".strip()

_ABOUT = """
`trueline trial drill` on small trainings (`benchmarks/trials/drilled_jobs.py`) of two ranks on a CPU, at its defaults:
each fault begins after 20 of 100 steps, on rank 1, under the plan of `trueline run`. Two more runs of each job, one
undisturbed and one with all in place and nothing changed, are healthy controls.

A cell has the steps after which `check` says something for the first time, its code, and ✓ where what it says by the
end names rank 1 and no other, ✗ where it names another; else it names no rank, which of two it seldom can.
*never*: not in the steps that are left. *not planted*: the job lacks what the fault is of.
""".strip()


def main() -> None:
    """Drill the jobs that are asked for ('': none), keep what was answered, and write the page of all that is kept."""
    asked = page.arguments(__doc__, jobs=",".join(WHAT), ranks=2, steps=100, long=1000).parse_args()
    for name in filter(None, asked.jobs.split(",")):
        facts = page.facts(f"python -m benchmarks.trials.drills --jobs {name}")
        drills = {name: drilled(name, num_ranks=asked.ranks, steps=asked.steps)}
        if name == "ddp":  # what was forecast of it, in runs that are long enough
            long = drilled(name, asked.long, num_ranks=asked.ranks, steps=asked.long, only=("loss-1.02",))
            short = drilled(name, asked.steps, num_ranks=asked.ranks, steps=asked.steps - 3, only=("schedule",))
            drills |= {f"{name}, {asked.long} steps": long, f"{name}, with a schedule of {asked.steps} steps": short}
        RESULTS.mkdir(exist_ok=True)
        text = json.dumps({"facts": facts, "drills": drills}, indent=1) + "\n"
        (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    kept = {name: json.loads(path.read_text()) for name in WHAT if (path := RESULTS / f"{name}.json").exists()}
    when = [
        f"- `{facts['command']}`, {facts['machine']}, commit {facts['commit']}, {facts['date']}"
        for facts in (entry["facts"] for entry in kept.values())
    ]
    every = {key: document for entry in kept.values() for key, document in entry["drills"].items()}
    documents = {name: every[name] for name in kept}
    head = "\n".join(["# Trials: drills", "", *when])
    parts = (faults(documents), controls(documents), forecasts(every))
    page.write(__file__, head, _ABOUT, *parts, name="drills.md")


def drilled(
    name: str, length: int | None = None, *, num_ranks: int, steps: int, only: Sequence[str] = ()
) -> Mapping[str, Any]:
    """The document of a drill of one job, whose schedule has another ``length`` where that is given."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(ranks, "PRELOADED", (*ranks.PRELOADED, *PRELOADED)):
        place = Path(folder)
        with warm_python(place) as python:
            engine = WarmEngine(python, place / "kept", world_size=num_ranks)
            with mock.patch.object(Local, "start", lambda local, *args, **more: engine.start(*args, **more)):
                words = (python, str(JOB), name, *([] if length is None else [str(length)]))
                asked = Asked("drill", words, steps=steps, out=str(place / "drill"), timeout=600.0)
                answer = prepared(asked, only=only).trial.answer()
    return {key: value for key, value in answer.to_json().items() if key in ("says", "table", "runs")}


def faults(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """A row a fault, a column a job."""
    rows_of = {name: document.get("table", ()) for name, document in documents.items()}
    first = next(rows for rows in rows_of.values() if rows)
    cells = [
        {"fault": row["fault"], **{WHAT[name]: _cell(rows[number]) for name, rows in rows_of.items() if rows}}
        for number, row in enumerate(first)
    ]
    return page.records(cells)


def _cell(row: Mapping[str, Any]) -> str:
    if row["state"]["is"] == "not planted":
        return f"not planted: {row['otherwise']}"
    if row["state"]["is"] == "not seen":
        return "never"
    mark = {True: " ✓", False: " ✗", None: ""}[row["names_rank"]]
    return f"{row['state']['after']}: `{row['by'].split(',')[0].split(' and ')[0]}`{mark}"


def controls(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """What the healthy runs show."""
    shown = [
        f"{name}: {line}" for name, document in documents.items() for line in document["says"] if "nothing" in line
    ]
    number = 2 * len(documents)
    early = sum(bool(row["before"]) for document in documents.values() for row in document.get("table", ()))
    silent = f"Of {number} healthy runs {number - len(shown)} are without a finding."
    line = f"{silent} Sightings before a fault began: {early}."
    return "\n".join([line, *(f"- {text}" for text in shown)])


def forecasts(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """What was forecast, beside what `check` then said."""
    rows = [
        {
            "job": name,
            "fault": row["fault"],
            "forecast": row["forecast"] or "more than 16,384",
            "seen so": _first(row["sightings"], row["planted"]["step"], FORECAST),
            "seen by anything": _first(row["sightings"], row["planted"]["step"], None),
            "of steps": row["state"]["steps"],
        }
        for name, document in documents.items()
        for row in document.get("table", ())
        if row["state"]["name"].startswith("loss") or row["forecast"]
    ]
    return f"{_FORECASTS}\n\n{page.records(rows)}"


def _first(sightings: Sequence[Mapping[str, Any]], began: int, codes: Sequence[str] | None) -> str:
    steps = [entry["steps"] - began for entry in sightings if codes is None or entry["code"] in codes]
    return str(min(steps)) if steps else "not seen"


if __name__ == "__main__":
    main()
