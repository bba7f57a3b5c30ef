"""Run the parts of this benchmark and rewrite their sections in benchmarks/compare/README.md.

    python -m benchmarks.compare [faults] [ranks] [contrasts] [late] [drift] [models] [speed]

Each can be run by itself, with options: ``python -m benchmarks.compare.ranks --help``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from benchmarks.page import arguments, facts

PAGE = Path(__file__).parent / "README.md"
PARTS = {
    "faults": ("Eight planted faults, compared with msProbe", "faults"),
    "ranks": ("Other ranks", "ranks --seeds 20 --steps 2"),
    "contrasts": ("Another precision, order of sums or compiler", "contrasts --seeds 20"),
    "late": ("Faults that begin late", "late"),
    "drift": ("Losses that part", "drift --seeds 6 --steps 100"),
    "models": ("Models computed another way", "models"),
    "speed": ("Time and memory, compared with msProbe", "speed --rounds 3"),
}


def main() -> None:
    """Run the chosen parts one after the other: they measure time."""
    parser = arguments(__doc__)
    parser.add_argument("part", nargs="*", help=f"one of {', '.join(PARTS)}; all of them if none is given")
    chosen = parser.parse_args().part
    unknown = [name for name in chosen if name not in PARTS]
    if unknown:
        parser.error(f"there is no part '{unknown[0]}'; there are {', '.join(PARTS)}")
    for name in chosen or PARTS:
        title, command = PARTS[name]
        told = facts(f"python -m benchmarks.compare.{command}")
        done = subprocess.run(
            [sys.executable, "-m", *told["command"].split()[2:]], stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.returncode)
        write_section(title, told, done.stdout)


def write_section(title: str, told: dict[str, str], tables: str) -> None:
    """Replace the list of facts and the tables of one section of the page; the text before them stays."""
    page = PAGE.read_text(encoding="utf-8")
    section = re.compile(rf"(## {re.escape(title)}\n.*?)\n- command: .*?(?=\n## |\Z)", re.DOTALL)
    if not section.search(page):
        sys.exit(f"'{PAGE}' has no section '{title}' with a list that begins with '- command: '.")
    lines = [f"- command: `{told['command']}`", f"- machine: {told['machine']}"]
    text = "\n".join([*lines, f"- commit {told['commit']}, {told['date']}", "", tables.strip(), ""])
    PAGE.write_text(section.sub(lambda found: f"{found[1]}\n{text}", page), encoding="utf-8")


if __name__ == "__main__":
    main()
