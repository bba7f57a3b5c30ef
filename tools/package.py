"""Builds the sources' archive and the wheels into dist/, and shows that they install: `make package`.

Each is built twice, from two copies of what git has, and must be equal byte by byte. The wheel is then installed by pip
into two new environments, one of which has no torch; in the other the job of the first page runs, and in both its Run
is read.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


def main() -> None:
    """Build, compare, install, run."""
    date = _output("git", "log", "-1", "--format=%ct").strip()
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        digests = [_built(Path(folder) / name, date) for name in ("first", "second")]
        if digests[0] != digests[1]:
            sys.exit(f"package: two builds of equal sources differ: {digests[0]} and {digests[1]}.")
        shutil.copytree(Path(folder) / "first" / "dist", DIST)
        for name, digest in sorted(digests[0].items()):
            sys.stdout.write(f"{digest}  dist/{name}\n")
        (wheel,) = (path for path in DIST.glob("*.whl") if "none-any" not in path.name)
        # the release that is here: the newest may be one of some gigabytes for another device
        torch = importlib.metadata.version("torch").partition("+")[0]
        training = _environment(Path(folder) / "with torch", f"{wheel}[torch]", f"torch=={torch}")
        reading = _environment(Path(folder) / "without torch", str(wheel))
        _first_page(training, reading, Path(folder) / "page")
    sys.stdout.write("The wheel installs with and without torch, and the first page runs as it stands.\n")


def _built(folder: Path, date: str) -> dict[str, str]:
    """Builds in a copy of the sources at ``folder``; the digest of each file by its name."""
    sources = folder / "sources"
    sources.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x", "-C", str(sources)], input=archive, check=True)
    for words, pure in ((("--sdist", "--wheel"), "0"), (("--wheel",), "1")):
        environ = {"SOURCE_DATE_EPOCH": date, "TRUELINE_PURE": pure}
        # what the build before left is no part of a wheel for every machine
        shutil.rmtree(sources / "build", ignore_errors=True)
        _run(sys.executable, "-m", "build", *words, "--outdir", str(folder / "dist"), str(sources), environ=environ)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "dist").iterdir()}


def _environment(folder: Path, wheel: str, *before: str) -> Path:
    """The directory of commands of a new environment in which pip has installed ``wheel``, after what comes before."""
    venv.create(folder, with_pip=True)
    for package in (*before, wheel):
        _run(str(folder / "bin/python"), "-m", "pip", "install", "--quiet", package)
    return folder / "bin"


def _first_page(training: Path, reading: Path, folder: Path) -> None:
    shutil.copytree(ROOT / "docs/walkthroughs", folder / "docs/walkthroughs")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (trueline .*)$", page, re.MULTILINE)
    if not commands:
        sys.exit("package: README.md shows no command of trueline, so that nothing was tried.")
    for command in commands:
        places = [training] if command.startswith("trueline run") else [training, reading]
        for place in places:
            environ = os.environ | {"PATH": f"{place}:{os.environ['PATH']}", "PYTHONPATH": ""}
            again = command.replace("report.html", "report.html --overwrite")
            done = subprocess.run(
                again, shell=True, cwd=folder, env=environ, capture_output=True, text=True, check=False
            )
            found = 1 if command.startswith("trueline check") else 0  # the job of the page has a fault
            if done.returncode != found:
                sys.exit(f"package: `{command}` ended with {done.returncode}, expected {found}:\n{done.stderr}")


def _run(*words: str, environ: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(words, env=os.environ | (environ or {}), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"package: `{' '.join(words)}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def _output(*words: str) -> str:
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
