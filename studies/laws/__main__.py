"""Measure the tolerance of the laws of optimizers, what they show, and what they cost; rewrite README.md beside this.

    python -m studies.laws

About two minutes on one core.
"""

from __future__ import annotations

from studies.laws import cost, power, tolerance
from benchmarks.page import arguments, head, write
from tests.optimizer_settings import MAX_NORM, NUMEL, SPIKE, SPIKE_AT, STEPS

from trueline.judge.series.update_rules import TOLERANCE


def main() -> None:
    """Measure all and write the page."""
    arguments(__doc__).parse_args()
    top = head("Sampled updates against the laws of their optimizers", command="python -m studies.laws")
    errors, worst, num = tolerance.measure()
    write(
        __file__,
        top,
        "## Tolerance",
        f"The worst error of any of {NUMEL:,} elements in {STEPS} healthy updates, in units of u times the sum of the "
        f"magnitudes of the terms; gradients are clipped to a norm of {MAX_NORM:g}, and those of step {SPIKE_AT} are "
        f"{SPIKE:g} times as large before that. The worst of the {num} settings that torch computes rightly is "
        f"**{worst:.2f}**; the line is {TOLERANCE:g}.",
        errors,
        "## Power",
        f"Largest error of AdamW (foreach) with a fault, in the same units, and the first faulty update that is above "
        f"{TOLERANCE:g}.",
        power.measure(),
        "## Cost",
        "Medians of CPU times, one thread, the optimizer's step and the sample by turns in one process.",
        cost.measure(),
    )


if __name__ == "__main__":
    main()
