"""A Run judged whole, and followed: in stretches, and again and again while it grows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from trueline.judge import check_run, following
from trueline.judge.follows import MARGIN_STEPS
from trueline.judge.registry import installed_checks
from trueline.store.judged import read_judged
from trueline.store.reader import Run


@contextmanager
def in_stretches(steps: int, *, still_open: int = MARGIN_STEPS) -> Iterator[None]:
    """Within it, checks follow in stretches of so few steps; elsewhere short Runs are judged whole."""
    with mock.patch.multiple(following, STRETCH_STEPS=steps, OPEN_STEPS=still_open, STEPS_AT_ONCE=2 * steps):
        yield


def whole(run: Run) -> str:
    """What is said of a Run of which every check is shown all steps."""
    with mock.patch.object(check_run, "earlier_judgements", return_value=None):
        return said(run)


def said(run: Run | Path) -> str:
    """All that is said of a Run."""
    return json.dumps(check_run.check(run).to_json())


@contextmanager
def followers_alone() -> Iterator[None]:
    """Within it, the checks that can follow are all there are; the others are shown the whole Run either way."""
    followers = [each for each in installed_checks() if each.follows is not None]
    with mock.patch.object(check_run, "installed_checks", return_value=followers):
        yield


def assert_follows(path: Path, ends: Sequence[int], *, steps: int) -> set[str]:
    """Judge the Run at ``path`` as it was at each of ``ends``, in turn, and then all of it, from what is kept in it
    each time; and once from nothing. The checks that followed to the last.
    """
    run = Run(path)
    cuts = [*(run.before(end) for end in ends), run]
    with followers_alone():
        expected = [whole(cut) for cut in cuts]
        with in_stretches(steps):
            assert [said(cut) for cut in cuts] == expected
            kept = read_judged(str(path)) or {"silent": {}}
            (path / "judged.json").unlink(missing_ok=True)
            assert said(run) == expected[-1]
            anew = read_judged(str(path))  # nothing where ranks part: then what an earlier look kept stays as it was
            assert anew in (kept, None), "what is kept depends on who looked when"
    (path / "judged.json").unlink(missing_ok=True)
    return {code for code, silent in kept["silent"].items() if not silent["spoke"]}


def copy_of(path: Path, other: Path) -> Path:
    """The same Run at another place."""
    return Path(shutil.copytree(path, other))
