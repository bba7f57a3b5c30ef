"""Planted disagreements of rollout engine and trainer: what is found and named, and what healthy loops raise.

    python -m benchmarks.rl [--part own|llama|cache|qwen2|twins|learning|quick|drawn|page] [--seeds 20]
    python -m benchmarks.rl --part causes [--half open|held|twins|page] [--faults FILE] [--model small|large]

Twelve faults with each seed. ``own``: in an engine of our own, 256 words. ``llama``, ``qwen2``: in CTranslate2 with
256 and 32,768 words; what is inside the engine cannot be planted there, so ``cache`` has it for our own engine at
32,768. ``twins``: eight healthy loops of 320 steps, with at most five seeds; ``learning``: three healthy trainings with
CTranslate2; ``drawn``: healthy rollouts that are drawn; ``quick``: how many steps a temperature of 0.9 takes. Results
are kept beside this file, so that it can be interrupted; the page is written of those that are there. Some hours on
one core; ctranslate2 and transformers are needed.

``causes`` has a page of its own, causes.md: faults that checks may be tried on (``open``), twelve that were set aside,
which are in a ``FILE`` of their own (``held``), and twelve healthy trainings (``twins``), each in two models, as
recorded and as imported from a framework's log.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from benchmarks.page import arguments
from benchmarks.rl import measure, pages, simulated
from gallery.rollouts.loop import FAULTS, TWINS, Loop

PARTS = ("own", "llama", "qwen2", "cache", "twins", "learning", "quick", "drawn")
SMALL = {"family": "llama", "vocabulary": 256, "spread": 0.3, "size": 32}
LARGE = {"family": "qwen2", "vocabulary": 32_768, "spread": 0.5, "size": 24}


def main() -> None:
    """Measure one part, or all, and write the page."""
    chosen = arguments(__doc__, part="all", seeds=20, half="all", faults="", model="all").parse_args()
    if chosen.part == "causes":
        from benchmarks.rl.causes import part as causes

        causes.measure_part(chosen.half, chosen.model, chosen.seeds, chosen.faults)
        return
    for part in PARTS if chosen.part == "all" else (chosen.part,):
        if part != "page":
            _measure(part, range(chosen.seeds))
    pages.write_page()


def _measure(part: str, seeds: range) -> None:
    from benchmarks.rl import engines

    faults = [(case, seed) for seed, case in product(seeds, FAULTS)]
    planted = [(case, seed) for case, seed in faults if case in engines.PLANTED]
    match part:
        case "own":
            measure.run("own", faults, _own(vocabulary=256, steps=6, size=32, length=24))
        case "llama":
            measure.run("llama", planted, _planted(6, **SMALL))
        case "qwen2":
            measure.run("qwen2", planted, _planted(6, **LARGE))
        case "cache":
            cases = [(case, seed) for case, seed in faults if case not in engines.PLANTED]
            measure.run("cache", cases, _own(vocabulary=32_768, steps=6, size=24, length=24))
        case "twins":
            cases = [(case, seed) for seed, case in product(seeds[:5], TWINS)]
            measure.run("twins", cases, _own(steps=320, size=64, length=16, per_sampling=16))
        case "learning":
            cases = [(case, 0) for case in engines.TWINS]
            measure.run("learning", cases, _planted(300, **SMALL | {"size": 64, "lr": 3e-4}), lr=3e-4)
        case "quick":
            cases = [("temperature-raw", seed) for seed in seeds]
            measure.run("quick", cases, _planted(5, **SMALL | {"size": 900, "temperature": 0.9}))
        case "drawn":
            simulated.main()


def _own(*, steps: int, **options: Any) -> measure.Train:
    """The loop of ``gallery``."""
    return lambda case, seed, out: Loop(case, seed, **options).run(steps, out)


def _planted(steps: int, **options: Any) -> measure.Train:
    """The loop of the example."""
    from benchmarks.rl.engines import Planted

    return lambda case, seed, out: Planted(case, seed, out, **options).run(steps)


if __name__ == "__main__":
    main()
