"""What msProbe 26.2 says of the same faults: the first row of its table that does not pass, and its first difference.

The first step of each training is dumped (level mix), with statistics or, at ``--depth tensor``, with values. Its names
of calls have no module; the module is taken from the tree of calls that it dumps, and where that has none, a call
counts as right both inside of the model and outside. Its dumps have no settings of the optimizer.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.compare.corpus.cases import Case
from benchmarks.compare.corpus.children import results_of
from benchmarks.compare.corpus.kit import FAMILIES, nothing
from benchmarks.compare.corpus.recording import make, train
from benchmarks.compare.corpus.summary import share
from benchmarks.compare.corpus.verdict import EXACT, SILENT, VERDICTS, Names, judged
from benchmarks.compare.faults_rival import analyze_dumps, compare_dumps, first_difference, first_flagged
from benchmarks.page import table

WAYS = ("msProbe, table", "msProbe, first difference")
_PHASES = {"forward": "fwd", "backward": "bwd", "parameters_grad": "grad"}


def print_rival(cases: list[Case], num_jobs: int) -> None:
    """Dump and judge ``cases``; print how many were named, and each that was asked for."""
    if importlib.util.find_spec("msprobe") is None:
        sys.exit("msProbe is not installed. Install the version that is compared with: pip install -e '.[bench]'.")
    import msprobe.core.compare.find_first.analyzer
    import msprobe.pytorch
    import msprobe.pytorch.compare.pt_compare  # noqa: F401  here, so that no child has to

    with tempfile.TemporaryDirectory(prefix="corpus-rival-") as folder:
        work = Path(folder)
        families = sorted({case.family for case in cases})
        list(results_of([(_reference, (name, cases[0].setting, work)) for name in families], num_jobs, 300))
        results = []
        for result in results_of([(_judged, (case, work)) for case in cases], num_jobs, 300):
            results.append(result)
            print(f"{len(results)}/{len(cases)} {result['verdict']} {result['key']}", file=sys.stderr, flush=True)
    rows = []
    for way in WAYS:
        counts = [sum(each.get(way, each)["verdict"] == verdict for each in results) for verdict in VERDICTS]
        rows.append([way, len(results), *counts, *share(counts[VERDICTS.index(EXACT)], len(results))])
    print(table(["named by", "faults", *VERDICTS, EXACT, "at least"], rows, right=range(1, 11)))
    print("\n".join(["", *(_line(each) for each in results)]))


def _line(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"- {result['key']}: crash; {result['error'].strip().splitlines()[-1]}"
    said = "; ".join(f"{way}: {result[way]['verdict']} `{result[way]['named']}`" for way in WAYS)
    return f"- {result['key']}: {said}"


def _silenced() -> None:
    """No output any more: each dump of msProbe prints a dozen lines."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _reference(family: str, setting: Any, work: Path) -> dict[str, Any]:
    _silenced()
    _dump(work / f"ref-{family}", family, nothing, setting)
    return {"key": family}


def _judged(case: Case, work: Path) -> dict[str, Any]:
    _silenced()
    here, ref = Path(tempfile.mkdtemp(dir=work)), work / f"ref-{case.family}"
    names = _dump(here / "run", case.family, case.change, case.setting)
    compare_dumps(here / "run", ref, here / "table")
    analyze_dumps(here / "run", ref, here / "analysis")
    result: dict[str, Any] = {**case.facts(), "verdict": ""}
    for way, named in zip(WAYS, (first_flagged(here / "table"), first_difference(here / "analysis")), strict=True):
        verdict = _verdict(case, named, here / "run", names) if named else SILENT
        result[way] = {"verdict": verdict, "named": named}
    return {**result, "verdict": " | ".join(result[way]["verdict"] for way in WAYS)}


def _dump(out: Path, family: str, change: Any, setting: Any) -> Names:
    from msprobe.pytorch import PrecisionDebugger

    t = make(FAMILIES[family], change, setting)
    out.mkdir()
    task = "tensor" if setting.depth == "tensor" else "statistics"
    settings = {"task": task, "dump_path": str(out), "rank": [], "step": [], "level": "mix"}
    config = out.parent / f"{out.name}.json"
    config.write_text(json.dumps({**settings, task: {"scope": [], "list": [], "data_mode": ["all"]}}))
    debugger = PrecisionDebugger(config_path=str(config))
    debugger.start(model=t.model)
    train(t, t.model, lambda optimizer: _Watch(debugger), steps=1)
    return Names.of(t.model)


class _Watch:
    """What a training calls, for msProbe."""

    def __init__(self, debugger: Any) -> None:
        self._debugger = debugger

    def step(self, batch: Any) -> Any:
        return contextlib.nullcontext()

    def close(self) -> None:
        self._debugger.stop()
        self._debugger.step()


def _verdict(case: Case, named: str, run: Path, names: Names) -> str:
    said = {"exit": 1, "code": case.fault.truth.codes[0], "claim": "", "sites": _sites(named, run, names)}
    return judged(said, case.fault.truth, case.setting.plan, names)


def _sites(named: str, run: Path, names: Names) -> list[str]:
    """``Functional.gelu.1.forward`` or ``Module.act2.GELU.forward.0`` as ``0.0/r0/fwd/act2.gelu#0:out0``."""
    parts = named.split(".")
    phase = next((short for long, short in _PHASES.items() if long in parts), "fwd")
    if parts[0] == "Module":
        return [f"0.0/r0/{phase}/{_module(named) or names.root}#0:out0"]
    op = parts[1].strip("_") + "_" * (parts[1].endswith("_") and not parts[1].endswith("__"))
    tree = next((json.loads(path.read_text()) for path in run.rglob("construct.json")), {})
    parent = tree.get(named)
    around = [_module(parent)] if parent and parent.startswith("Module.") else [names.root, ""]
    return [f"0.0/r0/{phase}/{'.'.join(filter(None, [each, op]))}#0:out0" for each in around]


def _module(named: str) -> str:
    """``blocks.1.mlp`` of ``Module.blocks.1.mlp.Mlp.forward.0``."""
    parts = named.split(".")
    end = next((parts.index(long) for long in _PHASES if long in parts), len(parts))
    return ".".join(parts[1 : end - 1])
