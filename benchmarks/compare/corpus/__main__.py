"""Faults and healthy pairs on 23 architectures: what `trueline compare` says of each, compared with the truth.

    python -m benchmarks.compare.corpus [--only GLOB] [--split dev|held|all] [--depth stats|fingerprint|tensor]
        [--plan modules|mix] [--dtype fp32|bf16|autocast] [--compiled [BACKEND]] [--faults | --healthy]
        [--jobs N] [--json FILE] [--details] [--list] [--rival]

Every pair is recorded and compared in a process of its own, from one seed and on the same batches. A case is named
FAMILY/FAULT, a healthy one FAMILY/=WAY: ``--only 'gpt/*'``, ``--only '*/=two threads'``. Half of each kind is ``dev``:
who mends compare looks at these only. ``held`` prints counts, unless --details is given. With --json results are
appended to a file (JSON lines) case by case, and what the file has already is not run again.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import tempfile
import warnings
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.compare.corpus import families, faults
from benchmarks.compare.corpus.cases import Case, all_cases, run_case, run_reference, verdict_of
from benchmarks.compare.corpus.children import results_of
from benchmarks.compare.corpus.healthy import register
from benchmarks.compare.corpus.recording import Setting
from benchmarks.compare.corpus.summary import details, summary
from benchmarks.page import arguments

PRELOADED = (
    *("pandas", "torch._dynamo", "transformers", "trueline.capture.watch", "trueline.store.writer"),
    *(f"trueline.capture.adapters.{name}" for name in ("ddp", "fsdp1", "fsdp2", "manual", "sharded", "single")),
)
"""What each child would import by itself otherwise, for two seconds."""


def main() -> None:
    options = _options()
    for package in (families, faults):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    register()
    warnings.filterwarnings("ignore")
    setting = Setting(options.depth, options.plan, options.dtype, options.compiled or "")
    cases = [case for case in all_cases(setting) if _chosen(case, options)]
    if options.list:
        print("\n".join(f"{case.half:<5}{case.kind:<14}{case.key}" for case in cases))
        return
    if options.rival:
        from benchmarks.compare.corpus.rival import print_rival

        print_rival([case for case in cases if case.fault is not None], options.jobs)
        return
    results = _run(cases, setting, options)
    print(f"`{setting.name}`, {options.split}\n\n{summary(results)}")
    if options.split == "dev" or options.details:
        print(f"\n{details(results)}")


def _options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="*", help="a glob over names of cases")
    parser.add_argument("--split", default="dev", choices=("dev", "held", "all"))
    parser.add_argument("--depth", default="stats", choices=("stats", "fingerprint", "tensor"))
    parser.add_argument("--plan", default="mix", choices=("modules", "mix"))
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "autocast"))
    parser.add_argument("--compiled", nargs="?", const="inductor", help="a backend of torch.compile; inductor")
    parser.add_argument("--faults", action="store_true", help="no healthy pairs")
    parser.add_argument("--healthy", action="store_true", help="no faults")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--limit", type=int, default=300, help="seconds for one case")
    parser.add_argument("--json", type=Path, help="a file that results are appended to, and resumed from")
    parser.add_argument("--details", action="store_true", help="print what was said of each case that was missed")
    parser.add_argument("--list", action="store_true", help="print the cases, run nothing")
    parser.add_argument("--rival", action="store_true", help="what msProbe says of the same faults")
    return parser.parse_args()


def _chosen(case: Case, options: argparse.Namespace) -> bool:
    half = options.split in ("all", case.half)
    kind = not (options.faults and case.fault is None) and not (options.healthy and case.fault is not None)
    return half and kind and fnmatchcase(case.key, options.only)


def _run(cases: list[Case], setting: Setting, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Results of all cases, those that the file has included."""
    known: dict[str, dict[str, Any]] = {}
    if options.json is not None and options.json.exists():
        lines = map(json.loads, options.json.read_text(encoding="utf-8").splitlines())
        known = {each["key"]: each for each in lines if each["setting"] == setting.name}
    left = [case for case in cases if case.key not in known]
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        work = Path(folder)
        references = sorted({case.family for case in left})
        for made in results_of(
            [(run_reference, (name, setting, work)) for name in references], options.jobs, options.limit
        ):
            if "error" in made:
                print(f"the reference of {made['key']}: {made['error']}", file=sys.stderr)
        works = [(run_case, (case, setting, work)) for case in left]
        for done, result in enumerate(results_of(works, options.jobs, options.limit), 1):
            known[result["key"]] = result
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
            print(f"{done}/{len(left)} {result['verdict']:<12} {result['key']}", file=sys.stderr, flush=True)
    return [verdict_of(case, {**known[case.key], **case.facts()}) for case in cases]


if __name__ == "__main__":
    main()
