"""What is said of reported faults is counted as the log fixed it in advance."""

import pytest
from benchmarks.reports import catalogue, table, trial
from benchmarks.reports.catalogue import Report

REPORTS = catalogue.catalogue()
SHARED = {"command", "common", "corridor", "language", "lora"}


def finding(claim, severity):
    return {"claim": claim, "severity": severity}


def screen(*, findings=(), verdict="No fault found in 60 steps.", exit_code=0):
    accusing = [place for place, each in enumerate(findings) if each["severity"] in trial.ACCUSING]
    incidents = [{"title": f"incident of {place}", "findings": [place]} for place in accusing]
    document = {"verdict": verdict, "findings": list(findings), "incidents": incidents}
    return trial.screen_of(document, exit_code=exit_code)


def report(**changes):
    values = {
        "id": "sinks",
        "title": "A rate that falls",
        "url": "https://example.org/1",
        "seen": "It learns no more.",
        "mechanism": "The rate falls.",
        "script": "jobs/decay_by_batch.py",
        "ranks": 1,
        "starts": 1,
        "arguments": [[]],
        "good": "The learning rate is 0 since update 60.",
        "words": [["learning rate", r"\blr\b"], [r"\b0\b"], [r"\b60\b"]],
    }
    return Report(**values | changes)


def trial_of(fault, twin, *, of=None):
    of = of or report()
    return trial.Tried(of.id, of.half, fault, twin, catalogue.said_of(of, fault.lines))


@pytest.mark.parametrize("logged", REPORTS, ids=lambda logged: logged.id)
def test_a_report_has_its_job_its_source_and_words_that_its_good_line_has(logged):
    assert list(catalogue.wrong(logged)) == []


def test_every_job_is_of_a_report():
    jobs = {f"jobs/{file.name}" for file in (catalogue.PLACE / "jobs").glob("*.py") if file.stem not in SHARED}
    assert jobs == {logged.script for logged in REPORTS}


def test_no_job_and_no_word_knows_who_watches():
    texts = [file.read_text(encoding="utf-8") for file in (catalogue.PLACE / "jobs").glob("*.py")]
    texts += [word for logged in REPORTS for words in logged.words for word in words]
    assert not [text for text in texts if "trueline" in text.lower()]


def test_the_half_is_in_the_last_digit_of_the_digest_of_the_name():
    # of sha256sum: that of a ends in b, which is 11, that of sinks in 6
    assert [catalogue.half(name) for name in ("a", "sinks")] == ["held", "open"]
    assert {logged.half for logged in REPORTS} >= {"open", "held", "traincheck"}
    assert report(set="traincheck").half == "traincheck"


def test_what_is_wrong_with_a_report_is_said():
    bad = report(script="jobs/none.py", url="a thread", starts=2, words=[["("], ["never"]])
    assert list(catalogue.wrong(report())) == []
    assert list(catalogue.wrong(bad)) == [
        "there is no jobs/none.py",
        "the source is 'a thread'",
        "1 ranks, 2 starts, arguments of 1",
        "'(': missing ), unterminated subpattern at position 0",
    ]
    assert list(catalogue.wrong(report(words=[["never"]]))) == ["the words do not occur in the good line"]


def test_words_must_all_be_in_one_line():
    apart = ["The learning rate follows a cosine.", "It is 0 since step 60."]
    assert catalogue.said_of(report(), apart) == []
    assert catalogue.said_of(report(), [*apart, "The LR is 0 from 60 on."]) == ["The LR is 0 from 60 on."]


def test_what_is_to_confirm_and_the_verdict_are_lines_of_the_first_screen_and_infos_are_not():
    line = "The learning rate is 0 since update 60."
    assert trial_of(screen(findings=[finding(line, "confirm")]), screen()).said == [line]
    assert trial_of(screen(verdict=line), screen()).said == [line]
    assert trial_of(screen(findings=[finding(line, "info")]), screen()).said == []


def test_an_accusation_that_does_not_say_it_is_counted_apart():
    other = finding("Rank 1 has other samples.", "warning")
    said = finding("The learning rate is 0 since update 60.", "error")
    assert trial_of(screen(findings=[other]), screen()).accused_otherwise
    assert not trial_of(screen(findings=[other, said]), screen()).accused_otherwise
    assert trial_of(screen(findings=[other, {**said, "severity": "confirm"}]), screen()).accused_otherwise
    assert not trial_of(screen(), screen()).accused_otherwise


def test_every_line_about_a_twin_is_a_wrong_one():
    twin = screen(findings=[finding("x", "confirm"), finding("y", "confirm"), finding("z", "info")])
    assert trial_of(screen(), twin).wrong_lines == ["x", "y"]
    assert not trial_of(screen(), twin).twin_accused
    assert trial_of(screen(), screen(findings=[finding("x", "error")], exit_code=1)).twin_accused


def test_the_page_counts_each_half_and_names_what_is_not_said():
    line = finding("The learning rate is 0 since update 60.", "confirm")
    held = report(id="a")
    trials = [
        trial_of(screen(findings=[line]), screen(findings=[finding("odd", "confirm")])),
        trial_of(screen(findings=[finding("other", "error")], exit_code=1), screen(), of=held),
    ]
    page = table.page([report(), held, report(id="b")], trials, "# Title")
    assert "| open | 1 | 1 | 0 | 0 | 0 | 0 | 0 | 1 | 1 |" in page
    assert "| held | 1 | 0 | 1 | 0 | 0 | 0 | 0 | 0 | 0 |" in page
    assert "Not tried yet: 1 of 3." in page
    assert "TrainCheck" not in page
    listed = table.unsaid([report(), held], trials)
    assert "## a\n" in listed.split("# Twins")[0]
    assert "## sinks: exit code 0\n\n- odd" in listed


def test_a_job_that_breaks_is_neither_said_nor_silent():
    broken = trial.Screen(-1, "", broke="the job ended with exit code 1")
    page = table.page([report()], [trial_of(broken, screen())], "# Title")
    assert "| open | 1 | 0 | 0 | 0 | 0 | 1 | 0 | 0 | 0 |" in page


def test_what_only_a_fact_tells_is_not_said_and_is_counted_by_itself():
    fact = "learning rate 0.001 at 0 → 0 at 60"
    document = {"verdict": "No fault found.", "findings": [], "incidents": [], "facts": [{"text": fact}]}
    fault = trial.screen_of(document, exit_code=0)
    of = report()
    tried = trial.Tried(of.id, of.half, fault, screen(), [], catalogue.said_of(of, fault.facts))
    assert (fault.lines, tried.facts) == (["No fault found."], [fact])
    page = table.page([of], [tried], "# Title")
    assert "| open | 1 | 0 | 0 | 1 | 1 | 0 | 0 | 0 | 0 |" in page
    assert f"| {fact} | in `facts` | silent |" in page


def test_the_set_of_another_tool_has_a_table_of_its_own_and_is_in_no_half():
    line = finding("The learning rate is 0 since update 60.", "confirm")
    name, unsaid, held = "traincheck-pytorch-84803", "traincheck-baichuan2-86", "traincheck-mmpretrain-702"
    peers = [report(id=name, set="traincheck"), report(id=unsaid, set="traincheck"), report(id=held)]
    trials = [
        trial_of(screen(findings=[line]), screen(), of=peers[0]),
        trial_of(screen(), screen(findings=[finding("odd", "confirm")]), of=peers[1]),
        trial_of(screen(findings=[line]), screen()),
    ]
    peer = catalogue.Peer("abc", 2, [name], {unsaid: "what is sent"})
    page = table.page([*peers, report()], trials, "# Title", peer)
    assert "| open | 1 | 1 |" in page
    assert "Not tried yet: 1 of 2." in page
    assert (
        "First (commit abc): 1 of 2 said. Now 1 of 2 said, and 1 of their twins have a line; 1 of the 18 are held."
        in page
    )
    rows = {row.split("]")[0][3:]: row for row in page.partition("## The 18")[2].splitlines() if row.startswith("| [")}
    assert f"| yes | yes | {line['claim']} | silent |" in rows["pytorch-84803"]
    assert "| no | no | what is sent | to confirm: odd |" in rows["baichuan2-86"]
    assert rows["mmpretrain-702"].endswith("|  | – | held |  |  |")


def test_what_is_kept_of_the_set_is_about_its_reports():
    peer, names = catalogue.peer(), {logged.id for logged in REPORTS}
    assert len(catalogue.PEER_REPORTS) == 18
    assert {*catalogue.PEER_REPORTS, *peer.said, *peer.not_looked_at} <= names
    assert {logged.id for logged in REPORTS if logged.set == catalogue.PEER} <= {*catalogue.PEER_REPORTS}
