"""What a notebook shows of answers, and answers as data frames."""

import sys
from html.parser import HTMLParser

import pytest
from tests.made_comparison import made_comparison
from tests.synthetic_runs import write_run

import trueline
from trueline.schema.errors import InputError
from trueline.schema.finding import Finding
from trueline.schema.text.shown import MAX_ROWS

EVIL = Finding("evil", "error", "<script>alert(1)</script>", ranks=(0, 1), step_first=3, next=("Mend & go on.",))


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    path = write_run(tmp_path_factory.mktemp("notebook") / "run", num_ranks=2, num_steps=60, findings=(EVIL,))
    run = trueline.open_run(path)
    return {"run": run, "report": trueline.check(run), "comparison": made_comparison()}


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.open, self.seen, self.text = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("name", ["run", "report", "comparison"])
def test_an_answer_is_a_table_in_a_notebook_and_what_was_recorded_is_no_markup(answers, name):
    page = Tags(answers[name]._repr_html_())
    assert page.open == []
    assert "script" not in page.seen
    assert page.seen.count("tr") > 1
    assert page.seen.count("tr") <= MAX_ROWS + 1


def test_the_repr_of_an_answer_is_its_verdict(answers):
    report = answers["report"]
    assert repr(report) == str(report) == report.verdict.line
    assert repr(trueline.diagnose(report.run)) == report.verdict.line
    assert repr(trueline.facts(report.run)) == f"What the training of {report.run} did"
    assert repr(answers["run"]).startswith("Run '")
    assert repr(answers["comparison"]).startswith("'runs/")
    assert repr(trueline.diff({"a": 1}, {"a": 1})).startswith("Nothing that can change numbers differs")


def test_a_report_shows_its_verdict_findings_and_advice(answers):
    report = answers["report"]
    text = Tags(report._repr_html_()).text
    assert text.startswith(report.verdict.line)
    assert "<script>alert(1)</script>" in text
    assert "Mend & go on." in text
    assert "0, 1" in text


def test_a_comparison_shows_its_first_rows_and_says_how_many_more_there_are(answers):
    comparison = answers["comparison"]
    text = Tags(comparison._repr_html_()).text
    assert f"'{comparison.run}' compared with '{comparison.ref}'" in text
    if len(comparison.rows) > MAX_ROWS:
        assert f"and {len(comparison.rows) - MAX_ROWS:,} more" in text


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_library_that_is_missing_is_named_in_one_sentence(answers, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    for answer in answers.values():
        with pytest.raises(InputError, match=rf"{library} is not installed here\. Install it with: pip install"):
            getattr(answer, f"to_{library}")()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_answers_are_data_frames_with_all_rows(answers, library):
    pytest.importorskip(library)
    frames = {name: getattr(answer, f"to_{library}")() for name, answer in answers.items()}
    assert {name: len(frame) for name, frame in frames.items()} == {
        "run": 120,
        "report": len(answers["report"].findings),
        "comparison": len(answers["comparison"].rows),
    }
    assert list(frames["report"]["code"]) == [finding.code for finding in answers["report"].findings]
    assert set(frames["run"]["rank"]) == {0, 1}
