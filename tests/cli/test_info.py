"""`trueline info`: tables for people, one JSON document for programs, one sentence for mistakes."""

import json
import math

import pytest

from trueline.cli import main as command_line
from trueline.schema.finding import Finding
from trueline.schema.run_manifest import GroupSpec, Manifest, RankEnv
from trueline.store.writer import RunWriter


@pytest.fixture
def run_path(tmp_path):
    path = tmp_path / "run"
    for rank in (0, 1):
        writer = RunWriter(path, rank=rank)
        manifest = Manifest(
            trueline_version="0.1.0",
            world_size=3,
            adapter="ddp",
            command=["train.py", "[bold]"],
            notes=["[bold]No buffers."],
        )
        env = RankEnv(rank=rank, hostname="node7", params=["w", "b"], groups=[GroupSpec(name="head", params=["w"])])
        writer.describe(manifest if rank == 0 else None, env)
        for step in range(3):
            writer.write({"step": step, "loss": math.nan if step == 1 else step / 2, "lr": [0.5]})
        if rank == 0:
            writer.write(Finding("worker-nonfinite", "error", "Loss of rank 0 is NaN at step 1."))
            writer.close()
    return path


def trueline(monkeypatch, capsys, *words):
    """Exit code, standard output and standard error of the command."""
    monkeypatch.setattr("sys.argv", ["trueline", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        command_line.main()
    output = capsys.readouterr()
    return left.value.code or 0, output.out, output.err


def test_info_shows_ranks_steps_columns_and_problems(run_path, monkeypatch, capsys):
    code, out, _ = trueline(monkeypatch, capsys, "info", run_path)
    assert code == 0
    for words in (
        "train.py [bold]",
        "3 (0 to 2)",
        "node7",
        "open: writing or killed",
        "This worker's loss",
        "[bold]No buffers.",
        "Loss of rank 0 is NaN at step 1.",
        "rank 2: it left nothing in this Run of 3 workers",
    ):
        assert words in out
    assert "\x1b" not in out


def test_info_json_is_one_document(run_path, monkeypatch, capsys):
    code, out, _ = trueline(monkeypatch, capsys, "info", run_path, "--json")
    document = json.loads(out, parse_constant=pytest.fail)
    assert code == 0
    assert document["schema"] == 1
    assert document["run"] == str(run_path)
    assert document["manifest"]["world_size"] == 3
    assert document["steps"] == {"count": 3, "first": 0, "last": 2}
    assert [(rank["rank"], rank["closed"], rank["groups"]) for rank in document["ranks"]] == [
        (0, True, ["head"]),
        (1, False, ["head"]),
    ]
    assert {column["name"]: column["measured"] for column in document["columns"]} == {
        "step": 6,
        "rank": 6,
        "loss": 6,
        "lr": 6,
    }
    assert document["findings"][0]["code"] == "worker-nonfinite"
    assert document["problems"] == ["rank 2: it left nothing in this Run of 3 workers"]


def test_info_answers_sql(run_path, monkeypatch, capsys):
    query = "select step, loss, tokens, lr from workers where rank = 0 order by step"
    code, out, _ = trueline(monkeypatch, capsys, "info", run_path, "--sql", query, "--json")
    assert code == 0
    assert json.loads(out, parse_constant=pytest.fail) == {
        "columns": ["step", "loss", "tokens", "lr"],
        "rows": [[0, 0.0, None, [0.5]], [1, "NaN", None, [0.5]], [2, 1.0, None, [0.5]]],
    }
    code, out, _ = trueline(
        monkeypatch, capsys, "info", run_path, "--sql", "select '[red]x' as \"[blue]a\", max(step) from workers"
    )
    assert code == 0
    assert "[red]x" in out
    assert "[blue]a" in out
    assert "max(step)" in out


def test_info_of_a_run_without_rows_says_so(tmp_path, monkeypatch, capsys):
    RunWriter(tmp_path, rank=0)
    code, out, _ = trueline(monkeypatch, capsys, "info", tmp_path)
    assert code == 0
    assert "No rows yet." in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "There is no Run at 'nowhere'"),
        (["{run}", "--sql", "select los from workers"], "failed: Binder Error"),
        (["{run}", "--sql", ""], "is empty"),
    ],
)
def test_info_mistakes_are_one_sentence_and_exit_2(run_path, monkeypatch, capsys, words, sentence):
    code, out, err = trueline(monkeypatch, capsys, "info", *(word.format(run=run_path) for word in words))
    assert code == 2
    assert out == ""
    assert err.startswith("trueline: ")
    assert sentence in err
    assert err.count("\n") == 1
