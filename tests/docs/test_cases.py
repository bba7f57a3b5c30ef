"""The cases of the guide are solved by the commands of the page, run as they stand there."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from tests.cli import in_process

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/walkthroughs/cases.md").read_text()
CASES = dict(re.findall(r"^## (3\.[\d.]+) [^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def test_all_nine_are_there():
    assert list(CASES) == [
        "3.1.1",
        "3.1.2",
        "3.1.3",
        *(f"3.2.1.{n}" for n in (1, 2, 3)),
        *(f"3.2.2.{n}" for n in (1, 2, 3)),
    ]
    assert all(re.search(r"^> ", text, re.MULTILINE) for text in CASES.values())


@pytest.mark.in_turn
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [name for name in CASES if name != "3.1.3" and name != "3.2.1.2"])
def test_the_commands_of_a_case_say_what_the_page_says(case, python, forks, tmp_path, monkeypatch, capsys):
    """3.1.3 and 3.2.1.2 take the Run of 3.1.2, and come with it."""
    together = [CASES[case], *((CASES["3.1.3"], CASES["3.2.1.2"]) if case == "3.1.2" else ())]
    shutil.copytree(ROOT / "examples/cases", tmp_path / "cases")
    monkeypatch.chdir(tmp_path / "cases")
    for text in together:
        said = ""
        for line in re.search(r"```\n(.*?)```", text, re.DOTALL)[1].splitlines():
            words = [python if word == "python" else word for word in shlex.split(line)[1:]]
            _, out, err = in_process.trueline(monkeypatch, capsys, *words)
            said += f" {out} {err}"
        for expected in re.findall(r"^> (.*)$", text, re.MULTILINE):
            assert expected in " ".join(said.split()), said
