"""How much of the code is written in pronouns, by package; it may only get better.

    python tools/names.py [--write]

A bound name (of a variable, an argument, a function, a class, an attribute) that is a pronoun, a bare participle or a
preposition says nothing to somebody who starts reading there. ``names.json`` has the share of them among all bound
names, and the comments in 100 lines of code, of each package. A package that got worse is said, and the command fails,
unless it is still as good as asked for; ``--write`` writes down what got better.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "trueline"
NUMBERS = Path(__file__).with_suffix(".json")
MOST_PRONOUNS, FEWEST_COMMENTS = 1.0, 2.0
"""What is asked of a package: code that is read aloud without stumbling has 0 to 1 % and 3.6 to 7.8 (starlette,
torchtitan, sqlite-utils, cockpit, einops, counted likewise).
"""
_WORDS = """
all another any anything both each either every everything it its mine most neither none nothing one ones other
others ours same several some something such that the their theirs them there these they this those what which
who whose yours apart around beside between by further of off on out over since till under until within asked
begun brought called chosen come done fed found given gone grown heard held here kept known left looked lost
made named own place places put read said seen shown taken thing things told used wanted
"""
PRONOUNS = frozenset(_WORDS.split())


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Every name that is bound in the code, as often as it is."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def is_pronoun(name: str) -> bool:
    """True if the name, without underscores around it, is one of ``PRONOUNS``; ``__all__`` is Python's own."""
    return name != "__all__" and name.strip("_").lower() in PRONOUNS


def num_comments(text: str) -> int:
    """Comments of ``text`` but for those that are for tools."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return sum(not comment.startswith(("# type:", "# noqa", "# pyright", "#!")) for comment in comments)


def num_code_lines(text: str, tree: ast.AST) -> int:
    """Lines that are neither blank, nor a comment, nor of a docstring."""
    docstrings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(bool(line) and not line.startswith("#") and number not in docstrings for number, line in lines)


def measured() -> dict[str, dict[str, float]]:
    """By package the share of pronouns, in percent, and the comments in 100 lines of code."""
    names, pronouns, comments, lines = Counter(), Counter(), Counter(), Counter()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        tree, package = ast.parse(text), path.relative_to(SOURCE).parts[0].removesuffix(".py")
        bound = list(bound_names(tree))
        names[package] += len(bound)
        pronouns[package] += sum(map(is_pronoun, bound))
        comments[package] += num_comments(text)
        lines[package] += num_code_lines(text, tree)
    return {
        package: {
            "pronouns": round(100 * pronouns[package] / max(names[package], 1), 2),
            "comments": round(100 * comments[package] / max(lines[package], 1), 1),
        }
        for package in sorted(names)
    }


def main() -> None:
    """Compare with what is written down; exit 1 where a package got worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    now = measured()
    before = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}
    worse = [
        f"{package}: {share['pronouns']} % of bound names are pronouns, {before[package]['pronouns']} % before."
        for package, share in now.items()
        if package in before and share["pronouns"] > max(before[package]["pronouns"], MOST_PRONOUNS)
    ]
    worse += [
        f"{package}: {share['comments']} comments in 100 lines of code, {before[package]['comments']} before."
        for package, share in now.items()
        if package in before and share["comments"] < min(before[package]["comments"], FEWEST_COMMENTS)
    ]
    if worse:
        sys.exit("\n".join(worse))
    if parser.parse_args().write:
        NUMBERS.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
