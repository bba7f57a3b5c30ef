"""Plant defects into a script that goes on from a checkpoint, and compare what tools name first.

    python -m benchmarks.compare.rival [--opguard PYTHON] [--keep FOLDER] [--case NAME ...]

Each case is a copy of ``job.py`` with a defect or a harmless change, run from the same checkpoint as the script itself,
under each tool. PYTHON is one that has opguard 0.1.0; without it that is left out. With ``--keep`` what each tool said
is kept in FOLDER, and is not asked again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.compare.rival.cases import DEFECTS, HARMLESS, Case
from benchmarks.compare.rival.tools import OpGuard, Told, Tool, Trueline, WarmTrueline
from benchmarks.page import arguments, head, table, write

SCRIPT = Path(__file__).parent / "job.txt"
"""The script; no Python file here, as it is to look like a user's."""
REFERENCE = Case("reference")

ABOUT = """A causal transformer of two blocks with an optimizer of its own goes on from a checkpoint for three \
steps, on one process and one thread of a CPU; each case is a copy of the script with a defect or a harmless change, \
and the script itself is the reference. *Right* is the line at which the numbers first become others, or the line \
that decides them (`cases.py` has the lines). Of `trueline compare` the first error or warning counts; of opguard, \
which gives no verdict, the first call of its report whose values differ, and a call before it that one run alone \
makes. opguard is asked by the actions of `opguard.tools` (discover, prepare, trace, compare), with calls on a CPU \
included. Commands and minutes are those of a case, on a machine that others use; those of the reference come once \
more. A change that is harmless but has other bits (another order of sums) is for the preset `mix` to be silent of: \
bits alone cannot tell rounding from a defect."""


def main() -> None:
    """Run all tools on all cases, and write the page if that is all."""
    parser = arguments(__doc__)
    parser.add_argument("--opguard", default="", metavar="PYTHON")
    parser.add_argument("--tool", action="append", choices=("bits", "mix", "opguard"))
    parser.add_argument(
        "--warm", action="store_true", help="fork Trueline's runs from a process that has imported torch"
    )
    parser.add_argument("--keep", default="", metavar="FOLDER")
    parser.add_argument("--kept", action="store_true", help="only make the page of what FOLDER has, and run nothing")
    parser.add_argument("--case", action="append")
    chosen = parser.parse_args()
    trueline = WarmTrueline if chosen.warm else Trueline
    tools: list[Tool] = [trueline("bits"), trueline("mix")]
    tools += [OpGuard(chosen.opguard)] if chosen.opguard else []
    tools = [tool for tool in tools if not chosen.tool or tool.name in chosen.tool]
    cases = [case for case in (*DEFECTS, *HARMLESS) if not chosen.case or case.name in chosen.case]
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(chosen.keep or scratch)
        kept.mkdir(exist_ok=True)
        known = [] if chosen.kept else cases
        told = {tool.name: _told(tool, known, Path(scratch), kept) for tool in tools}
        for of_tool in told.values():
            of_tool |= {case.name: Told(error="not run") for case in cases if case.name not in of_tool}
    text = _tables(cases, told)
    if chosen.case or chosen.tool:
        print(text)
    else:
        command = "python -m benchmarks.compare.rival" + (" --warm" if chosen.warm else "")
        command += " --opguard PYTHON" if chosen.opguard else ""
        write(__file__, head("Two runs that should be equal bit by bit", command=command), ABOUT, text)


def _told(tool: Tool, cases: list[Case], scratch: Path, kept: Path) -> dict[str, Told]:
    file = kept / f"{tool.name}.json"
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    missing = [case for case in cases if case.name not in known]
    if missing:
        reference, _ = tool.timed(_folder(scratch / tool.name, REFERENCE), REFERENCE, None)
        for case in missing:
            _, told = tool.timed(_folder(scratch / tool.name, case), case, reference)
            known[case.name] = asdict(told)
            file.write_text(json.dumps(known, indent=1))
            print(f"{tool.name}, {case.name}: {told}", file=sys.stderr, flush=True)
    return {name: Told(**facts) for name, facts in known.items()}


def _folder(place: Path, case: Case) -> Path:
    """A folder with the script of a case, and the checkpoint of the script itself."""
    folder = place / case.name.replace(" ", "-").replace("'", "").replace(",", "")
    folder.mkdir(parents=True)
    (folder / "job.py").write_text(SCRIPT.read_text())
    if case is REFERENCE:
        subprocess.run([sys.executable, "job.py", "--save"], cwd=folder, check=True, capture_output=True)
    else:
        shutil.copy(place / "reference" / "checkpoint.pt", folder)
    (folder / "job.py").write_text(case.of(SCRIPT.read_text()))
    return folder


def is_right(case: Case, line: str) -> bool:
    """Whether the line that was named has one of the right texts."""
    name, _, rest = line.partition(":")
    number = rest.split(" ")[0]
    lines = case.of(SCRIPT.read_text()).splitlines()
    if not name.endswith("job.py") or not number.isdigit() or int(number) > len(lines):
        return False
    return any(text in lines[int(number) - 1] for text in case.right)


def _tables(cases: list[Case], told: dict[str, dict[str, Told]]) -> str:
    defects = [case for case in cases if case.right]
    harmless = [case for case in cases if not case.right]
    header = ["defect", *map(_title, told)]
    rows = [[case.name, *(_cell(case, told[name][case.name]) for name in told)] for case in defects]
    right = [sum(is_right(case, told[name][case.name].line) for case in defects) for name in told]
    ran = [sum(not told[name][case.name].error for case in defects) for name in told]
    either = [
        sum(is_right(case, told[name][case.name].line_alone or told[name][case.name].line) for case in defects)
        for name in told
    ]
    rows.append(["**right first**", *(f"**{count} of {num}**" for count, num in zip(right, ran, strict=True))])
    rows.append(
        [
            "right, if a call without a counterpart counts",
            *(f"{count} of {num}" for count, num in zip(either, ran, strict=True)),
        ]
    )
    quiet_ran = [sum(not told[name][case.name].error for case in harmless) for name in told]
    quiet = [[case.name, *(_silent(told[name][case.name]) for name in told)] for case in harmless]
    silent = [sum(_silent(told[name][case.name]) == "yes" for case in harmless) for name in told]
    quiet.append(["**silent**", *(f"**{count} of {num}**" for count, num in zip(silent, quiet_ran, strict=True))])
    costs = [
        [_title(name), *_cost([told[name][case.name] for case in cases if told[name][case.name].commands])]
        for name in told
    ]
    return "\n\n".join(
        [
            table(header, rows),
            table(["harmless change", *header[1:]], quiet),
            table(["tool", "commands a case", "minutes a case"], costs, right={1, 2}),
        ]
    )


def _cost(told: list[Told]) -> list[str]:
    """Commands and minutes a case, of those that were run by commands."""
    if not told:
        return ["–", "–"]
    minutes = sum(one.seconds for one in told) / len(told) / 60
    return [f"{sum(one.commands for one in told) / len(told):.1f}", f"{minutes:.2f}"]


def _title(name: str) -> str:
    return "opguard 0.1.0" if name == "opguard" else f"Trueline, preset `{name}`"


def _cell(case: Case, told: Told) -> str:
    if told.error:
        return told.error.strip().splitlines()[-1][:80]
    line = told.line.rpartition("/")[2]
    named = f"`{line}`" if line else told.words[:80] or "nothing"
    alone = f"; without a counterpart: `{told.line_alone}`" if told.line_alone else ""
    return f"{'yes' if is_right(case, told.line) else 'no'}: {named}{alone}"


def _silent(told: Told) -> str:
    if told.error:
        return told.error.strip().splitlines()[-1][:80]
    return "no" if told.words else "yes"


if __name__ == "__main__":
    main()
