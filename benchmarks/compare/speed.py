"""How long `trueline compare` takes beside `msprobe compare`, on what both recorded of the same step.

    python -m benchmarks.compare.speed [--rounds 3] [--part statistics|tensors] [--folder DIR]

A step of a Llama is recorded twice by each tool, once with one weight matrix times 1.001, so that most values differ.
Then the tools take turns: msProbe on its two dumps, Trueline on its two Runs, and Trueline on the two dumps imported;
each in a process of its own, forked when all is imported, from opening the files to a table of all values as CSV. Time
is CPU time of the process and of those that it starts; the peak is by how much memory of the process itself grows,
without files that are mapped into it.
Needs msProbe: pip install -e '.[bench]'.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  the first optimizer step would import it in every child
from benchmarks.compare.faults_rival import compare_dumps, in_child
from benchmarks.compare.trainings.speed_recording import SIZES, Size, record
from benchmarks.page import arguments, line, table

COLUMNS = ("compared", "by", "values", "CPU s, least", "of each round", "wall s, least", "peak MiB", "times faster")
SMALL_BYTES = 16 * 2**20
"""Of ``max_bytes``, to show that memory is bounded."""
MIB = 2**20
EVERY_S = 0.005


def main() -> None:
    """Record, let the tools take turns, print a table."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--part", choices=SIZES, action="append")
    parser.add_argument("--folder", type=Path, help="an empty directory on a disk with 4 GB")
    chosen = parser.parse_args()
    if importlib.util.find_spec("msprobe") is None:
        sys.exit("msProbe is not installed. Install the version that is compared with: pip install -e '.[bench]'.")
    import msprobe.pytorch.compare.pt_compare  # noqa: F401  here, so that no child has to
    import transformers.models.llama.modeling_llama  # noqa: F401

    import trueline.comparison.compare
    import trueline.render.comparison.compare_csv  # noqa: F401

    print(table(COLUMNS, []), flush=True)
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        for part in chosen.part or SIZES:
            _measure(SIZES[part], Path(folder) / part, chosen.rounds)


def _measure(size: Size, folder: Path, rounds: int) -> None:
    _record(size, folder)
    log = folder / "log"
    sides = {
        "msProbe": partial(_by_msprobe, folder),
        "Trueline, its Runs": partial(_by_trueline, folder / "bad/run", folder / "ref/run", None),
        "Trueline, the dumps imported": partial(_by_trueline, folder / "bad/imported", folder / "ref/imported", None),
        f"Trueline, its Runs, max_bytes {SMALL_BYTES // MIB} MiB": partial(
            _by_trueline, folder / "bad/run", folder / "ref/run", SMALL_BYTES
        ),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for round_ in range(rounds):
        for name, work in sides.items():
            out = folder / f"{round_}-{len(found[name])}-{list(sides).index(name)}"
            in_child(_timed, work, out, log=log)
            found[name].append(json.loads((out.parent / f"{out.name}.json").read_text()))
            print(f"{size.name}: {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    theirs = min(one["cpu_s"] for one in found["msProbe"])
    for name, all_rounds in found.items():
        best = min(one["cpu_s"] for one in all_rounds)
        every = " ".join(f"{one['cpu_s']:.2f}" for one in all_rounds)
        wall, peak = min(one["wall_s"] for one in all_rounds), max(one["peak_bytes"] for one in all_rounds)
        cells = [size.name, name, f"{all_rounds[0]['rows']:,.0f}", f"{best:.2f}", every, f"{wall:.2f}"]
        print(line([*cells, f"{peak / MIB:,.0f}", f"{theirs / best:.1f}"]), flush=True)


def _record(size: Size, folder: Path) -> None:
    folder.mkdir()
    for name, changed in (("ref", False), ("bad", True)):
        for tool in ("msprobe", "trueline"):
            in_child(record, tool, size, folder / f"{name}-{tool}", changed, log=folder / "log")
        (folder / name).mkdir()
        shutil.move(folder / f"{name}-trueline" / "run", folder / name / "run")
        shutil.move(folder / f"{name}-msprobe" / "msprobe", folder / name / "dump")
        # In a child as well: memory that this process has had would be there for the children to use again.
        in_child(_import, folder / name / "dump", folder / name / "imported", log=folder / "log")
        num_bytes = sum(path.stat().st_size for path in (folder / name / "dump").rglob("*") if path.is_file())
        print(f"{size.name}: {name}: the dump has {num_bytes / 1e6:,.1f} MB", file=sys.stderr, flush=True)


def _import(dump: Path, out: Path) -> None:
    from trueline.cli.verbs.import_ import measure
    from trueline.store.importers.msprobe.dumps import DumpOptions, import_msprobe

    options = DumpOptions(measure=measure(), model="LlamaForCausalLM", optimizer="SGD", tensors=True)
    import_msprobe(str(dump), str(out), options)


def _by_msprobe(folder: Path, out: Path) -> int:
    compare_dumps(folder / "bad" / "dump", folder / "ref" / "dump", out)
    with next(out.glob("*.csv")).open(encoding="utf-8-sig", newline="") as table:
        return sum(1 for _ in csv.reader(table)) - 1


def _by_trueline(run: Path, ref: Path, max_bytes: int | None, out: Path) -> int:
    from trueline.comparison.compare import compare
    from trueline.render.comparison.compare_csv import write_csv

    limit: dict[str, Any] = {} if max_bytes is None else {"max_bytes": max_bytes}
    comparison = compare(run, ref, **limit)
    out.mkdir()
    write_csv(out / "rows.csv", comparison.rows)
    return len(comparison.rows)


def _timed(work: Callable[[Path], int], out: Path) -> None:
    """Do ``work`` and leave its numbers beside ``out``."""
    with _Peak() as peak:
        before, begin = _cpu_s(), time.perf_counter()
        rows = work(out)
        wall_s, cpu_s = time.perf_counter() - begin, _cpu_s() - before
    numbers = {"rows": rows, "wall_s": wall_s, "cpu_s": cpu_s, "peak_bytes": peak.grown_bytes}
    (out.parent / f"{out.name}.json").write_text(json.dumps(numbers))


class _Peak:
    """By how much anonymous memory grew at most while this was open, looked at every few milliseconds."""

    grown_bytes = 0

    def __enter__(self) -> _Peak:
        self._before, self._over = _anonymous_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(EVERY_S):
            self.grown_bytes = max(self.grown_bytes, _anonymous_bytes() - self._before)


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
