"""Seconds of CPU that tests take with all processes that they start, as a plugin of pytest: times on the clock tell of
the machine, too.

``python -m pytest -n 0 -p tests.cpu_seconds FILE…`` prints, of the dearest tests, what each took. Linux alone.
"""

import os
from collections import defaultdict
from collections.abc import Generator

import pytest

SHOWN = 30
TICKS = os.sysconf("SC_CLK_TCK")

_seconds_by_test: dict[str, float] = {}


def cpu_seconds(root: int) -> float:
    """CPU of process ``root``, of all that descend from it, and of those of them that ended and were waited for."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        children[int(fields[1])].append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))  # utime, stime and those of waited-for children: proc(5)
    total, left = 0, [root]
    while left:
        pid = left.pop()
        total += ticks.get(pid, 0)
        left += children[pid]
    return total / TICKS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Of a fixture that tests share, all is the first one's."""
    before = cpu_seconds(os.getpid())
    result = yield
    _seconds_by_test[item.nodeid] = cpu_seconds(os.getpid()) - before
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The dearest tests, after what all took together."""
    terminalreporter.section(f"{sum(_seconds_by_test.values()):.1f} s of CPU in {len(_seconds_by_test)} tests")
    for test in sorted(_seconds_by_test, key=_seconds_by_test.__getitem__, reverse=True)[:SHOWN]:
        terminalreporter.write_line(f"{_seconds_by_test[test]:8.2f}  {test}")
