"""No command is printed with a word to fill in that somebody else has to fill in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import trueline

SOURCES = Path(trueline.__file__).parent
TO_FILL_IN = re.compile(r"trueline (?:trial )?[a-z]+ (?:[^`.]* )?(?:RUN|CALL|COMMAND|FILE|SITE)\b")
BETWEEN_BACKTICKS = re.compile(r"`[^`]*`")
BY_A_PERSON = {"cli/run_end.py": "trueline check RUN"}
"""The Run was moved: where it is now is what nobody but a person knows."""
FOR_DEVELOPERS = ("testing/", "cli/verbs/", "cli/help_texts.py", "demo/", "compat/")
"""Help texts, whose words are explained there, and a file that is translated before there is a Run."""


def _texts(tree: ast.AST) -> Iterator[str]:
    """String constants but documentation, with ``{}`` for what an f-string puts in."""
    nodes = list(ast.walk(tree))
    lone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in lone | inner:
            yield node.value


def test_a_command_with_a_word_to_fill_in_stands_between_backticks_where_it_is_filled_in():
    """``judge/actions.py`` and the frame of trials put paths and commands into those."""
    left: list[str] = []
    for path in sorted(SOURCES.rglob("*.py")):
        name = path.relative_to(SOURCES).as_posix()
        source = path.read_text()
        if name.startswith(FOR_DEVELOPERS) or "trueline " not in source:
            continue
        for text in _texts(ast.parse(source)):
            found = TO_FILL_IN.findall(BETWEEN_BACKTICKS.sub("", text))
            left += [f"{name}: {command}" for command in found if command != BY_A_PERSON.get(name)]
    assert left == []
