"""Measure whom `trial vote` accuses on simulated devices, and how many runs it takes, and write the page.

python -m benchmarks.trials.votes [--jobs N]
"""

from __future__ import annotations

from typing import Any

from benchmarks import page
from tests.simulated_votes import Spoils, tried

from trueline.trials.frame.chance import Counts, most_rate

SIZES = ((3, 1), (6, 2), (8, 1))
BAD = "1"

_ABOUT = """
Jobs that exist in numbers only run on groups of devices; a run is spoilt with probability q by device 1, by rank 1 on
whatever device it is, or by every rank. *right*: `trial vote` names the device, or (of a rank, of everywhere) says
that it follows the software. *accused wrongly*: it names a device where none is at fault, or another. *not seen*: no
run differed in as many as `--rate 0.3` takes, which is said with its bound. The rest is undecided: at q = 0.4
everywhere, often no majority is left. At most 200 runs.
""".strip()


def _kinds(q: float) -> dict[str, Spoils]:
    return {
        "device": lambda device, rank, draw: device == BAD and draw.random() < q,
        "rank": lambda device, rank, draw: rank == 1 and draw.random() < q,
        "everywhere": lambda device, rank, draw: draw.random() < q,
    }


def main() -> None:
    """Measure all cells, and write the page."""
    asked = page.arguments(__doc__, jobs=200).parse_args()
    head = page.head("Trials: who is accused", command=f"python -m benchmarks.trials.votes --jobs {asked.jobs}")
    cells = [("device", q) for q in (1.0, 0.5, 0.25, 0.1)] + [
        (kind, q) for kind in ("rank", "everywhere") for q in (0.4, 0.2, 0.05)
    ]
    rows = [
        _cell(kind, q, *sizes, asked.jobs) for kind, q in cells for sizes in SIZES if kind != "rank" or sizes[1] > 1
    ]
    page.write(__file__, head, _ABOUT, page.records(rows), _summary(rows, asked.jobs), name="votes.md")


def _cell(kind: str, q: float, devices: int, size: int, jobs: int) -> dict[str, Any]:
    answers = [tried(_kinds(q)[kind], devices=devices, size=size, seed=seed) for seed in range(jobs)]
    named = [each.credible[0] if each.credible else "" for each in answers]
    accused = [name for name in named if name.startswith("device")]
    right = named.count(f"device {BAD}") if kind == "device" else sum(bool(name) for name in named) - len(accused)
    wrong = len(accused) - (right if kind == "device" else 0)
    unseen = sum(each.answer == "excluded" and not each.credible for each in answers)
    return {
        "at fault": kind,
        "q": q,
        "devices": devices,
        "of a run": size,
        "right": f"{right / jobs:.0%}",
        "accused wrongly": wrong,
        "not seen": f"{unseen / jobs:.0%}",
        "undecided": f"{(jobs - right - wrong - unseen) / jobs:.0%}",
        "runs": f"{sum(each.runs for each in answers) / jobs:.1f}",
    }


def _summary(rows: list[dict[str, Any]], jobs: int) -> str:
    most = max(int(row["accused wrongly"]) for row in rows)
    total, of = sum(int(row["accused wrongly"]) for row in rows), jobs * len(rows)
    bound = most_rate(Counts(of, total))
    return (
        f"Error asked 0.05. A device was accused wrongly in {total} of {of:,} jobs (at most {bound:.2%}, 95 % "
        f"confidence), in the worst cell in {most} of {jobs} (at most {most_rate(Counts(jobs, most)):.1%})."
    )


if __name__ == "__main__":
    main()
