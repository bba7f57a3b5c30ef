"""The page while a Run grows, after its job was killed, and after the Run is gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.synthetic_runs import write_run
from tests.web.browser import NEEDS_BROWSER, BrowserPage
from tests.web.served import Served

pytestmark = NEEDS_BROWSER

ROOT = Path(__file__).parents[2]
STEP = "Number(document.querySelector('#verdict [role=status]')?.textContent.match(/step (\\d+)/)?.[1] ?? -1)"


@pytest.mark.in_turn
def test_a_run_that_grows_is_killed_and_vanishes_while_it_is_looked_at(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.web.growing", str(tmp_path / "run"), "2", "0.05"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "begun\n"
            with Served([tmp_path / "run"]) as served, BrowserPage(served.url(), width=1280) as page:
                page.until("document.querySelector('.pulse')")
                first = page.until(f"{STEP} >= 0 && {STEP} + 1") - 1
                page.until(f"{STEP} > {first}")

                job.kill()
                job.wait()
                page.evaluate("location.hash = 'screen=trend'")
                page.until("document.querySelector('.lines canvas')")
                page.evaluate("location.hash = ''")
                page.until(f"{STEP} > {first}")

                shutil.rmtree(tmp_path / "run")
                # the judge may say first that it found no Run
                refused = "[...document.querySelectorAll('.refused')].map(line => line.textContent).join(' ')"
                page.until(f"{refused}.includes('can no longer be read')")
                assert page.errors == []
        finally:
            job.kill()


def test_a_run_that_begins_in_a_directory_of_runs_appears_by_itself(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "first", num_steps=8)
    (tmp_path / "runs" / "notes.txt").write_text("no Run")
    lines = "[...document.querySelectorAll('.runs > li .status a')].map((each) => each.textContent)"
    with Served([tmp_path / "runs"]) as served, BrowserPage(served.url("screen=runs"), width=1280) as page:
        page.until(f"{lines}.length === 1")
        half = tmp_path / "runs" / "half"
        half.mkdir()
        (half / "manifest.json").write_text("{")  # as one that is being written
        write_run(tmp_path / "runs" / "second", num_steps=8)
        page.until(f"{lines}.length === 2")
        assert sorted(page.evaluate(lines)) == ["first", "second"]
        write_run(tmp_path / "begun", num_steps=8)
        shutil.rmtree(half)
        (tmp_path / "begun").rename(half)
        page.until(f"{lines}.length === 3")
        assert page.errors == []
