"""`trueline verify`: exit codes, one JSON document, lines for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli import in_process

from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.store.writer import RunWriter


def test_verify_says_whole_damaged_and_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"
    writer = RunWriter(path, rank=0)
    writer.describe(Manifest(), RankEnv())
    writer.write({"step": 0})
    writer.close()
    code, out, _ = in_process.trueline(monkeypatch, capsys, "verify", path)
    assert (code, out) == (0, "Whole: 3 of 3 files are what was written.\n")
    (part,) = (path / "workers").iterdir()
    data = part.read_bytes()
    part.write_bytes(data[:-1])
    code, out, _ = in_process.trueline(monkeypatch, capsys, "verify", path)
    assert code == 1
    assert out.startswith("Damaged: 1 of 3 files are not what was written.\n  damaged: workers/part-r00000-000000")
    code, out, _ = in_process.trueline(monkeypatch, capsys, "verify", path, "--json")
    assert code == 1
    assert json.loads(out)["counts"] == {"whole": 2, "unchecked": 0, "torn": 0, "damaged": 1}
    code, out, err = in_process.trueline(monkeypatch, capsys, "verify", tmp_path / "nothing")
    assert (code, out) == (2, "")
    assert err.startswith("trueline: There is no Run")
