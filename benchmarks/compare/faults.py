"""Which call is named first for each of eight planted faults, by `trueline compare` and by msProbe, side by side.

    python -m benchmarks.compare.faults [--keep DIR]

Each fault is recorded by Trueline and dumped by msProbe (level mix) from the same small model, once with statistics and
once with tensors. msProbe is asked in both of its ways: the first row of its table that does not pass, and its analysis
of the first difference. Trueline also judges the dumps of msProbe, imported. Needs msProbe: pip install -e '.[bench]'.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

import torch._dynamo  # noqa: F401  the first optimizer step would import it in every child
from benchmarks.compare.faults_rival import analyze_dumps, compare_dumps, first_difference, first_flagged, in_child
from benchmarks.compare.trainings.changes import FAULTS, Fault
from benchmarks.compare.trainings.faults_planted import CONTROL, KINDS, record
from benchmarks.page import arguments, table

COLUMNS = ("msProbe, table", "msProbe, first difference", "Trueline", "Trueline on the dumps of msProbe")


def main() -> None:
    """Record, compare and print a table for each kind of record."""
    parser = arguments(__doc__)
    parser.add_argument("--keep", type=Path, help="a new directory for what was recorded")
    chosen = parser.parse_args()
    if importlib.util.find_spec("msprobe") is None:
        sys.exit("msProbe is not installed. Install the version that is compared with: pip install -e '.[bench]'.")
    import msprobe.pytorch.compare.pt_compare  # noqa: F401  here, so that no child has to

    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        for kind in KINDS:
            print(f"\n{_table(kind, folder / kind)}", flush=True)


def _table(kind: str, folder: Path) -> str:
    folder.mkdir()
    named = []
    for number, fault in enumerate((CONTROL, *FAULTS)):
        _record(fault, kind, folder, number)
        named.append(_named(folder, number))
        print(f"{kind}: {fault.name}", file=sys.stderr, flush=True)
    rows = []
    right = [0] * len(COLUMNS)
    for fault, calls in zip((CONTROL, *FAULTS), named, strict=True):
        hits = [_is_right(fault, call) for call in calls]
        right = [total + (hit and fault is not CONTROL) for total, hit in zip(right, hits, strict=True)]
        cells = [f"{'yes' if hit else 'no'}: {_told(call)}" for hit, call in zip(hits, calls, strict=True)]
        rows.append([fault.name, *cells])
    rows.append(["true call named first", *(f"**{total} of {len(FAULTS)}**" for total in right)])
    return table([f"{kind}: fault", *COLUMNS], rows)


def _record(fault: Fault, kind: str, folder: Path, number: int) -> None:
    from trueline.cli.verbs.import_ import measure
    from trueline.store.importers.msprobe.dumps import DumpOptions, import_msprobe

    dump, log = folder / f"{number}-msprobe", folder / "log"
    in_child(_one, fault, "trueline", kind, folder / f"{number}-run", log=log)
    in_child(_one, fault, "msprobe", kind, dump, log=log)
    in_child(compare_dumps, dump, folder / "0-msprobe", folder / f"{number}-table", log=log)
    in_child(analyze_dumps, dump, folder / "0-msprobe", folder / f"{number}-analysis", log=log)
    options = DumpOptions(measure=measure(), model="_Decoder", optimizer="SGD", tensors=True)
    import_msprobe(str(dump), str(folder / f"{number}-imported"), options)
    for bulky in dump.glob("step0/*/dump_tensor_data"):
        if number:
            shutil.rmtree(bulky)


def _one(fault: Fault, tool: str, kind: str, out: Path) -> None:
    record(fault, tool=tool, kind=kind, out=out)


def _named(folder: Path, number: int) -> tuple[str, ...]:
    ours = [_first(folder / f"{number}-{side}", folder / f"0-{side}") for side in ("run", "imported")]
    return first_flagged(folder / f"{number}-table"), first_difference(folder / f"{number}-analysis"), *ours


def _first(run: Path, ref: Path) -> str:
    import trueline

    first = trueline.compare(run, ref).first
    return "" if first is None else str(first.site or first.ref_site)


def _is_right(fault: Fault, named: str) -> bool:
    return named == "" if fault is CONTROL else _call(named) in (*fault.calls, *fault.theirs)


def _call(named: str) -> str:
    """Without the slot: a call is named right by any of its values, its weight included."""
    return named.removeprefix("0.0/r0/fwd/").split(":")[0]


def _told(named: str) -> str:
    return f"`{named.removeprefix('0.0/r0/')}`" if named else "nothing"


if __name__ == "__main__":
    main()
