"""`trueline diff` and `trueline env collect`: one screen, one document, files; exit codes."""

import json
import zipfile

import pytest
from tests.cli.in_process import trueline as call
from tests.synthetic_runs import write_run


@pytest.fixture
def jobs(tmp_path):
    for name, rate in (("a", "1e-4"), ("b", "2e-4")):
        (tmp_path / f"{name}.yaml").write_text(f"learning_rate: {rate}\nwarmup_ratio: 0.1\noutput_dir: /tmp/{name}\n")
    return tmp_path


def test_the_screen_names_both_values_and_where_they_stand(jobs, monkeypatch, capsys):
    status, out, _ = call(monkeypatch, capsys, "diff", str(jobs / "a.yaml"), str(jobs / "b.yaml"))
    assert status == 1
    assert out.startswith("1 difference that can explain other numbers. Peak learning rate is 0.0001 and not 0.0002.\n")
    assert "0.0001 | 0.0002   (a.yaml: learning_rate | b.yaml: learning_rate)" in out
    assert "output_dir" not in out


def test_the_document_has_findings_and_both_jobs_settings(jobs, monkeypatch, capsys):
    status, out, _ = call(monkeypatch, capsys, "diff", str(jobs / "a.yaml"), str(jobs / "b.yaml"), "--json")
    document = json.loads(out)
    assert status == 1
    assert [each["code"] for each in document["findings"]] == ["config-differs"]
    assert document["differences"][0]["name"] == "learning-rate"
    assert document["settings"]["run"]["warmup-fraction"] == document["settings"]["ref"]["warmup-fraction"] == "0.1"


def test_the_same_job_is_0_and_none_is_2(jobs, monkeypatch, capsys):
    assert call(monkeypatch, capsys, "diff", str(jobs / "a.yaml"), str(jobs / "a.yaml"))[0] == 0
    status, _, errors = call(monkeypatch, capsys, "diff", str(jobs / "a.yaml"), str(jobs / "none"))
    assert status == 2
    assert errors.count("\n") == 1
    assert "There is nothing at" in errors


def test_workbook_and_page_are_written(jobs, monkeypatch, capsys):
    pytest.importorskip("xlsxwriter")
    files = [jobs / "d.xlsx", jobs / "d.html"]
    words = ["diff", str(jobs / "a.yaml"), str(jobs / "b.yaml"), "--xlsx", str(files[0]), "--html", str(files[1])]
    assert call(monkeypatch, capsys, *words)[0] == 1
    with zipfile.ZipFile(files[0]) as book:
        assert {"config-differs", "settings", "summary"} <= set(
            book.read("xl/workbook.xml").decode().replace("name=", "").split('"')
        )
    assert "peak learning rate" in files[1].read_text()
    status, _, errors = call(monkeypatch, capsys, *words)
    assert status == 2
    assert "exists already" in errors


def test_what_was_collected_is_compared_with_its_configuration(jobs, monkeypatch, capsys):
    for name in ("a", "b"):
        out = str(jobs / f"{name}.json")
        status, said, _ = call(monkeypatch, capsys, "env", "collect", out, "--config", str(jobs / f"{name}.yaml"))
        assert status == 0
        assert "1 configuration." in said
    status, out, _ = call(monkeypatch, capsys, "diff", str(jobs / "a.json"), str(jobs / "b.json"), "--json")
    assert status == 1
    assert [each["name"] for each in json.loads(out)["differences"]] == ["learning-rate"]


def test_a_configuration_that_is_not_there_is_named(jobs, monkeypatch, capsys):
    status, _, errors = call(monkeypatch, capsys, "env", "collect", str(jobs / "e.json"), "--config", "none.yaml")
    assert status == 2
    assert "'none.yaml'" in errors
    assert not (jobs / "e.json").exists()


def test_what_two_runs_did_otherwise_stands_first(tmp_path, monkeypatch, capsys):
    for name, rate in (("a", 0.1), ("b", 0.2)):
        write_run(tmp_path / name, num_steps=12, change=lambda step, rank, row, rate=rate: row.update(lr=[rate]))
    _, out, _ = call(monkeypatch, capsys, "diff", str(tmp_path / "a"), str(tmp_path / "b"))
    assert out.splitlines()[1:5] == [
        "",
        "What they did otherwise:",
        "  A: learning rate 0.1 at all 12 steps",
        "  B: learning rate 0.2 at all 12 steps",
    ]
    _, out, _ = call(monkeypatch, capsys, "diff", str(tmp_path / "a"), str(tmp_path / "a"))
    assert "otherwise" not in out
