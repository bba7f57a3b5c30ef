"""The tools, each used as its documentation says: what it names first of a pair of runs, by which commands."""

from __future__ import annotations

import atexit
import gzip
import json
import os
import runpy
import subprocess
import sys
import time
import traceback
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare.rival.cases import Case

from trueline.capture.child_env import environment
from trueline.comparison.compare import compare
from trueline.schema.plan import Plan

TIMEOUT_S = 600


@dataclass
class Told:
    """What a tool named first (file:line and words; '' for nothing), in how many commands and seconds; ``line_alone``
    is that of a call before it that one run alone makes, where a tool only shows these.
    """

    line: str = ""
    line_alone: str = ""
    words: str = ""
    commands: int = 0
    seconds: float = 0.0
    error: str = ""


@dataclass
class Tool:
    """``record`` runs the script in a folder; ``compare`` tells what differs first from the reference's ``record``."""

    name: str
    env: dict[str, str] = field(default_factory=dict)

    def record(self, folder: Path, case: Case) -> Any:
        """Run the script of ``case`` in ``folder``."""
        raise NotImplementedError

    def compare(self, record: Any, reference: Any, folder: Path) -> Told:
        """What is named first."""
        raise NotImplementedError

    def timed(self, folder: Path, case: Case, reference: Any) -> tuple[Any, Told]:
        """The record of a case and what is told of it, with time and commands of these alone."""
        begin, self.num = time.perf_counter(), 0
        try:
            record = self.record(folder, case)
            told = Told() if reference is None else self.compare(record, reference, folder)
        except (RuntimeError, subprocess.SubprocessError) as error:
            record, told = None, Told(error=str(error)[-300:])
        told.commands, told.seconds = self.num, time.perf_counter() - begin
        return record, told

    def run(self, words: Sequence[str], case: Case | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
        """One command."""
        self.num += 1
        env = {**os.environ, **self.env, "OMP_NUM_THREADS": str(case.threads if case else 1)}
        return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, env=env, check=False, **more)


class Trueline(Tool):
    """``trueline run --plan PRESET`` of both, and ``trueline compare``."""

    def record(self, folder: Path, case: Case) -> Any:
        out = folder / f"run-{self.name}"
        python = sys.executable
        done = self.run(
            [python, "-m", "trueline", "run", "--plan", self.name, "--out", str(out), "--", python, "job.py"],
            case,
            cwd=folder,
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        return out

    def compare(self, record: Any, reference: Any, folder: Path) -> Told:
        done = self.run([sys.executable, "-m", "trueline", "compare", str(record), str(reference), "--json"])
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stderr)
        answer = json.loads(done.stdout)
        findings = [one for one in answer["findings"] if one["severity"] in ("error", "warning")]
        if not findings:
            return Told()
        first = findings[0]
        line = first.get("evidence", {}).get("where") or (answer.get("first") or {}).get("where") or ""
        return Told(line=line, words=first["claim"])


class OpGuard(Tool):
    """``opguard-tools`` discover, prepare and trace of both, and compare; ``python`` is that of its environment."""

    def __init__(self, python: str) -> None:
        super().__init__("opguard")
        self.python = python

    def record(self, folder: Path, case: Case) -> Any:
        env = {"OMP_NUM_THREADS": str(case.threads), "OPGUARD_CALLSITE_INCLUDE_CPU": "1"}
        env |= {"OPGUARD_CALLSITE_CUPTI": "0", "OPGUARD_CALLSITE_CUDAAPI": "0"}  # there is no GPU
        work = {"cwd": str(folder), "script": str(folder / "job.py"), "launcher": [self.python], "ranks": [0]}
        work |= {"env": env}
        asked = {"workload": work, "local_root": str(folder / "og-local"), "timeout_seconds": TIMEOUT_S}
        found = self._ask("discover", {**asked, "output": str(folder / "og-discover")})
        plan = self._ask("prepare", {**asked, "discovery": found, "output": str(folder / "og-prepare")})
        return self._ask("trace", {**asked, "plan": plan, "output": str(folder / "og-trace")})

    def compare(self, record: Any, reference: Any, folder: Path) -> Told:
        asked = {"baseline": reference, "candidate": record, "ranks": [0], "output": str(folder / "og-compare")}
        (report,) = self._ask("compare", asked)["reports"]
        return first_named(Path(report))

    def _ask(self, action: str, asked: dict[str, Any]) -> Any:
        done = self.run(
            [self.python, "-m", "opguard.tools", action], input=json.dumps({"protocol_version": 1, **asked})
        )
        answer = json.loads(done.stdout)
        if not answer["ok"]:
            raise RuntimeError(f"{action}: {answer['error']['message']}")
        return answer["result"]


def first_named(report: Path) -> Told:
    """The first call, in the order of execution of the run that is looked at, whose values the report says differ, and
    in ``line_alone`` that without a counterpart before it. The tool gives no verdict of its own.
    """
    with gzip.open(report) as file:
        events = json.load(file)["traceEvents"]
    calls = [event for event in events if event.get("cat") == "opguard" and event["args"].get("run") == "run2"]
    told = Told()
    for call in sorted(calls, key=lambda event: event["ts"]):
        facts = call["args"]
        line = f"{Path(facts['file']).name}:{facts['line']}"
        if facts["status"] == "diff":
            told.line, told.words = line, f"{facts['fn']}: its values differ"
            break
        if facts["status"] == "unaligned" and not told.line_alone:
            told.line_alone = line
    return told


class WarmTrueline(Trueline):
    """The same without commands: runs are forked from this process, which has imported torch, and compared in it. For a
    machine that others use; what a case takes is then not told.
    """

    def record(self, folder: Path, case: Case) -> Any:
        import torch  # noqa: F401  here, so that no child has to

        import trueline.capture.launch
        import trueline.capture.record.early  # noqa: F401

        out = folder / f"run-{self.name}"
        child = os.fork()
        if not child:
            _train(folder, case, environment(out=str(out), plan=Plan.load(self.name).kept(), overwrite=False, base={}))
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError((folder / "printed").read_text()[-300:])
        return out

    def compare(self, record: Any, reference: Any, folder: Path) -> Told:
        comparison = compare(record, reference)
        first = next((one for one in comparison.findings if one.severity in ("error", "warning")), None)
        if first is None:
            return Told()
        line = first.evidence.get("where") or (comparison.first.where if comparison.first else "")
        return Told(line=line, words=first.claim)


def _train(folder: Path, case: Case, environ: dict[str, str]) -> None:
    """The script under ``trueline run``, in a process that was forked for it, and its end."""
    import torch

    import trueline
    from trueline.capture.launch import Attachment

    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # the parent's folders are not ours to remove
    os.chdir(folder)
    handle = os.open("printed", os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ.update(environ)
    sys.argv = ["job.py"]
    torch.set_num_threads(case.threads)
    status = 1
    try:
        Attachment(trueline.watch).wait()
        runpy.run_path("job.py", run_name="__main__")
        status = 0
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    os._exit(status)
