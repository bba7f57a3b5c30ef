"""Which tests of the marker ``in_turn`` a run of the whole suite takes: a quarter, another one from commit to commit.

The marker stands at tests that take long, most of them one fact in many variants, each of which trains. Together they
take two thirds of the suite's time. Of a test with four or more variants one at least is in each turn.
"""

from __future__ import annotations

import subprocess
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

TURNS = 4
ALL = "all"


def turn_of_commit(root: Path) -> str:
    """The turn of the commit that is checked out: its name is as good as a die, also in a clone of one commit. All
    turns where there is no git.
    """
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return ALL
    return str(int(done.stdout, 16) % TURNS)


def of_other_turns(items: Iterable[pytest.Item], turn: str) -> list[pytest.Item]:
    """The tests that are another turn's."""
    if turn == ALL:
        return []
    numbers = Counter[str]()
    others: list[pytest.Item] = []
    for item in items:
        if item.get_closest_marker("in_turn") is None:
            continue
        test = item.nodeid.partition("[")[0]
        if (zlib.crc32(test.encode()) + numbers[test]) % TURNS != int(turn):
            others.append(item)
        numbers[test] += 1
    return others
