"""Every fault of the gallery, its healthy twin, and every healthy control: trained, judged and scored.

    python -m benchmarks.gallery [--only D1,R3.fsdp,healthy]

The tests train the smallest choice that has each family, check and adapter; this trains all of them, which takes some
ten minutes on two cores.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.page import arguments, head, records, table, write

import trueline
from trueline.analyze.causes.library import known_causes
from trueline.analyze.causes.verdicts import verdicts_of
from trueline.testing.entry import all_entries, chosen_entries
from trueline.testing.gallery import Score, run_gallery, summary, upper_bound
from trueline.testing.true_causes import true_causes


def main() -> int:
    """Rewrite README.md where all were trained; exit code 1 where one was judged wrong."""
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="ids with commas between; README.md is left alone then")
    only = [name for name in parser.parse_args().only.split(",") if name]
    title = head("The gallery, whole", command=" ".join(["python -m benchmarks.gallery", *sys.argv[1:]]))
    with tempfile.TemporaryDirectory(prefix="trueline-gallery-") as folder:
        scores = run_gallery(chosen_entries(only), Path(folder), heard=_say)
        unnamed = _without_its_cause([score for score in scores if score.cause_found == "named"], Path(folder))
    parts = (title, _told(scores), _causes(scores, unnamed), _wrong(scores), _table(scores))
    if only:
        print("\n\n".join(parts))
    else:
        write(__file__, *parts)
    return 0 if all(score.green for score in scores) else 1


def _say(score: Score) -> None:
    print(f"{score.id}: {'right' if score.green else 'WRONG'}", file=sys.stderr, flush=True)


def _told(scores: Sequence[Score]) -> str:
    """A row for each command that judges: `check` one Run, or `compare` it with its reference."""
    compared = {entry.id for entry in all_entries() if entry.reference is not None}
    rows = []
    for command in ("check", "compare"):
        own = [score for score in scores if (score.id in compared) == (command == "compare")]
        if not own:
            continue
        faults = [score for score in own if score.kind == "fault"]
        alarmed = sum(bool(score.alarms) for score in own)
        bound = "" if alarmed else f" (at most {upper_bound(0, len(own)):.1%} of such runs, with 95 % confidence)"
        rows.append(
            {
                "command": f"`trueline {command}`",
                "faults": len(faults),
                "detected": sum(score.detected for score in faults),
                "localised": sum(score.localised for score in faults),
                "healthy runs: counterparts of faults": len(faults),
                "healthy runs: controls": len(own) - len(faults),
                "healthy runs with a false alarm": f"{alarmed}{bound}",
                "did not finish": sum(len(score.failures) for score in own),
            }
        )
    return records(rows)


def _without_its_cause(scores: Sequence[Score], folder: Path) -> list[str]:
    """Ids of the faults for which another cause is claimed when the true one is not among those that are known: what a
    fault nobody thought of would meet.
    """
    claimed = []
    for score in scores:
        reference = folder / score.id / "reference"
        report = trueline.check(folder / score.id / "faulty", ref=reference if reference.exists() else None)
        others = [cause for cause in known_causes() if cause.slug not in true_causes(score.id)]
        place = next(verdict.incident for verdict in report.causes if verdict.cause == score.cause)
        answer = next(verdict for verdict in verdicts_of(report, others) if verdict.incident == place)
        if answer.standing in ("suspected", "supported"):
            claimed.append(score.id)
    return claimed


def _causes(scores: Sequence[Score], unnamed: Sequence[str]) -> str:
    """For how many faults `diagnose` names the cause, how many families could have a wrong one, and what it says where
    the true cause is not known to it.
    """
    total = summary(scores)
    if not total["faults"]:
        return ""
    return (
        f"{total['faults']} of them are independent, in {total['families']} families; of the variants of "
        f"one the worst counts. `trueline diagnose` names the cause of {total['cause_named']:.1%} of the "
        f"independent ones, leaves {total['abstained']:.1%} open, and is wrong for {total['wrong_cause']:.1%}; "
        f"at most {total['wrong_cause_bound_95']:.1%} of such faults get a wrong cause, "
        "with 95 % confidence, and that of faults such as the causes were written for. With the true cause taken out "
        f"of those that are known, another is claimed for {len(unnamed)} of the "
        f"{sum(score.cause_found == 'named' for score in scores)} that were named"
        + (f": {', '.join(unnamed)}." if unnamed else ".")
    )


def _wrong(scores: Sequence[Score]) -> str:
    wrong = [score for score in scores if not score.green]
    lines = [f"- {score.id}: {'; '.join((*score.claims, *score.alarms, *score.failures))[:300]}" for score in wrong]
    return "\n".join(["Judged wrong:", "", *lines]) if lines else "None was judged wrong."


def _table(scores: Sequence[Score]) -> str:
    rows = []
    for score in scores:
        found = ", ".join(score.found) if score.kind == "fault" else "; ".join(score.alarms)
        delay = "" if score.delay_steps is None else score.delay_steps
        cause = score.cause if score.cause_found in ("named", "none") else f"{score.cause_found}: {score.cause}"
        rows.append([score.id, score.name, score.world_size, found, delay, cause])
    return table(["id", "what", "ranks", "found", "delay in steps", "cause"], rows, right=(2, 4))


if __name__ == "__main__":
    sys.exit(main())
