"""Commits of the repository that the job is run from, checked out beside it one at a time."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trueline.schema.errors import InputError
from trueline.trials.frame.runs import Way

ENVIRON = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Python takes compiled code for that of a file of the same size and second, as two commits leave one after another."""


@dataclass(frozen=True)
class Commits:
    """``names`` are hashes from the good one to the bad one, along first parents; ``tree`` is where each is checked
    out; ``inside`` is where in the repository the job runs.
    """

    root: Path
    names: tuple[str, ...]
    subjects: tuple[str, ...]
    tree: Path
    inside: Path

    @classmethod
    def between(cls, good: str, bad: str | None, *, tree: Path, job_folder: Path | None = None) -> Commits:
        """Commits of the repository of ``job_folder``. Raises ``InputError`` without such a line."""
        job_folder = (job_folder or Path.cwd()).resolve()
        root = Path(_git(job_folder, "rev-parse", "--show-toplevel")).resolve()
        if bad is None and _git(root, "status", "--porcelain", "--untracked-files=no"):
            raise InputError(
                f"'{root}' has changes that are in no commit, so that no commit is what you ran. Commit them, or name "
                "the commit that shows the finding with --bad."
            )
        first, last = (_git(root, "rev-parse", "--verify", f"{name}^{{commit}}") for name in (good, bad or "HEAD"))
        lines = _git(root, "log", "--first-parent", "--reverse", "--format=%H %s", f"^{first}", last).splitlines()
        start = _git(root, "log", "-1", "--format=%H %s", first)
        parent = _git(root, "log", "-1", "--format=%P", lines[0].split()[0]).split()[:1] if lines else []
        # --first-parent goes past a good commit that is on a merged branch
        if parent != [first]:
            raise InputError(f"'{good}' is no first-parent ancestor of '{bad or 'HEAD'}'. Name a good commit that is.")
        entries = [line.partition(" ") for line in (start, *lines)]
        names, subjects = (tuple(part[part_index] for part in entries) for part_index in (0, 2))
        return cls(root, names, subjects, tree.resolve(), job_folder.relative_to(root))

    def way(self, arm: str, version: int, words: Sequence[str]) -> Way:
        """The job in a checkout of a commit; words that are paths into the repository become those into it."""
        if not self.tree.exists():
            _git(self.root, "worktree", "add", "--force", "--detach", str(self.tree), self.names[version])
        _git(self.tree, "checkout", "--quiet", "--force", "--detach", self.names[version])
        # what the run before left behind is no part of this commit
        _git(self.tree, "clean", "-fdq")
        moved_words = [self._moved(word) for word in words]
        return Way(arm, ENVIRON, moved_words, folder=self.tree / self.inside)

    def says(self, version: int) -> str:
        """``1a2b3c4 Fuse the optimizer``."""
        return f"{self.names[version][:9]} {self.subjects[version]}".rstrip()

    def remove(self) -> None:
        """Remove the checkout."""
        if self.tree.exists():
            _git(self.root, "worktree", "remove", "--force", str(self.tree))

    def _moved(self, word: str) -> str:
        path = Path(word)
        is_ours = path.is_absolute() and path.is_relative_to(self.root) and not path.is_relative_to(self.tree)
        tracked = is_ours and _tracks(self.root, path.relative_to(self.root))
        return str(self.tree / path.relative_to(self.root)) if tracked else word


def _tracks(root: Path, path: Path) -> bool:
    """Return whether the repository has the file: an interpreter in an environment inside of it stays where it is."""
    listing = subprocess.run(
        ["git", "ls-files", "--error-unmatch", str(path)], cwd=root, capture_output=True, check=False
    )
    return listing.returncode == 0


def _git(folder: Path, *words: str) -> str:
    """Run git and return what it prints. Raises ``InputError`` with what it complains of."""
    try:
        result = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InputError(f"git cannot be started: {error}. Install it, or bisect on a machine that has it.") from None
    if result.returncode:
        complaint = result.stderr.strip().splitlines() or [f"status {result.returncode}"]
        raise InputError(f"git {words[0]} failed in '{folder}': {complaint[-1]}. Run it by itself to see why.")
    return result.stdout.strip()
