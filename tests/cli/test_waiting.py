"""A log of standard error has a line now and then, and no spinner."""

import io
import time

import pytest
from rich.console import Console

from trueline.cli import waiting
from trueline.demo import screen


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(waiting, "EVERY_S", 0.01)


def test_a_log_gets_the_latest_news_in_lines(monkeypatch, capsys, often):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    told = ""
    with waiting.waiting("Checking [bold]run") as say:
        while told.count("Checking") < 2:
            time.sleep(0.01)
            told += capsys.readouterr().err
        say("Checking: 3 of 4")
        while "3 of 4" not in told:
            time.sleep(0.01)
            told += capsys.readouterr().err
    assert "\x1b" not in told
    assert all(line.startswith("trueline: Checking") and line.endswith(" s)") for line in told.splitlines())


def test_short_work_leaves_no_line(capsys):
    with waiting.waiting("Checking run") as say:
        say("Checking: 3 of 4")
    assert capsys.readouterr().err == ""


def test_a_demo_tells_a_log_of_each_setting_and_how_far_it_is(monkeypatch):
    monkeypatch.setattr(screen, "EVERY_S", 1e9)
    log = io.StringIO()
    with screen.progress_bars(Console(file=log, force_terminal=True)) as progress:
        progress("s1-1", 0, 80, "starting")
        progress("s1-1", 1, 80, "loss of rank 0: 5.000")
        monkeypatch.setattr(screen, "EVERY_S", 0.0)
        progress("s1-1", 40, 80, "loss of rank 0: 4.000")
        progress("s1-2", 0, 80, "starting")
    assert log.getvalue() == "s1-1: 0 of 80, starting\ns1-1: 40 of 80, loss of rank 0: 4.000\ns1-2: 0 of 80, starting\n"
