"""The walks of docs/architecture.md name what is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
STOPS = re.findall(r"^\| `([\w/]+\.py): ([\w.]+)` \|", PAGE, re.MULTILINE)


def defined_in(path: Path) -> set[str]:
    """Functions and classes of a file, and methods as ``Class.method``."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names |= {node.name}
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return names


def test_there_are_two_walks():
    assert len(STOPS) > 20


@pytest.mark.parametrize(("file", "name"), STOPS, ids=[": ".join(stop) for stop in STOPS])
def test_a_stop_of_a_walk_is_there(file, name):
    assert name in defined_in(ROOT / "src" / "trueline" / file)
