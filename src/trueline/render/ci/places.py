"""Where a file of the user stands in the repository, as annotations name it."""

from __future__ import annotations

from pathlib import Path


def path_within(folder: Path, file: str) -> str | None:
    """``jobs/train.py``, or None of a file that is not in ``folder``, which is the working directory of the job that
    reports, as systems of continuous integration start it: the top of the repository.
    """
    folder = folder.resolve()
    path = (folder / file).resolve()
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else None
