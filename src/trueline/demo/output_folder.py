"""The directory that a demo writes into, and the care not to remove anything that no demo has written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trueline.demo.settings import SETTINGS
from trueline.schema.errors import InputError, RunExistsError
from trueline.schema.files.run_lock import require_ended

MARKER = "demo.json"
REPORT = "report.html"
RUN_ENTRIES = frozenset(
    {"manifest.json", "plan.json", "plans", "env", "workers", "records", "journal", "tensors", "stacks"}
)


def require_free(folder: Path, *, overwrite: bool) -> None:
    """Raise ``RunExistsError`` unless ``folder`` may become a demo directory; changes nothing.

    A missing or empty directory is free. One that holds something is refused unless ``overwrite`` is set *and* all that
    would go is the output of an earlier demo; other files beside that output are left alone.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise RunExistsError(
            f"Output '{folder}' exists and is not a directory; pass --out DIR with a new or empty one."
        )
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not _is_demo(folder):
        raise RunExistsError(
            f"Output directory '{folder}' holds files that are not of a Trueline demo, so it is never overwritten; "
            "pass --out DIR with a new or empty one."
        )
    if not overwrite:
        raise RunExistsError(
            f"Output directory '{folder}' holds an earlier demo; "
            "pass --overwrite to replace it, or --out DIR for another place."
        )
    for run in _runs(folder):
        require_ended(run)
    foreign = [entry for run in _runs(folder) for entry in _foreign_entries(run)]
    if foreign:
        raise RunExistsError(
            f"'{foreign[0]}' lies in an earlier demo but is no part of a Run, so nothing was removed; "
            "move it away, or pass --out DIR with another place."
        )


def claim(folder: Path, about: Mapping[str, Any], *, overwrite: bool) -> None:
    """Make ``folder`` a demo directory without Runs, marked by `demo.json`, which says ``about`` how the demo is run.

    Raises as ``require_free``, and ``InputError`` where ``folder`` cannot be written.
    """
    try:
        require_free(folder, overwrite=overwrite)
        for run in _runs(folder):
            shutil.rmtree(run)
        for file in (folder / REPORT, folder / MARKER):
            file.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MARKER).write_text(json.dumps({"trueline": "demo", **about}, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"Output directory '{folder}' cannot be written ({error.strerror or error}); "
            "pass --out DIR with a writable place."
        ) from None


def _runs(folder: Path) -> list[Path]:
    return [folder / setting.name for setting in SETTINGS if (folder / setting.name).exists()]


def _is_demo(folder: Path) -> bool:
    try:
        content = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("trueline") == "demo"


def _foreign_entries(run: Path) -> list[Path]:
    """What lies in the Run directory ``run`` and was not written by Trueline; a link in its place counts itself."""
    if run.is_symlink() or not run.is_dir():
        return [run]
    return [
        entry
        for entry in sorted(run.iterdir())
        if entry.is_symlink() or not (entry.name in RUN_ENTRIES or entry.name.startswith("findings"))
    ]
