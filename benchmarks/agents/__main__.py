"""Sixty tasks for a coding agent: what is wrong with a job, and where do two jobs part? With Trueline, and with the
job's log alone.

    python -m benchmarks.agents make DIR                    # trains the tasks (about ten minutes)
    python -m benchmarks.agents read DIR ARM TASK WORDS...  # what an agent calls to look at something
    python -m benchmarks.agents answer DIR ARM TASK JSON    # what it calls to answer
    python -m benchmarks.agents alone DIR                   # answers what the first line of Trueline says
    python -m benchmarks.agents score DIR                   # the table

ARM is a name of the agent's run that begins with `log` or `trueline`. In the first, WORDS are one of cat, head, tail,
grep, wc and `log.txt`; in the second also a command of `trueline` that reads, in which the Run is called `run` and that
which it is compared with `ref`. Answers are {"cause": SLUG, "ranks": [0]} for a job, where SLUG is one of `trueline
explain` (causes), `healthy` or `cannot-tell`; and {"phase": "fwd", "name": "blocks.1.mlp.linear"} for a pair, where
phase is fwd, bwd, grad, param or opt, or {"cause": "healthy"} or {"cause": "cannot-tell"}. An agent is told its own
arm, these lines, and nothing about the tasks; truth.json is not its to read. Places in Trueline's own sources, which
say what was planted there, are shown as `train.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.agents.tasks import CANNOT_TELL, HEALTHY, Task, make, register_all
from benchmarks.compare.corpus.kit import FAULTS
from benchmarks.compare.corpus.verdict import EXACT, MODULE, Names, judged, said
from benchmarks.page import arguments, head, records, write
from gallery.entry import all_entries

import trueline
from trueline.judge.causes.library import known_causes

READERS = ("cat", "head", "tail", "grep", "wc")
VERBS = ("check", "diagnose", "facts", "compare", "diff", "explain", "info", "schema", "wait")
_PLACES = re.compile(r"[\w/.-]*\b\w+\.py(?=:\d)|[\w/.-]*(?:gallery|benchmarks)/[\w/]+\.py")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("action", choices=("make", "read", "answer", "alone", "score"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("arm", nargs="?", default="")
    parser.add_argument("task", nargs="?", default="")
    options, words = parser.parse_known_args()
    if options.action == "make":
        make(options.folder, num_jobs=(34, 6), num_pairs=(16, 4), say=lambda line: print(line, file=sys.stderr))
    elif options.action == "alone":
        alone(options.folder)
    elif options.action == "score":
        score(options.folder)
    elif not re.match("log|trueline", options.arm) or not (options.folder / "tasks" / options.task).is_dir():
        sys.exit(f"There is no arm '{options.arm}' or no task '{options.task}'. An arm begins with log or trueline.")
    elif options.action == "read":
        sys.stdout.write(read(options.folder, options.arm, options.task, words))
    else:
        answer(options.folder, options.arm, options.task, " ".join(words))


def read(folder: Path, arm: str, task: str, words: Sequence[str]) -> str:
    """What the command prints; how long it is, and when it was asked for, is kept."""
    place = folder / "tasks" / task
    allowed = words and (
        (words[0] in READERS and not any("run" in word or "ref" in word or ".." in word for word in words[1:]))
        or (arm.startswith("trueline") and words[0] == "trueline" and words[1:2] and words[1] in VERBS)
    )
    if not allowed:
        return f"Not a command of this arm. One of: {', '.join(READERS)} on log.txt" + (
            f"; trueline {' | '.join(VERBS)} on run and ref.\n" if arm.startswith("trueline") else ".\n"
        )
    command = [sys.executable, "-m", "trueline", *words[1:]] if words[0] == "trueline" else list(words)
    environ = os.environ | {"COLUMNS": "120"}
    done = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, check=False)
    text = _PLACES.sub("train.py", done.stdout + done.stderr)
    _keep(folder, arm, {"task": task, "words": list(words), "bytes": len(text.encode()), "at": time.time()})
    return text


def answer(folder: Path, arm: str, task: str, text: str) -> None:
    """Keep an answer; one that cannot be one is refused."""
    document = json.loads(text)
    causes = {cause.slug for cause in known_causes()} | {HEALTHY, CANNOT_TELL}
    if not isinstance(document, dict) or not (document.get("cause") in causes or document.get("name")):
        sys.exit("An answer is {'cause': SLUG, 'ranks': [...]} or {'phase': PHASE, 'name': NAME}.")
    _keep(folder, arm, {"task": task, "answer": document, "at": time.time()})


def alone(folder: Path) -> None:
    """Answer all tasks by what `trueline diagnose` and `compare` say first, without an agent."""
    for task in tasks_of(folder):
        place = folder / "tasks" / task.name
        document = _of_job(place) if task.kind == "job" else _of_pair(place)
        _keep(folder, "trueline, no agent", {"task": task.name, "answer": document, "at": time.time()})


def _of_job(place: Path) -> dict[str, Any]:
    diagnosis = trueline.diagnose(place / "run")
    if not diagnosis.report.incidents:
        return {"cause": CANNOT_TELL if diagnosis.report.exit_code == 3 else HEALTHY}
    first = diagnosis.of(0)[0]
    ranks = list(diagnosis.report.accused(0))
    return {"cause": first.cause if first.standing in ("suspected", "supported") else CANNOT_TELL, "ranks": ranks}


def _of_pair(place: Path) -> dict[str, Any]:
    answer = said(place / "run", place / "ref")
    if answer["exit"] != 1 or not answer["sites"]:
        return {"cause": HEALTHY if answer["exit"] == 0 else CANNOT_TELL}
    _, _, phase, rest = answer["sites"][0].split("/", 3)
    return {"phase": phase, "name": rest.rpartition("#")[0]}


def _keep(folder: Path, arm: str, entry: dict[str, Any]) -> None:
    with (folder / f"{arm}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def is_right(task: Task, document: dict[str, Any]) -> bool:
    """Whether an answer names the cause, or the place or its module, or rightly says that there is none."""
    if task.healthy or document.get("cause") in (HEALTHY, CANNOT_TELL):
        return task.healthy and document.get("cause") == HEALTHY
    if task.kind == "job":
        return document.get("cause") in task.causes
    phase = {"weight": "param"}.get(document.get("phase", ""), document.get("phase", ""))
    site = f"0.0/r0/{phase}/{document.get('name', '')}#0:out0"
    of_site = {"exit": 1, "code": "", "sites": [site], "claim": ""}
    names = Names.from_json(list(task.names))
    return judged(of_site, FAULTS[task.entry].truth, "mix", names) in (EXACT, MODULE)


def tasks_of(folder: Path) -> list[Task]:
    """All, with what is right."""
    documents = json.loads((folder / "truth.json").read_text())
    listed = ("causes", "ranks", "names")
    return [Task(**{**document, **{name: tuple(document[name]) for name in listed}}) for document in documents]


def score(folder: Path) -> None:
    """Write the table."""
    register_all()
    tasks = tasks_of(folder)
    rows, paths = [], sorted(folder.glob("*.jsonl"))
    for path in paths:
        entries = _entries(path)
        for kind, healthy in (("job", False), ("job", True), ("pair", False), ("pair", True)):
            of_kind = [task for task in tasks if (task.kind, task.healthy) == (kind, healthy)]
            results = [_result(task, [entry for entry in entries if entry["task"] == task.name]) for task in of_kind]
            answered = [result for result in results if result is not None]
            if answered:
                rows.append({"agent": path.stem, "tasks": _KINDS[kind, healthy], **_row(answered, len(of_kind))})
    details = [
        {"task": task.entry, "right": _truth(task), **{path.stem: _said(task, _entries(path)) for path in paths}}
        for task in tasks
    ]
    write(
        __file__,
        head("Coding agents", command="python -m benchmarks.agents score DIR"),
        records(rows),
        "## Each answer",
        records(details),
    )


def _entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _truth(task: Task) -> str:
    if task.healthy:
        return HEALTHY
    return " or ".join(task.causes or FAULTS[task.entry].truth.at).replace("|", "/")


def _said(task: Task, entries: Sequence[dict[str, Any]]) -> str:
    result = _result(task, [entry for entry in entries if entry["task"] == task.name])
    return "" if result is None else ("" if result["right"] == "yes" else "✗ ") + result["said"]


_KINDS = {
    ("job", False): "what is wrong with a job",
    ("job", True): "a job with nothing wrong",
    ("pair", False): "where two jobs part",
    ("pair", True): "two jobs that agree but for rounding",
}


def _result(task: Task, entries: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Of the last answer; None where there is none."""
    answers = [entry for entry in entries if "answer" in entry]
    if not answers:
        return None
    reads = [entry for entry in entries if "bytes" in entry and entry["at"] <= answers[-1]["at"]]
    document = answers[-1]["answer"]
    began = min((entry["at"] for entry in reads), default=answers[-1]["at"])
    return {
        "right": "yes" if is_right(task, document) else "no",
        "ranks": _blames(task, set(document.get("ranks") or ())),
        "unsure": document.get("cause") == CANNOT_TELL,
        "said": document.get("cause") or f"{document.get('phase')} {document.get('name')}",
        "reads": len(reads),
        "bytes": sum(entry["bytes"] for entry in reads),
        "minutes": (answers[-1]["at"] - began) / 60,
    }


def _blames(task: Task, ranks: set[int]) -> bool | None:
    """Whether these ranks are to blame; of a fault of all ranks nobody is. None without a fault."""
    if not task.ranks:
        return None
    (world_size,) = (entry.world_size for entry in all_entries() if entry.id == task.entry)
    return ranks == set(task.ranks) or (not ranks and len(task.ranks) == world_size)


def _row(results: Sequence[dict[str, Any]], total: int) -> dict[str, Any]:
    blamed = [result["ranks"] for result in results if result["ranks"] is not None and result["right"] == "yes"]
    return {
        "answered": f"{len(results)} of {total}",
        "right": sum(result["right"] == "yes" for result in results),
        "cannot tell": sum(result["unsure"] for result in results),
        "wrong": sum(result["right"] == "no" and not result["unsure"] for result in results),
        "of these ranks right": f"{sum(blamed)} of {len(blamed)}" if blamed else "",
        "commands, median": _median([result["reads"] for result in results]),
        "bytes read, median": _median([result["bytes"] for result in results]),
        "minutes, median": f"{_median([result['minutes'] for result in results]):.1f}",
    }


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
