"""The public trainings that ``benchmarks.facts`` runs: what ``examples.toml`` says of each. Their code is not here."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CATALOGUE = Path(__file__).with_name("examples.toml")


@dataclass(frozen=True, slots=True)
class Example:
    """A training of somebody else, and what is changed of it so that it runs on a CPU with made-up data.

    ``path`` is the script in the ``repository`` at its ``commit``; ``folders`` are what of the repository is laid out
    (default: the script's own folder), ``start`` the folder to start in (default: that of the script). ``ranks`` 0 is
    a plain ``python``, else ``torchrun``. ``files`` are made-up files by where they lie, from ``start``; ``stand_ins``
    are modules of ``stand_in``; ``replaced`` are substitutions: file in the repository (default: ``path``), text, text
    in its place. ``changes`` says in words what is changed. ``not_healthy`` is what is wrong with the training as its
    authors have it: it is run, and not counted.
    """

    name: str
    repository: str
    commit: str
    path: str
    arguments: Sequence[str] = ()
    ranks: int = 0
    module: bool = False
    folders: Sequence[str] = ()
    start: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    stand_ins: Sequence[str] = ()
    replaced: Sequence[Sequence[str]] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    changes: str = ""
    not_healthy: str = ""

    @property
    def laid_out(self) -> Sequence[str]:
        """What of the repository the training needs."""
        return self.folders or (str(Path(self.path).parent),)

    @property
    def started_in(self) -> str:
        """The folder in the repository that the training starts in."""
        return self.start or str(Path(self.path).parent)


def read(file: Path = CATALOGUE) -> list[Example]:
    """The trainings of the catalogue, in its order. Raises ``ValueError`` where two have one name."""
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    commits = document["commits"]
    examples = [Example(**{"commit": commits[entry["repository"]], **entry}) for entry in document["example"]]
    names = [example.name for example in examples]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{file.name} has two trainings called {', '.join(twice)}")
    return examples
