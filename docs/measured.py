"""Writes the numbers of README.md from the pages that measured them: what stands between `<!-- measured: NAME -->` and
`<!-- end -->`.

    python docs/measured.py    # after a benchmark has written its page

`tests/docs/test_measured.py` shows that README.md has what the pages have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
_MARKED = re.compile(r"(<!-- measured: (?P<name>[\w-]+) -->\n).*?(\n<!-- end -->)", re.DOTALL)


class Table:
    """The tables below one heading of a page, as rows of cells without their marks of bold type."""

    def __init__(self, page: str, heading: str) -> None:
        text = (ROOT / page).read_text(encoding="utf-8")
        _, _, below = text.partition(f"\n## {heading}\n")
        if not below:
            raise ValueError(f"{page} has no heading '{heading}': which section measures it now?")
        lines = below.partition("\n## ")[0].splitlines()
        self._rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
        self._page = page
        dates = re.findall(r"commit \w+, ([\d-]+)", below.partition("\n## ")[0])
        self.date = dates[0] if dates else ""

    def rows(self, label: str) -> list[list[str]]:
        """The cells behind ``label`` of all rows that begin with it; raises ValueError if there is none."""
        rows = [row[1:] for row in self._rows if row[0] == label]
        if not rows:
            raise ValueError(f"{self._page} has no row '{label}' any more: name the row that README.md shows.")
        return rows

    def row(self, label: str) -> list[str]:
        """The cells behind ``label`` in the first row that begins with it."""
        return self.rows(label)[0]


def against_msprobe() -> str:
    """Three things that both tools do, side by side."""
    statistics, tensors = Table("benchmarks/compare/README.md", FAULTS).rows("true call named first")
    recorded = Table("benchmarks/recording/README.md", "Time").row("statistics, modules and ops")
    recorded = [cell.partition(" (CPU")[0] for cell in recorded]
    idle = Table("benchmarks/recording/README.md", "Steps that are not selected")
    return "\n".join(
        [
            "| | msProbe | Trueline |",
            "|---|---|---|",
            "| true call named first, of 8 planted faults ([measured](benchmarks/compare/README.md)) "
            f"| {statistics[0]} (statistics), {tensors[0]} (tensors) | {statistics[2]}, {tensors[2]} |",
            "| time of a step that is recorded with statistics of modules and ops, against an unmonitored one "
            f"([measured](benchmarks/recording/README.md)) | {recorded[0]} × | {recorded[1]} × |",
            "| time of a step that is not selected, both attached: median and quartiles "
            f"([measured](benchmarks/recording/README.md)) | {idle.row('msProbe')[0]} | {idle.row('Trueline')[0]} |",
        ]
    )


def watching() -> str:
    """What the default plan costs in the first steps of a job, after them, and while it samples every fourth."""
    page = "benchmarks/overhead/README.md"
    first, steps = Table(page, "First steps and later ones"), Table(page, "Step time")
    early, late = first.row("the first 300, together"), first.row("700 later, together")
    watched, again = steps.row("default plan"), steps.row("unmonitored once more")
    return (
        "And without a counterpart in msProbe: watching by the default plan, as `trueline run` does, takes "
        f"{early[1]} times the CPU time of unmonitored steps in the first 300 and {late[1]} times in the 700 after "
        f"them ([measured](benchmarks/overhead/README.md) on two ranks, {first.date}). While it samples every fourth "
        f"step, in the first 300, a step of four ranks takes {watched[0]} times as long (quartiles {watched[1]}); the "
        f"unmonitored step once more: {again[0]} ({again[1]}) ({steps.date})."
    )


def false_alarms() -> str:
    """Alarms in healthy trainings, on shuffled data and in order."""
    page = "studies/judgement/README.md"
    shuffled = Table(page, "False alarms in healthy trainings").row("all")
    ordered = Table(page, "Autocorrelated ranks")
    early, late = ordered.row("250"), ordered.row("1000")
    return (
        f"In {shuffled[1]} healthy steps of small real trainings on shuffled data the checks that compare ranks raised "
        f"{_alarms(shuffled[3].partition(':')[0])} ([measured](studies/judgement/README.md); [how it decides]"
        "(docs/decides.md)). **Ranks that read documents in order** (contiguous shards, as in pre-training) have "
        "autocorrelated losses, and in the first few hundred steps healthy ranks are often reported: "
        f"{_alarms(early[1])} in {early[0]} such trainings when judged after 250 steps, {late[1]} after 1,000. "
        "[What to do about it](docs/limits.md#documents-in-order)."
    )


def _alarms(number: str) -> str:
    return f"{number} alarm" if number == "1" else f"{number} alarms"


FAULTS = "Eight planted faults, compared with msProbe"
BLOCKS: dict[str, Callable[[], str]] = {
    "against-msprobe": against_msprobe,
    "watching": watching,
    "false-alarms": false_alarms,
}


def measured(text: str) -> str:
    """``text`` with each marked block as the pages have it now."""
    return _MARKED.sub(lambda block: f"{block[1]}{BLOCKS[block['name']]()}{block[3]}", text)


if __name__ == "__main__":
    README.write_text(measured(README.read_text(encoding="utf-8")), encoding="utf-8")
