"""Measure what watching costs and rewrite the tables in benchmarks/overhead/README.md.

    python -m benchmarks.overhead [--ranks 4] [--rounds 40] [--part NAME …] [--keep]

Steps: one process group trains one copy of a model per mode, and every round takes one step of every mode in rotating
order, between barriers, so that whatever else the machine does hits all modes alike. A mode's ratio is the median
over rounds of its step time over the unmonitored step time of the same round; likewise of CPU time, which other work on
the machine disturbs less. On 2 cores that do nothing else all parts take about 10 minutes, but for two that are
measured only where they are named: the first 300 steps and 700 later ones (`--ranks 2 --part beginning --keep`, about
5 minutes), and instructions (`--part instructions --keep`), which need valgrind and a C compiler and take about 20.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.overhead import beginning, growth, instructions, laws, memory, reading, samples, steps
from benchmarks.page import arguments, facts, head

HERE = Path(__file__).parent
PARTS = {"steps": steps, "reading": reading, "laws": laws, "memory": memory, "samples": samples, "growth": growth}
NAMED = {"beginning": beginning, "instructions": instructions}
"""Parts that take long: they run only where they are named, and a page that is written anew keeps their sections."""


def main() -> None:
    """Run the chosen parts and write the page."""
    parser = arguments(__doc__, ranks=4, rounds=40)
    parser.add_argument("--part", choices=PARTS | NAMED, action="append")
    parser.add_argument("--keep", action="store_true", help="put the sections of the chosen parts into the page")
    chosen = parser.parse_args()
    origin = facts(_command(chosen))
    sections = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.part or PARTS:
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            sections.append(
                (PARTS | NAMED)[name].measure(ranks=chosen.ranks, rounds=chosen.rounds, folder=Path(folder))
            )
    print("\n\n".join(sections))
    page = HERE / "README.md"
    if set(chosen.part or PARTS) == set(PARTS):
        kept = [f"## {one}" for one in page.read_text(encoding="utf-8").rstrip("\n").split("\n\n## ")[1:]]
        titles = tuple(f"## {part.TITLE}\n" for part in NAMED.values())
        sections += [one for one in kept if one.startswith(titles)]
        text = [head("What watching costs", command=_command(chosen)), *sections]
        page.write_text("\n\n".join(text) + "\n", encoding="utf-8")
    elif chosen.keep:
        page.write_text(with_sections(page.read_text(encoding="utf-8"), sections, origin), encoding="utf-8")


def with_sections(page: str, sections: list[str], origin: dict[str, str]) -> str:
    """The page with sections in the place of those of the same title, each saying where it comes from."""
    top, *others = page.rstrip("\n").split("\n\n## ")
    told = f"From `{origin['command']}`: {origin['machine']}; commit {origin['commit']}, {origin['date']}."
    for section in sections:
        title, _, text = section.removeprefix("## ").partition("\n")
        at = next((index for index, other in enumerate(others) if other.startswith(f"{title}\n")), len(others))
        others[at : at + 1] = [f"{title}\n\n{told}\n{text}"]
    return "\n\n## ".join([top, *others]) + "\n"


def _command(chosen: argparse.Namespace) -> str:
    parts = "".join(f" --part {part}" for part in chosen.part or ())
    return f"python -m benchmarks.overhead --ranks {chosen.ranks} --rounds {chosen.rounds}{parts}"


if __name__ == "__main__":
    main()
