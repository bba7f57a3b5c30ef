"""What the answers of trials say of causes, and which trial is proposed."""

import json

import pytest
from tests.synthetic_runs import write_run

from trueline.judge.causes.cause import Cause
from trueline.judge.causes.diagnosis import diagnose
from trueline.judge.causes.library import known_causes
from trueline.judge.causes.trial_signs import PREFIX, propose_trial, read_trial
from trueline.schema.errors import InputError
from trueline.schema.finding import Finding
from trueline.schema.trial_verbs import VERBS

FROZEN = Finding("param-frozen", "error", "SGD did not move elements.", evidence={"kind": "not-moved"}, step_first=0)
WRONG_GRADIENT = Finding(
    "worker-direction-outlier", "warning", "Rank 2 has another gradient.", ranks=(2,), step_first=0, step_last=9,
    evidence={"fed": {"inputs": "alike"}},
)  # fmt: skip


def written(folder, verb="knobs", credible=("fused-optimizer",), answer="confirmed", code="param-frozen", says=()):
    folder.mkdir()
    document = {"trial": verb, "answer": answer, "credible": list(credible), "asked": {"code": code}}
    document |= {"says": list(says), "next": ["Wait for it."]}
    (folder / "trial.json").write_text(json.dumps(document))
    return folder


def standing(diagnosis):
    return diagnosis.verdicts[0].cause, diagnosis.verdicts[0].standing


def test_only_a_trial_confirms_a_cause_and_until_then_one_is_proposed(tmp_path):
    run = write_run(tmp_path / "run", num_ranks=1, findings=(FROZEN,))
    before = diagnose(run)
    assert standing(before)[0] == "kernel-skips-elements"
    assert standing(before)[1] != "confirmed"
    assert any(f"trueline trial knobs {run} -- COMMAND" in line for line in before.verdicts[0].next)

    after = diagnose(run, trials=[written(tmp_path / "trial")])
    assert standing(after) == ("kernel-skips-elements", "confirmed")
    assert after.verdicts[0].headline.startswith("Confirmed cause: ")
    assert after.verdicts[0].probability > before.verdicts[0].probability
    assert not any("Or let runs tell" in line for line in after.verdicts[0].next)

    against = diagnose(run, trials=[written(tmp_path / "other", credible=("torch-compile",))])
    assert against.verdicts[0].probability < before.verdicts[0].probability


def test_a_race_that_a_trial_confirms_takes_the_place_of_a_cause_that_would_stay(tmp_path):
    """Of a mistake in the script the trial says that it stays; the cause of before is not named any more."""
    run = write_run(tmp_path / "run", num_ranks=1, findings=(FROZEN,))
    before = diagnose(run).verdicts[0]
    for answer in ("ordering", "memory"):
        trial = written(tmp_path / answer, verb="sync", credible=(answer,), says=("It is gone when waited for.",))
        after = diagnose(run, trials=[trial]).verdicts[0]
        assert after.cause == "unknown"
        assert before.cause in after.among
        assert f"trial sync answered '{answer}': It is gone when waited for" in after.headline
        assert after.next[0] == "Wait for it."
        assert after.to_json()["trials"] == [f"trial sync answered '{answer}': It is gone when waited for."]


def test_an_answer_that_tells_nothing_of_the_cause_is_shown_and_said_to(tmp_path):
    run = write_run(tmp_path / "run", num_ranks=1, findings=(FROZEN,))
    trial = written(tmp_path / "trial", verb="phases", credible=("code",), says=("It stays everywhere.",))
    verdict = diagnose(run, trials=[trial]).verdicts[0]
    assert verdict.cause == diagnose(run).verdicts[0].cause
    assert verdict.trials[0].startswith("trial phases answered 'code': It stays everywhere. This speaks neither for")


def test_a_trial_that_counts_for_nothing_is_named(tmp_path):
    run = write_run(tmp_path / "run", num_ranks=1, findings=(FROZEN,))
    undecided = written(tmp_path / "open", answer="undecided")
    other = written(tmp_path / "other", code="replica-drift")
    notes = diagnose(run, trials=[undecided, other]).to_json()["notes"]
    assert f"The trial in {undecided} counts for nothing here: it has no answer that tells causes apart." in notes
    assert f"The trial in {other} counts for nothing here: it is about replica-drift, not found here." in notes


@pytest.mark.parametrize("more", [{"answer": "undecided"}, {"credible": ("a", "b")}, {"code": "replica-drift"}])
def test_a_trial_without_an_answer_or_about_something_else_says_nothing(tmp_path, more):
    run = write_run(tmp_path / "run", num_ranks=1, findings=(FROZEN,))
    assert diagnose(run, trials=[written(tmp_path / "trial", **more)]).verdicts == diagnose(run).verdicts


def test_a_folder_without_a_trial_is_bad_input(tmp_path):
    with pytest.raises(InputError, match=r"trial.json' cannot be read as a trial"):
        read_trial(tmp_path)


@pytest.mark.parametrize(
    ("verb", "credible", "asked", "sign"),
    [
        ("vote", ["device 3"], {}, "trial-vote:device"),
        ("vote", ["device 3 + device 5"], {}, "trial-vote:device"),
        ("vote", ["any device"], {}, "trial-vote:any"),
        ("vote", [], {}, "trial-vote:none"),
        ("repeat", ["index_add at 0.0/r0/fwd/a#0:out0"], {}, "trial-repeat:call"),
        ("repeat", ["before 0.0/r0/fwd/a#0:in0"], {}, "trial-repeat:between"),
        ("repeat", [], {}, "trial-repeat:none"),
        ("remedy", ["recovers"], {"remedy": "fp32:layers.3"}, "trial-remedy-fp32:recovers"),
        ("remedy", ["no effect"], {"remedy": "fp32:layers.3"}, "trial-remedy-fp32:no effect"),
        ("batch", [], {}, None),
    ],
)
def test_the_answer_of_a_trial_about_the_whole_job_is_its_kind(tmp_path, verb, credible, asked, sign):
    """It counts for each incident, whatever its codes."""
    document = {"trial": verb, "answer": "confirmed" if credible else "excluded", "credible": credible, "asked": asked}
    (tmp_path / "trial.json").write_text(json.dumps(document))
    found = read_trial(tmp_path)
    assert (found and found.sign) == sign
    assert found is None or found.code == ""


def test_a_vote_speaks_for_causes_that_a_device_brings_and_is_proposed_until_then(tmp_path):
    run = write_run(tmp_path / "run", num_ranks=4, findings=(WRONG_GRADIENT,))
    trial = tmp_path / "vote"
    trial.mkdir()
    document = {"trial": "vote", "answer": "confirmed", "credible": ["device 2"], "asked": {"devices": ["1", "2"]}}
    (trial / "trial.json").write_text(json.dumps(document))
    before, after = (diagnose(run, trials=trials).verdicts[0] for trials in ([], [trial]))
    assert before.cause == after.cause == "gradient-wrong-on-rank"
    assert after.probability > before.probability
    assert any(
        "about 27 where" in line and "`trueline trial vote --devices NAME,… -- COMMAND`" in line for line in before.next
    )


def test_the_trial_that_tells_causes_apart_is_proposed_and_none_where_none_does():
    one = Cause({"trial-sync:ordering": "always"}, "", slug="one")
    other = Cause({"trial-sync:neither": "always", "trial-knobs:a": "often"}, "", slug="other")
    found = propose_trial([one, other], {"one": 0.5, "other": 0.5})
    assert found is not None
    assert found.verb == "sync"
    assert 0.3 < found.nats < 0.7  # at most ln 2, the doubt that there is
    assert propose_trial([one, other], {"one": 0.99999, "other": 0.00001}) is None
    silent = Cause({"worker-scale": "always"}, "", slug="silent")
    assert propose_trial([silent], {"silent": 0.5}) is None


def test_causes_state_answers_of_trials_that_there_are():
    stated = {sign for cause in known_causes() for sign in (*cause.shows, *cause.excludes) if sign.startswith(PREFIX)}
    assert stated
    verbs = {sign.removeprefix(PREFIX).partition(":")[0].partition("-")[0] for sign in stated}
    assert verbs <= set(VERBS)
    proposable = {verb for verb, each in VERBS.items() if each.answers}
    assert proposable <= verbs, "each that may be proposed tells some causes apart"
    assert all(VERBS[verb].usual for verb in proposable)


def test_the_proposed_command_has_what_the_verb_cannot_do_without():
    assert VERBS["vote"].command("runs/a") == "trueline trial vote --devices NAME,… -- COMMAND"
    assert VERBS["knobs"].command("runs/a") == "trueline trial knobs runs/a -- COMMAND"
