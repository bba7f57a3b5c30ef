"""Planted disagreements of rollout engine and trainer: what is found and named, and what healthy loops raise.

    python -m benchmarks.rl [--part faults|large|twins|page]

``faults``: twelve faults, 20 seeds, 256 words. ``large``: the same at 32,768 words, 3 seeds. ``twins``: eight healthy
loops, 1,312 steps of 1,024 tokens each. Results are kept beside this file, so that it can be interrupted; the page is
written of those that are there.
"""

from __future__ import annotations

from benchmarks.page import arguments
from benchmarks.rl import measure, pages

from trueline.testing.rollouts.loop import FAULTS, TWINS

SEEDS, LARGE_SEEDS = 20, 3
STEPS_OF_TWIN = 1_312


def main() -> None:
    """Measure one part, or all, and write the page."""
    part = arguments(__doc__, part="all").parse_args().part
    if part in ("faults", "all"):
        cases = [(case, seed) for seed in range(SEEDS) for case in FAULTS]
        measure.run("faults", cases, vocabulary=256, steps=6, size=32, length=24)
    if part in ("large", "all"):
        cases = [(case, seed) for seed in range(LARGE_SEEDS) for case in FAULTS]
        measure.run("large", cases, vocabulary=32_768, steps=4, size=24, length=24)
    if part in ("twins", "all"):
        cases = [(case, 0) for case in TWINS]
        measure.run("twins", cases, vocabulary=256, steps=STEPS_OF_TWIN, size=64, length=16, at_once=16)
    pages.write_page()


if __name__ == "__main__":
    main()
