"""What two trainings did otherwise is said side by side, and nothing of two that did the same."""

import zipfile

from tests.synthetic_runs import write_run

import trueline
from trueline.judge.facts.apart import diff_trainings, facts_apart
from trueline.render.job_diff import write_html, write_xlsx
from trueline.same_job.fact_pair import ABSENT, FactPair


def with_rate(*rates):
    def change(step, rank, row):
        row |= {"lr": [rates[min(step // 6, len(rates) - 1)]], "epoch": step // 6}

    return change


def test_the_facts_that_differ_stand_side_by_side(tmp_path):
    write_run(tmp_path / "a", num_steps=12, change=with_rate(0.1))
    write_run(tmp_path / "b", num_steps=12, change=with_rate(0.1, 0.0))
    a, b = trueline.open_run(tmp_path / "a"), trueline.open_run(tmp_path / "b")
    assert facts_apart(a, b) == (
        FactPair("learning-rate", "learning rate 0.1 at all 12 steps", "learning rate 0.1 at 0 → 0 at 6 → 0 at 11"),
        FactPair("rate-zero", ABSENT, "6 of 12 updates had the learning rate 0 (50%): steps 6-11"),
    )
    assert facts_apart(a, a) == ()
    job_diff = trueline.diff(tmp_path / "a", tmp_path / "b")
    assert [pair["name"] for pair in job_diff.to_json()["facts"]] == ["learning-rate", "rate-zero"]


def test_what_one_run_does_not_tell_is_no_difference(tmp_path):
    write_run(tmp_path / "a", num_steps=12, change=with_rate(0.1))
    write_run(tmp_path / "b", num_steps=12)
    pairs = facts_apart(trueline.open_run(tmp_path / "a"), trueline.open_run(tmp_path / "b"))
    assert "learning-rate" not in {pair.name for pair in pairs}


def test_workbook_and_page_have_them_too(tmp_path):
    write_run(tmp_path / "a", num_steps=12, change=with_rate(0.1))
    write_run(tmp_path / "b", num_steps=12, change=with_rate(0.1, 0.0))
    job_diff = diff_trainings(tmp_path / "a", tmp_path / "b")
    write_html(tmp_path / "diff.html", job_diff)
    write_xlsx(tmp_path / "diff.xlsx", job_diff)
    for pair in job_diff.facts:
        assert f"<td>{pair.ref}</td>" in (tmp_path / "diff.html").read_text()
    book = zipfile.ZipFile(tmp_path / "diff.xlsx")
    assert b'name="facts"' in book.read("xl/workbook.xml")
    texts = book.read("xl/sharedStrings.xml").decode()
    for text in (text for pair in job_diff.facts for text in (pair.name, pair.run, pair.ref)):
        assert f">{text}<" in texts
