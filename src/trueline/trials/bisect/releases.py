"""Releases of one package, each in a folder of its own that stands before what is installed: nothing else changes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trueline.schema.errors import InputError
from trueline.trials.frame.runs import Way


@dataclass(frozen=True)
class Releases:
    """``names`` are versions of ``package`` from the good one to the bad one; ``folder`` is where each is installed, by
    pip of ``python``, without what it depends on.
    """

    package: str
    names: tuple[str, ...]
    folder: Path
    python: str

    @classmethod
    def between(cls, package: str, good: str, bad: str | None, *, folder: Path, words: Sequence[str]) -> Releases:
        """The releases that pip finds, with its own settings (``PIP_INDEX_URL``, ``PIP_FIND_LINKS``); without a ``bad``
        one up to what is installed. Raises ``InputError`` where pip or one of the two is missing, or their order is
        another.
        """
        python = _interpreter(words)
        last = bad or _installed(package, python)
        listed = _pip(python, "index", "versions", package)
        match = re.search(r"Available versions: (.*)", listed)
        releases = [release.strip() for release in match[1].split(",")][::-1] if match else []
        for option, name in (("--good", good), ("--bad", last)):
            if name not in releases:
                raise InputError(f"{option} is '{name}', which is no release of {package} that pip finds: it finds "
                                 f"{', '.join(releases)}.")  # fmt: skip
        if releases.index(good) >= releases.index(last):
            raise InputError(f"{package} {good} is no older than {last}. Name an older one with --good.")
        names = tuple(releases[releases.index(good) : releases.index(last) + 1])
        return cls(package, names, folder.resolve(), python)

    def way(self, arm: str, version: int, words: Sequence[str]) -> Way:
        """The job with a release in front. One that pip cannot install does not run."""
        installed = self.folder / self.names[version]
        if not installed.exists():
            part = installed.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            try:
                requirement = f"{self.package}=={self.names[version]}"
                _pip(self.python, "install", "--quiet", "--no-deps", "--target", str(part), requirement)
            except InputError as error:
                return Way(arm, words=[sys.executable, "-c", f"raise SystemExit({str(error)!r})"])
            # a kill during pip leaves .part, and no release that looks whole
            part.replace(installed)
        path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))
        return Way(arm, {"PYTHONPATH": path}, list(words))

    def says(self, version: int) -> str:
        """``1.2 of einops``."""
        return f"{self.names[version]} of {self.package}"

    def remove(self) -> None:
        """Remove what was installed."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _interpreter(words: Sequence[str]) -> str:
    """The Python that the command runs, where its first word says so; else this one."""
    path = shutil.which(words[0]) if words else None
    return path if path is not None and Path(path).name.startswith("python") and _has_pip(path) else sys.executable


def _has_pip(python: str) -> bool:
    return subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0


def _installed(package: str, python: str) -> str:
    script = f"import importlib.metadata as m; print(m.version({package!r}))"
    result = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    if result.returncode:
        raise InputError(f"{package} is not installed for {python}. Name the release that shows it with --bad.")
    return result.stdout.strip()


def _pip(python: str, *words: str) -> str:
    """Run pip and return what it prints. Raises ``InputError`` with what it complains of."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "ERROR" in line or "No module" in line]
        why = (lines or result.stderr.strip().splitlines() or ["it failed"])[-1]
        raise InputError(f"pip {words[0]} failed: {why.strip()} Run it by itself: {' '.join(command)}")
    return result.stdout
