"""`trueline info`: tables for people, one JSON document for programs, one sentence for mistakes."""

import json
import math

import pytest
from tests.cli.in_process import trueline
from tests.unit.recorded_steps import make_step, rows_of, tensor_record

from trueline.schema.columns.records import StackRecord
from trueline.schema.files.run_manifest import GroupSpec, Manifest, RankEnv
from trueline.schema.finding import Finding
from trueline.schema.site import SITE_FORM
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
        "rank 2: it wrote nothing in this Run of 3 ranks",
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
    assert document["problems"] == ["rank 2: it wrote nothing in this Run of 3 ranks"]


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


def test_rows_that_do_not_fit_are_shown_in_blocks_or_in_part(run_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = trueline(
        monkeypatch, capsys, "info", run_path, "--sql", "select * from workers order by 1, 2 limit 2"
    )
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("Row")] == ["Row 1 of 2", "Row 2 of 2"]
    assert ["loss", "0.0"] in [line.split() for line in out.splitlines()]
    assert "null: " in out
    code, out, _ = trueline(monkeypatch, capsys, "info", run_path, "--sql", "select * from workers")
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "step" in out.splitlines()[1]
    assert "columns do not fit and are left out: " in out
    assert "limit 3" in out


def test_info_of_a_run_without_rows_says_so(tmp_path, monkeypatch, capsys):
    RunWriter(tmp_path, rank=0)
    code, out, _ = trueline(monkeypatch, capsys, "info", tmp_path)
    assert code == 0
    assert "No rows of workers yet." in out


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


@pytest.fixture
def recorded_path(tmp_path):
    path = tmp_path / "recorded"
    for rank in (0, 2):
        writer = RunWriter(path, rank=rank)
        plan = {"preset": "modules", "depth": "tensor"}
        writer.describe(Manifest(world_size=3, plan=plan) if rank == 0 else None, RankEnv(rank=rank))
        for number in (0, 1):
            writer.write(StackRecord(number, (f"[bold]model.py:{number} forward", "train.py:90 main")))
        for step in (10, 20):
            writer.write(tensor_record(step, "t1", [1.0]))
            writer.write(make_step(step, seed=rank))
        writer.close()
    return path


def test_info_shows_what_is_recorded(recorded_path, monkeypatch, capsys):
    code, out, _ = trueline(monkeypatch, capsys, "info", recorded_path)
    assert code == 0
    for words in (
        "preset modules, depth tensor",
        "2 (10 to 20)",
        "0, 2",
        "24 in step 20: fwd 16, bwd 8",
        "12 in step 20",
        "Modules in step 20, forward",
        "(model)",
        "    0",
        "      attn",
    ):
        assert words in out


def test_info_json_says_what_is_recorded(recorded_path, monkeypatch, capsys):
    code, out, _ = trueline(monkeypatch, capsys, "info", recorded_path, "--json")
    records = json.loads(out, parse_constant=pytest.fail)["records"]
    assert code == 0
    sizes = {
        folder: sum(file.stat().st_size for file in (recorded_path / folder).rglob("*") if file.is_file())
        for folder in ("records", "tensors", "stacks")
    }
    assert records.pop("bytes") == sizes
    calls = {}
    for row in rows_of(make_step(20), 0, resolve=False):
        if row["phase"] == "fwd":
            calls.setdefault(row["name"], set()).add((row["micro"], row["call"]))
    assert {module["name"]: module["calls"] for module in records.pop("modules")} == {
        name: len(seen) for name, seen in calls.items() if name.count(".") < 3
    }
    assert records == {
        "steps": {"count": 2, "first": 10, "last": 20},
        "ranks": [0, 2],
        "preset": "modules",
        "depth": "tensor",
        "rows_last_step": 24,
        "phases_last_step": {"fwd": 16, "bwd": 8},
        "sites_last_step": 12,
    }


def test_info_of_a_run_without_records_is_null(run_path, monkeypatch, capsys):
    code, out, _ = trueline(monkeypatch, capsys, "info", run_path, "--json")
    assert code == 0
    assert json.loads(out)["records"] is None


def test_info_names_damaged_records_and_tensors(recorded_path, monkeypatch, capsys):
    (part,) = (recorded_path / "records" / "rank-00000").iterdir()
    part.write_bytes(part.read_bytes()[:-1])
    (recorded_path / "tensors" / "rank-00002" / "step-00000020.safetensors").write_bytes(b"x")
    code, out, _ = trueline(monkeypatch, capsys, "info", recorded_path, "--json")
    assert code == 0
    named = [text.split(": ")[0] for text in json.loads(out)["problems"] if not text.startswith("rank ")]
    assert named == [f"records/rank-00000/{part.name}", "tensors/rank-00002/step-00000020.safetensors"]


@pytest.mark.parametrize(
    ("words", "keep"),
    [
        (["--site", "layers.0.*"], lambda row: row["name"].startswith("layers.0.")),
        (["--site", "*.attn", "--step", "20"], lambda row: row["name"].endswith(".attn") and row["step"] == 20),
        (["--site", "bwd/*", "--rank", "2"], lambda row: row["phase"] == "bwd" and row["rank"] == 2),
        (
            ["--site", "layers.*#1:out*"],
            lambda row: row["call"] == 1 and "layers" in row["name"] and row["slot"] != "in0",
        ),
        (
            ["--site", "10.0/r2/fwd/layers.0.mlp#0:in0"],
            lambda row: (row["step"], row["rank"], row["row"]) == (10, 2, 3),
        ),
        (["--site", "lm_head[[]0]"], lambda row: row["name"] == "lm_head[0]"),
    ],
)
def test_info_lists_the_rows_of_sites(recorded_path, monkeypatch, capsys, words, keep):
    code, out, _ = trueline(monkeypatch, capsys, "info", recorded_path, *words, "--json")
    assert code == 0
    listed = json.loads(out, parse_constant=pytest.fail)["rows"]
    wanted = [
        row
        for step in (10, 20)
        for rank in (0, 2)
        for row in rows_of(make_step(step, seed=rank), rank, resolve=True)
        if keep(row)
    ]
    assert wanted
    assert [(row["step"], row["rank"], row["row"]) for row in listed] == [
        (row["step"], row["rank"], row["row"]) for row in wanted
    ]
    for row, by_hand in zip(listed, wanted, strict=True):
        assert row["site"].endswith(f"{by_hand['phase']}/{by_hand['name']}#{by_hand['call']}:{by_hand['slot']}")
        assert (row["nan"], row["max"], row["shape"]) == (by_hand["nan"], by_hand["max"], by_hand["shape"])
        assert row["fingerprint"] == (by_hand["fingerprint"] and f"{by_hand['fingerprint']:016x}")
        assert "frames" not in row


def test_mean_and_rms_are_over_finite_elements(tmp_path, monkeypatch, capsys):
    step = make_step(0, num_rows=1)
    step.columns["numel"][0] = 10
    step.stats_MS[0, :9] = (1, 2, 3, 0, 0, -1.0, 5.0, 6.0, 64.0)
    writer = RunWriter(tmp_path, rank=0)
    writer.write(step)
    writer.close()
    _, out, _ = trueline(monkeypatch, capsys, "info", tmp_path, "--site", "*", "--json")
    (row,) = json.loads(out)["rows"]
    assert (row["mean"], row["rms"]) == (1.5, 4.0)


def test_info_shows_sites_and_stacks_to_people(recorded_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "250")
    words = ["--site", "layers.0.mlp", "--step", "10", "--rank", "0"]
    code, out, _ = trueline(monkeypatch, capsys, "info", recorded_path, *words)
    assert code == 0
    assert "10.0/r0/fwd/layers.0.mlp#0:in0" in out
    assert out.endswith(f"Sites: {SITE_FORM}\n")
    assert "model.py" not in out
    _, out, _ = trueline(monkeypatch, capsys, "info", recorded_path, *words, "--stacks")
    assert "\n    [bold]model.py:1 forward\n" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--site", "layer.0.mlp"], "matches 'layer.0.mlp'. Step 20 has 11, such as 'fwd/layers.0.mlp#0:in0'. Pass"),
        (["--site", "*", "--step", "11"], "Step 11 of Run '{run}' is not recorded. Recorded: 2 steps, 10 to 20."),
        (["--site", "*", "--rank", "1"], "Rank 1 of Run '{run}' recorded nothing. Recorded: ranks 0, 2."),
        (["--site", "10.0/r1/fwd/layers.0.mlp#0:in0"], "No recorded site"),
        (["--step", "10"], "Pass --site too"),
        (["--stacks"], "Pass --site too"),
        (["--site", "*", "--sql", "select 1"], "Pass one of them"),
    ],
)
def test_site_mistakes_are_one_sentence_and_exit_2(recorded_path, monkeypatch, capsys, words, sentence):
    code, out, err = trueline(monkeypatch, capsys, "info", recorded_path, *words)
    assert code == 2
    assert out == ""
    assert sentence.format(run=recorded_path) in err
    assert err.count("\n") == 1


def test_sites_of_a_run_without_records_are_one_sentence_and_exit_2(run_path, monkeypatch, capsys):
    code, out, err = trueline(monkeypatch, capsys, "info", run_path, "--site", "*")
    assert (code, out) == (2, "")
    assert "has no recorded steps, so no site to list" in err
