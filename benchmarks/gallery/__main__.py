"""Every fault of the gallery, its healthy twin, and every healthy control: trained, judged and scored.

    python -m benchmarks.gallery [--only D1,R3.fsdp,healthy]

The tests train one of each kind; this trains all of them, which takes some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.place import head

from trueline.testing.entry import chosen_entries
from trueline.testing.gallery import Score, run_gallery, summary


def main() -> int:
    """Rewrite README.md where all were trained; exit code 1 where one was judged wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="ids with commas between; README.md is left alone then")
    only = [name for name in parser.parse_args().only.split(",") if name]
    title = head("The gallery, whole", command=" ".join(["python -m benchmarks.gallery", *sys.argv[1:]]))
    with tempfile.TemporaryDirectory(prefix="trueline-gallery-") as folder:
        scores = run_gallery(chosen_entries(only), Path(folder), heard=_say)
    page = "\n\n".join([title, _told(scores), _wrong(scores), _table(scores)]) + "\n"
    if only:
        print(page)
    else:
        (Path(__file__).parent / "README.md").write_text(page, encoding="utf-8")
    return 0 if all(score.green for score in scores) else 1


def _say(score: Score) -> None:
    print(f"{score.id}: {'right' if score.green else 'WRONG'}", file=sys.stderr, flush=True)


def _told(scores: Sequence[Score]) -> str:
    told = summary(list(scores))
    alarmed = sum(bool(score.alarms) for score in scores)
    bound = "" if alarmed else f" (so at most {1 - 0.05 ** (1 / len(scores)):.1%} of such runs, with 95 % confidence)"
    return (
        f"{told['faults']} faults: {told['detected']:.1%} found, {told['localised']:.1%} at their place. "
        f"{told['controls']} healthy runs: {alarmed} with a false alarm{bound}. {told['failed']} did not finish."
    )


def _wrong(scores: Sequence[Score]) -> str:
    wrong = [score for score in scores if not score.green]
    lines = [f"- {score.id}: {'; '.join((*score.claims, *score.alarms, *score.failures))[:300]}" for score in wrong]
    return "\n".join(["Judged wrong:", "", *lines]) if lines else "None was judged wrong."


def _table(scores: Sequence[Score]) -> str:
    lines = ["| id | what | ranks | found | delay in steps |", "|---|---|---:|---|---:|"]
    for score in scores:
        found = ", ".join(score.found) if score.kind == "fault" else "; ".join(score.alarms)
        delay = "" if score.delay_steps is None else score.delay_steps
        lines.append(f"| {score.id} | {score.name} | {score.world_size} | {found} | {delay} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
