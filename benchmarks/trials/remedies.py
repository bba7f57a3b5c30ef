"""Measure what `trial remedy` answers on simulated jobs, and on a real one in which nothing is wrong; write the page.

python -m benchmarks.trials.remedies [--jobs N] [--real N]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import page
from numpy.typing import NDArray

import trueline
from trueline.capture.child_env import environment
from trueline.trials.frame.chance import Counts, most_rate
from trueline.trials.remedy.effect import effect_of

VERDICTS = ("recovers", "partly", "no effect", "undecided")
JOB = Path(__file__).parents[2] / "tests" / "remedies_job.py"
REAL = ("fp32:blocks.2", "clip:embed=0.5", "clip:head=0.2", "deterministic", "fp32:blocks.*")

_ABOUT = """
Jobs that exist in numbers only have a mean loss that is *gap* above that of the good run, of which the remedy leaves
a share and the sham another; each seed moves all three runs of its pair by as much (standard deviation 1 over seeds,
the good run included), and each run by half of that. *chaos*: nothing is wrong, but one job's loss is not another's.
With *heavy tails*, Student's t with 3 degrees of freedom is in place of the normal law.
""".strip()
_ABOUT_REAL = """
And on a real training in which nothing is wrong (`tests/remedies_job.py none`, against a run of it with another seed as
the good one), with 8 pairs:
""".strip()


def main() -> None:
    """Measure all cells, and write the page."""
    asked = page.arguments(__doc__, jobs=2000, real=len(REAL)).parse_args()
    command = f"python -m benchmarks.trials.remedies --jobs {asked.jobs} --real {asked.real}"
    head = page.head("Trials: remedies", command=command)
    cells = [("chaos", 0.0, 1.0, 1.0, heavy, pairs) for pairs in (6, 8, 16) for heavy in (False, True)]
    cells += [("cured", gap, 0.0, 1.0, False, 8) for gap in (3.0, 6.0, 12.0)]
    cells += [("half cured", gap, 0.5, 1.0, False, 8) for gap in (3.0, 6.0, 12.0)]
    cells += [("not cured", gap, 1.0, 1.0, False, 8) for gap in (3.0, 6.0, 12.0)]
    cells += [("the sham does as much", 12.0, 0.0, 0.0, False, 8)]
    rows = [_cell(*cell, jobs=asked.jobs) for cell in cells]
    real = page.records([_real(remedy) for remedy in REAL[: asked.real]])
    page.write(
        __file__, head, _ABOUT, page.records(rows), _summary(rows, asked.jobs), _ABOUT_REAL, real, name="remedies.md"
    )


def _cell(what: str, gap: float, left: float, sham: float, heavy: bool, pairs: int, *, jobs: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)

    def noise(*shape: int) -> NDArray[np.float64]:
        return draw.standard_t(3, shape) / np.sqrt(3) if heavy else draw.standard_normal(shape)

    found: Counter[str] = Counter()
    for _ in range(jobs):
        seeds, good, each = noise(pairs), noise(1), noise(3, pairs) / 2
        arms: Sequence[Any] = [gap * share + seeds + each[at] - good for at, share in enumerate((1.0, left, sham))]
        found[effect_of(*arms, good_varies=True).verdict] += 1
    shares = {verdict: f"{found[verdict] / jobs:.1%}" for verdict in VERDICTS}
    return {"job": f"{what}{', heavy tails' if heavy else ''}", "gap": gap, "pairs": pairs, **shares}


def _real(remedy: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        for name, seed in (("bad", "1"), ("good", "77")):
            environ = environment(out=f"{folder}/{name}", plan={"every": 1}, overwrite=True, base=dict(os.environ))
            environ["TRUELINE_CHANGES"] = f'{{"seed": {seed}, "shift": {seed}}}'
            subprocess.run([sys.executable, str(JOB), "none"], env=environ, check=True)
        command = [sys.executable, str(JOB), "none"]
        options = {"remedy": remedy, "ref": f"{folder}/good", "out": f"{folder}/trial"}
        answer = trueline.trial("remedy", f"{folder}/bad", command, **options)
    verdict = answer.credible[0] if len(answer.credible) == 1 else answer.answer
    return {"remedy": remedy, "answer": verdict, "runs": answer.runs, "says": " ".join(answer.says[1:3])}


def _summary(rows: Sequence[dict[str, Any]], jobs: int) -> str:
    chaos = [row for row in rows if row["job"].startswith("chaos")]
    least = min(float(row["no effect"].rstrip("%")) for row in chaos)
    claimed = [
        round((float(row["recovers"].rstrip("%")) + float(row["partly"].rstrip("%"))) * jobs / 100) for row in chaos
    ]
    bound = most_rate(Counts(jobs, max(claimed)))
    return (
        f"Error asked 0.05. With chaos alone the answer is *no effect* in at least {least:.1f} % of jobs in each cell, "
        f"and an effect was claimed in {sum(claimed)} of {jobs * len(chaos):,} (at most {bound:.2%} in the worst cell, "
        "95 % confidence)."
    )


if __name__ == "__main__":
    main()
