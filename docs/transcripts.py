"""Runs the commands that the pages show, and writes what they print, and the files they show, into the pages.

    python docs/transcripts.py docs/walkthroughs/nan.md README.md    # or `make transcripts` for all of them

Three kinds of block are written, and `tests/docs/test_transcripts.py` shows that they are true:

- one of kind `console` whose lines begin with `$ `: each such line is run, in a copy of `docs/walkthroughs` and
  `examples` (for pages in the former there, else above both), and the lines behind it are what it printed.
  `<!-- cut: TEXT | TEXT -->` in front leaves out the rest from a line on that begins with one of the texts;
- one behind `<!-- file: NAME -->`: a file of `docs/walkthroughs`;
- one behind `<!-- diff: OLD NEW -->`: what differs between two of them.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WALKTHROUGHS = ROOT / "docs" / "walkthroughs"
WIDTH = 100
"""Columns of the terminal that is shown."""

SHOWN = "/home/you/trueline"
"""Where the sources are in what is shown."""

_BLOCK = re.compile(
    r"^(?:<!-- (?P<kind>cut|file|diff): (?P<words>.*?) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)

Run = Callable[[str], str]


def pages() -> list[Path]:
    """Every page that has a block to write."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if any(_is_written(found) for found in _BLOCK.finditer(_text(page)))]


def commands(page: Path) -> Iterator[str]:
    """The commands that ``page`` shows, in order."""
    for found in _BLOCK.finditer(_text(page)):
        if found["language"] == "console":
            yield from re.findall(r"^\$ (.*)$", found["body"], re.MULTILINE)


def written(page: Path, run: Run) -> str:
    """The text of ``page`` with every block as it should be; ``run`` returns what a command prints."""
    return _BLOCK.sub(lambda found: _block(found, run) if _is_written(found) else found[0], _text(page))


def in_a_shell(folder: Path, root: Path) -> Run:
    """What a command prints that is run by bash in ``folder``, below ``root``: standard output, then standard error."""
    environ = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(WIDTH),
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
    }

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
        return (done.stdout + done.stderr).replace(str(root), SHOWN)

    return run


def placed(page: Path, root: Path) -> Path:
    """Where the commands of ``page`` are run, after the files that they name were copied to below ``root``."""
    for source in (ROOT / "examples", WALKTHROUGHS):
        shutil.copytree(source, root / source.relative_to(ROOT), ignore=shutil.ignore_patterns("__pycache__", "*.md"))
    return root / WALKTHROUGHS.relative_to(ROOT) if page.parent == WALKTHROUGHS else root


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _is_written(found: re.Match[str]) -> bool:
    return found["kind"] in ("file", "diff") or (found["language"] == "console" and found["body"].startswith("$ "))


def _block(found: re.Match[str], run: Run) -> str:
    words = (found["words"] or "").split()
    if found["kind"] == "file":
        body = _text(WALKTHROUGHS / words[0])
    elif found["kind"] == "diff":
        body = _difference(*words)
    else:
        stops = tuple(text.strip() for text in found["words"].split("|")) if found["words"] else ()
        lines = re.findall(r"^\$ (.*)$", found["body"], re.MULTILINE)
        body = "\n".join(f"$ {line}\n{_shown(run(line), stops)}" for line in lines)
    return found[0][: found.start("body") - found.start()] + body + "```"


def _difference(old: str, new: str) -> str:
    texts = [_text(WALKTHROUGHS / name).splitlines(keepends=True) for name in (old, new)]
    lines = list(difflib.unified_diff(*texts, n=1))[2:]
    return "".join(line for line in lines if not line.startswith("@@"))


def _shown(printed: str, stops: tuple[str, ...]) -> str:
    """``printed`` without spaces at the ends of lines, and without what follows one that begins with one of
    ``stops``.
    """
    lines: list[str] = []
    for line in printed.rstrip().splitlines():
        if stops and line.startswith(stops):
            lines.append("…")
            break
        lines.append(line.rstrip())
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Write the pages that are named, or all."""
    for page in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        with tempfile.TemporaryDirectory() as root:
            page.write_text(written(page, in_a_shell(placed(page, Path(root)), Path(root))), encoding="utf-8")


if __name__ == "__main__":
    main()
