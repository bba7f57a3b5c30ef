"""The command line, called in the process of the test: a fresh interpreter takes a second."""

from __future__ import annotations

import pytest

from trueline.cli import main as command_line


def trueline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command."""
    monkeypatch.setattr("sys.argv", ["trueline", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        command_line.main()
    output = capsys.readouterr()
    return int(left.value.code or 0), output.out, output.err
