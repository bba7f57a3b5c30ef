"""Every fault of the gallery, its healthy twin, and every healthy control: trained, judged and scored.

    python -m benchmarks.gallery [--only D1,R3.fsdp,healthy] [--runs DIR]

The tests train the smallest choice that has each family, check and adapter; this trains all of them, which takes some
ten minutes on two cores.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.gallery.less import OUTCOMES, without_causes, without_checks
from benchmarks.gallery.statistics import brier_score, confusion, reliability, risk
from benchmarks.page import arguments, head, records, table, write
from gallery.entry import all_entries, chosen_entries
from gallery.independence import independent_fault
from gallery.scoring import Score, run_gallery, summary, upper_bound

import trueline
from trueline.judge.check_run import CheckReport

BINS = (0.0, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99, 1.0)
THRESHOLDS = (0.0, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99)


def main() -> int:
    """Rewrite README.md where all were trained; exit code 1 where one was judged wrong."""
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="ids with commas between; README.md is left alone then")
    parser.add_argument("--runs", type=Path, help="keep the Runs there, and judge those that are there as they are")
    arguments_given = parser.parse_args()
    only = [name for name in arguments_given.only.split(",") if name]
    title = head("The gallery, whole", command=" ".join(["python -m benchmarks.gallery", *sys.argv[1:]]))
    with tempfile.TemporaryDirectory(prefix="trueline-gallery-") as temporary:
        folder = arguments_given.runs or Path(temporary)
        scores = run_gallery(chosen_entries(only), folder, again=False, heard=_say)
        reports = _reports(scores, folder)
    parts = (
        title,
        _told(scores),
        _causes(scores),
        *_reliance(scores),
        *_robustness(scores, reports),
        _wrong(scores),
        _table(scores),
    )
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


def _reports(scores: Sequence[Score], folder: Path) -> dict[str, CheckReport]:
    """What is found in each planted run with findings, by the id of the fault."""
    found = {}
    for score in scores:
        if score.cause:
            reference = folder / score.id / "reference"
            found[score.id] = trueline.check(
                folder / score.id / "faulty", ref=reference if reference.exists() else None
            )
    return found


def _causes(scores: Sequence[Score]) -> str:
    """For how many faults `diagnose` names the cause, and how many could have a wrong one."""
    total = summary(scores)
    if not total["faults"]:
        return ""
    return (
        f"{total['faults']} of them are independent, in {total['families']} families; of the variants of "
        f"one the worst counts. `trueline diagnose` names the cause of {total['cause_named']:.1%} of the "
        f"independent ones, leaves {total['abstained']:.1%} open, and is wrong for {total['wrong_cause']:.1%}; "
        f"at most {total['wrong_cause_bound_95']:.1%} of such faults get a wrong cause, "
        "with 95 % confidence, and that of faults such as the causes were written for."
    )


def _reliance(scores: Sequence[Score]) -> list[str]:
    """Which cause is named for which, how right the probabilities are, and what answering more often would risk."""
    bins = reliability(scores, BINS)
    if not bins:
        return []
    planted = sum(score.kind == "fault" for score in scores)
    independent = summary(scores)["faults"]
    risks = [risk(scores, threshold) for threshold in THRESHOLDS]
    return [
        "## Which cause is named\n\nPlanted runs by their true cause; a cause that a row lacks was never named for it.",
        _matrix(confusion(scores)),
        "## How right the probabilities are\n\nOf the first cause of each planted run that has one, whether claimed or "
        f"left undecided. Brier score: {brier_score(scores):.3f}. The probabilities follow from what the files of the "
        "causes assert; nothing was fitted.",
        records(
            {
                "probability of the first": f"{each.low} to {each.high}",
                "planted runs": each.runs,
                "mean probability": f"{each.mean:.3f}",
                "share that is right": f"{each.right:.3f}",
            }
            for each in bins
        ),
        "## What answering more often would risk\n\nNaming the first cause whenever its probability is at least the "
        "threshold, even where it is nearly as likely as another. A fault is wrong if one of its variants is.",
        records(
            {
                "threshold": each.threshold,
                "planted runs answered": f"{each.runs} of {planted} ({each.runs / planted:.1%})",
                "of them wrong": each.wrong_runs,
                "independent faults answered": f"{each.faults} of {independent}",
                "of them wrong ": each.wrong_faults,
                "wrong at most (95 %)": f"{each.bound:.1%}",
            }
            for each in risks
        ),
    ]


def _matrix(counts: Counter[tuple[str, str]]) -> str:
    """A row for each true cause: named, abstained, no incident, and other causes with how often."""
    apart = ("abstained", "none")
    rows = []
    for true in sorted({true for true, _ in counts}):
        wrong = [
            f"{claimed} ({number})"
            for (each, claimed), number in sorted(counts.items())
            if each == true and claimed not in (true, *apart)
        ]
        cells = (counts[true, claimed] or "" for claimed in (true, *apart))
        rows.append([true, *cells, ", ".join(wrong)])
    return table(["true cause", "named", "abstained", "nothing said", "another named"], rows, right=(1, 2, 3))


def _robustness(scores: Sequence[Score], reports: Mapping[str, CheckReport]) -> list[str]:
    """What is said when a family of causes is not known, and when a check that found something had not run."""
    if not reports:
        return []
    apart = {"its own cause is not known": without_causes(reports, of_family=False)}
    apart["no cause of its family is known"] = without_causes(reports, of_family=True)
    apart["one check that found something did not run, each in turn"] = without_checks(reports)
    rows = []
    for what, found in apart.items():
        wrong = {id for id, outcome in found if outcome == "wrong"}
        faults = {independent_fault(id) for id, _ in found}
        wrong_faults = {independent_fault(id) for id in wrong}
        rows.append(
            {
                "when": what,
                "cases": len(found),
                **{name: sum(outcome == name for _, outcome in found) for name in OUTCOMES},
                "independent faults with another cause claimed": f"{len(wrong_faults)} of {len(faults)}",
                "which": ", ".join(sorted(wrong)),
            }
        )
    return [
        "## What is said with less to go by\n\n`wrong`: another cause is claimed; `none`: nothing is found any more. "
        "A fault that nobody thought of meets what the first two rows do. What is wrong here ought to be abstained.",
        records(rows),
    ]


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
