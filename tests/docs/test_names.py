"""The ratchet of names: what counts as one, and that a package which got worse is said."""

import ast
import json
import shutil
import subprocess
import sys

import pytest
from tools import names


def pronouns(code):
    return [name for name in names.bound_names(ast.parse(code)) if names.is_pronoun(name)]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("found = 1", ["found"]),
        ("def _told(each): pass", ["_told", "each"]),
        ("[place for place in places]", ["place"]),
        ("self.kept = ranks", ["kept"]),
        ("for finding in findings: print(finding, one)", []),
        ("rank_of = gradient = 2", []),
    ],
)
def test_a_pronoun_counts_where_it_is_bound(code, expected):
    assert sorted(pronouns(code)) == sorted(expected)


def test_comments_for_tools_and_docstrings_do_not_count():
    text = '"""Read.\n\nMore.\n"""\n# why\nx = 1  # noqa: E501\n'
    assert (names.num_comments(text), names.num_code_lines(text, ast.parse(text))) == (1, 1)


def test_a_package_that_got_worse_is_said(tmp_path):
    (tmp_path / "tools").mkdir()
    script = tmp_path / "tools" / "names.py"
    shutil.copy(names.__file__, script)
    package = tmp_path / "src" / "trueline" / "judge"
    package.mkdir(parents=True)
    (package / "a.py").write_text("found = rank = 1  # of the team\n", encoding="utf-8")

    def run(*args):
        return subprocess.run([sys.executable, script, *args], capture_output=True, text=True, check=False)

    assert run("--write").returncode == 0
    assert json.loads((tmp_path / "tools" / "names.json").read_text())["judge"] == {"pronouns": 50.0, "comments": 100.0}
    (package / "a.py").write_text("found = told = 1\n", encoding="utf-8")
    worse = run()
    assert worse.returncode == 1
    assert worse.stderr.splitlines() == [
        "judge: 100.0 % of bound names are pronouns, 50.0 % before.",
        "judge: 0.0 comments in 100 lines of code, 100.0 before.",
    ]
