"""Codes of findings stand with the law that has them: all others read what it declares of them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import trueline
from trueline.schema.law import BESIDE, installed_laws

PACKAGE = Path(trueline.__file__).parent
SHOWN_IN = ("demo",)
"""A demonstration of faults says which code is to find each, as the gallery does."""
HOME_OF = {code: law.package for law in installed_laws() for code in law.codes}
CODE = re.compile(rf"({'|'.join(sorted(map(re.escape, HOME_OF)))})(/[\w|-]+)?")


def _homes(code: str) -> list[str]:
    """Folders that may name ``code``: commands that hold Runs or devices against each other share what they find."""
    packages = BESIDE if HOME_OF[code] in BESIDE else [HOME_OF[code]]
    return [package.replace(".", "/") for package in packages]


def codes_away_from_home(file: str, source: str) -> Iterator[str]:
    """Places where a text of ``file`` is the code of a law of another folder, with or without a kind."""
    for node in ast.walk(ast.parse(source)):
        match = CODE.fullmatch(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
        if match and not file.startswith(tuple(f"{home}/" for home in _homes(match[1]))):
            yield f"{file}:{node.lineno}: {node.value}"


def test_no_code_stands_outside_the_folder_of_its_law():
    places = []
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE.parent).as_posix()
        # What a law declares names the codes that such a fault brings with it.
        if path.name != "declared.py" and path.relative_to(PACKAGE).parts[0] not in SHOWN_IN:
            places += codes_away_from_home(file, path.read_text(encoding="utf-8"))
    assert not places, "Declare it in declared.py of the law, and read facts_of(code)."


def test_a_code_away_from_home_is_seen():
    source = 'def check(run):\n    return "replica-drift" in run or "replica-drift/late" in run or "drifts"\n'
    assert [place.split(": ")[1] for place in codes_away_from_home("trueline/judge/a.py", source)] == [
        "replica-drift",
        "replica-drift/late",
    ]
    assert not list(codes_away_from_home("trueline/laws/replicas/a.py", source))
