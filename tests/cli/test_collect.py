"""`trueline collect`: exit codes, one JSON document, lines for people."""

from __future__ import annotations

import json
import threading

from tests.cli import in_process
from tests.unit.store.test_collect import machine

from trueline.store import collect


def test_collect_says_what_is_there_and_what_is_not(tmp_path, monkeypatch, capsys):
    machine(tmp_path / "a", [0, 1])
    machine(tmp_path / "b", [2, 3])
    code, out, _ = in_process.trueline(monkeypatch, capsys, "collect", tmp_path / "a", tmp_path / "whole")
    assert code == 1
    assert out.startswith("Incomplete: ranks 2 and 3 of 4 left nothing in these places; ")
    code, out, _ = in_process.trueline(
        monkeypatch, capsys, "collect", tmp_path / "a", tmp_path / "b", tmp_path / "whole"
    )
    assert code == 0
    assert out.startswith("Complete: 4 ranks of 4")
    assert out.endswith(f"Next: trueline check {tmp_path / 'whole'}\n")
    code, out, _ = in_process.trueline(
        monkeypatch, capsys, "collect", tmp_path / "a", tmp_path / "b", tmp_path / "whole", "--json", "--follow"
    )
    document = json.loads(out)
    assert (code, document["copied"], document["missing"], document["unclosed"]) == (0, 0, [], [])
    code, _, err = in_process.trueline(monkeypatch, capsys, "collect", tmp_path / "nothing", tmp_path / "whole")
    assert code == 2
    assert err.startswith("trueline: ")
    assert err.count("\n") == 1
    code, _, err = in_process.trueline(monkeypatch, capsys, "collect", tmp_path / "a")
    assert (code, err.count("\n")) == (2, 1)


def test_ranks_that_still_write_are_named(tmp_path, monkeypatch, capsys):
    writers = machine(tmp_path / "a", [0, 1, 2, 3], close=False)
    _, out, _ = in_process.trueline(monkeypatch, capsys, "collect", tmp_path / "a", tmp_path / "whole")
    assert "had not ended (or were killed)" in out
    for writer in writers:
        writer.close()


def test_following_writes_nothing_into_the_log_of_the_job(tmp_path, monkeypatch, capsys):
    machine(tmp_path / "a", [0, 1, 2, 3])
    threads: list[str] = []
    monkeypatch.setattr(
        collect, "follow_until", lambda *_, **__: threads.extend(thread.name for thread in threading.enumerate())
    )
    code, _, _ = in_process.trueline(monkeypatch, capsys, "collect", "--follow", tmp_path / "a", tmp_path / "whole")
    assert code == 0
    assert "MainThread" in threads
    assert "trueline-waiting" not in threads  # which says every half minute that it waits
