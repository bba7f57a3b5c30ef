"""No name, path or value of a Run or of a file steers a terminal, a log that is read for commands, or a spreadsheet."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from tests.cli.in_process import trueline
from tests.made_comparison import row as made_row
from tests.unit.healthy_run import healthy_rows, rank_env, write_run

from trueline.cli.log import Log
from trueline.cli.screen import Console
from trueline.render.comparison.compare_csv import write_csv
from trueline.schema.files.run_manifest import GroupSpec
from trueline.schema.finding import Finding

HOSTILE = (
    "\x1b]0;owned\x07", "\x1b[2J\x1b[1;1H", "\x9b31m", "\n::error title=owned::owned", "\r::set-output name=x::y",
    "\n  ::add-mask::x", "\n##[error]owned", "\n##vso[task.complete]owned", "\u202eowned", "\u2028::error::owned",
    "\n##teamcity[buildProblem owned]", "\x1b]8;;http://owned\x07", "\x08\x08\x7f",
)  # fmt: skip
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]|(?m:^\s*::)|##[a-z]*\[")


@pytest.fixture
def runs(tmp_path):
    """Two Runs whose strings are all hostile, and that differ."""
    sides = []
    for name in ("run", "ref"):
        text = f"w{''.join(HOSTILE)}{name}"
        env = {
            "params": [f"{k}{text}" for k in range(4)],
            "groups": [GroupSpec(name=text, params=[f"0{text}"])],
            "hostname": text,
            "versions": {"torch": text},
            "flags": {text: text},
            "environ": {"NCCL_ALGO": text},
            "notes": [text],
            "data": {"dataset_type": text, "sampler": text},
        }
        envs = {rank: rank_env(rank, 2, **env) for rank in range(2)}
        rows = {key: row | {"loss": row["loss"] * (1 + (name == "run"))} for key, row in healthy_rows(2, 4).items()}
        for row in rows.values():
            row |= {key: [row[key][0]] for key in row if key.startswith("group_")} | {"sketch": row["sketch"][:31]}
        sides.append(
            write_run(tmp_path / name, rows, envs=envs, command=["x.py", text], notes=[text], adapter=text).path
        )
        finding = Finding("worker-nonfinite", "error", f"At {text} it is NaN.", sites=(text,), next=(text,))
        (tmp_path / name / "findings.jsonl").write_text(json.dumps(finding.to_json()) + "\n")
    return sides


@pytest.mark.parametrize(
    "words",
    [
        ["info", "{run}"], ["check", "{run}"], ["check", "{run}", "--ref", "{ref}", "--all"], ["diagnose", "{run}"],
        ["diff", "{run}", "{ref}", "--all"], ["verify", "{run}"], ["plan", "{run}"],
        ["check", "{run}", "--format", "junit"],
        ["info", "{run}", "--json"], ["check", "{run}", "--json"], ["diff", "{run}", "{ref}", "--json"],
        ["info", "{run}", "--sql", "select 'a\n::error::owned\x1b[2J'"],
        ["info", "nowhere\n::error::owned\x1b[2J"],
    ],
    ids=lambda words: " ".join(words)[:24].encode("unicode_escape").decode(),
)  # fmt: skip
def test_what_a_run_holds_steers_no_terminal_and_no_log(runs, monkeypatch, capsys, words):
    _, out, err = trueline(monkeypatch, capsys, *(word.format(run=runs[0], ref=runs[1]) for word in words))
    assert out + err
    assert not STEERS.findall(out + err)
    if "--json" in words:
        assert json.dumps("".join(HOSTILE))[1:-1] in json.dumps(
            json.loads(out)
        )  # as it was, in a form that is harmless


def test_annotations_are_the_only_commands(runs, monkeypatch, capsys):
    _, out, _ = trueline(monkeypatch, capsys, "check", runs[0], "--format", "github")
    lines = out.splitlines()
    assert lines
    assert all(re.match(r"::(?:error|warning|notice) title=", line) for line in lines)
    assert not re.findall(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", out)


def test_a_terminal_gets_styles_of_ours_alone():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = Terminal()
    Console(file=shown, force_terminal=True, color_system="standard").print(
        "a" + "\x1b[2J" * 2, style="bold", markup=False, highlight=False
    )
    assert shown.getvalue() == "\x1b[1ma\ufffd[2J\ufffd[2J\x1b[0m\n"


def test_a_line_is_a_command_in_no_piece_of_it():
    stream = io.StringIO()
    log = Log(stream)
    for piece in ("a ::b\n", "::error::x\n", "  ", "::error::y\n", "value", "::z\n"):
        log.write(piece)
    assert stream.getvalue() == "a ::b\n: :error::x\n  : :error::y\nvalue::z\n"


def test_no_verb_prints_by_another_console():
    """One door: rich's own console is named where ours is made, and nowhere else in the command line."""
    sources = Path("src/trueline/cli").rglob("*.py")
    assert [path.name for path in sources if "from rich.console import Console" in path.read_text()] == ["screen.py"]


@pytest.mark.parametrize(
    "name", ["=1+1", "+cmd|' /C calc'!A0", "@SUM(1)", "-2+3", "\t=1+1", " =1+1", "\uff1d1+1", "|x"]
)
def test_no_cell_of_a_csv_is_a_formula(tmp_path, name):
    row = made_row(0, "0.0/r0/fwd/a#0:out0", api=name, note=name, measured=-1.5e-7)
    write_csv(tmp_path / "rows.csv", [row])
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        (read,) = csv.DictReader(file)
    assert (read["api"], read["note"]) == (f"'{name}", f"'{name}")
    assert float(read["measured"]) == -1.5e-7
