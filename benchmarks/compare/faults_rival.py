"""What msProbe says of two of its dumps: by its table, and by its analysis of the first difference."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PARTS = (".input", ".output", ".parameters", ".kwargs")


def in_child(fn: Callable[..., object], *args: Any, log: Path) -> None:
    """Call ``fn`` in a process forked from this one, which has imported everything and keeps its silence."""
    process = multiprocessing.get_context("fork").Process(target=_quietly, args=(log, fn, args))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"{fn.__name__} failed:\n{log.read_text(errors='replace')[-2000:]}")


def _quietly(log: Path, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    fn(*args)


def step_of(dump: Path) -> Path:
    """The directory of its step, with the one process's directory named as that of a rank: both sides must pair."""
    step = dump / "step0"
    for process in step.glob("proc*"):
        process.rename(step / "rank0")
    return step


def compare_dumps(dump: Path, golden: Path, out: Path) -> None:
    """``msprobe compare`` of two files: a table of every value into ``out``, as CSV."""
    from msprobe.pytorch.compare.pt_compare import pt_compare

    out.mkdir()
    files = [str(step_of(each) / "rank0" / "dump.json") for each in (dump, golden)]
    pt_compare({"npu_path": files[0], "bench_path": files[1], "is_print_compare_log": False}, str(out))


def analyze_dumps(dump: Path, golden: Path, out: Path) -> None:
    """``msprobe compare --diff_analyze`` of two steps: JSON into ``out``, which has no file where it finds nothing."""
    from msprobe.core.compare.find_first.analyzer import DiffAnalyzer

    DiffAnalyzer(str(step_of(dump)), str(step_of(golden)), str(out)).analyze()


def first_flagged(out: Path) -> str:
    """The call of the first row of the table whose result is not ``pass``; '' where all pass."""
    with next(out.glob("*.csv")).open(encoding="utf-8-sig", newline="") as table:
        name = next((row["NPU Name"] for row in csv.DictReader(table) if row["Result"] != "pass"), "")
    ends = [name.index(part) for part in _PARTS if part in name]
    return name[: min(ends)] if ends else name


def first_difference(out: Path) -> str:
    """The call that the analysis names; '' where it names none."""
    for path in out.glob("diff_analyze_*.json"):
        for nodes in json.loads(path.read_text()).values():
            for node in nodes:
                return str(node["op_name"])
    return ""
