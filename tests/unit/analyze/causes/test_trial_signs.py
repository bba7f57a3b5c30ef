"""What the answers of trials say of causes, and which trial is proposed."""

import json

import pytest
from tests.synthetic_runs import write_run

from trueline.analyze.causes.cause import Cause
from trueline.analyze.causes.diagnosis import diagnose
from trueline.analyze.causes.library import known_causes
from trueline.analyze.causes.trial_signs import PREFIX, USUAL_RUNS, proposed, read_trial
from trueline.schema.errors import InputError
from trueline.schema.finding import Finding

FROZEN = Finding("param-frozen", "error", "SGD did not move elements.", evidence={"kind": "not-moved"}, step_first=0)


def written(folder, verb="knobs", credible=("fused-optimizer",), answer="confirmed", code="param-frozen"):
    folder.mkdir()
    document = {"trial": verb, "answer": answer, "credible": list(credible), "asked": {"code": code}}
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


@pytest.mark.parametrize("more", [{"answer": "undecided"}, {"credible": ("a", "b")}, {"code": "replica-drift"}])
def test_a_trial_without_an_answer_or_about_something_else_says_nothing(tmp_path, more):
    run = write_run(tmp_path / "run", num_ranks=1, findings=(FROZEN,))
    assert diagnose(run, trials=[written(tmp_path / "trial", **more)]).verdicts == diagnose(run).verdicts


def test_a_folder_without_a_trial_is_bad_input(tmp_path):
    with pytest.raises(InputError, match=r"trial.json' cannot be read as a trial"):
        read_trial(tmp_path)
    (tmp_path / "trial.json").write_text('{"trial": "vote", "asked": {"devices": []}, "answer": "confirmed"}')
    with pytest.raises(InputError, match="is of a trial vote, which is about no finding of a Run"):
        read_trial(tmp_path)


def test_the_trial_that_tells_causes_apart_is_proposed_and_none_where_none_does():
    one = Cause({"trial-sync:ordering": "always"}, "", slug="one")
    other = Cause({"trial-sync:neither": "always", "trial-knobs:a": "often"}, "", slug="other")
    found = proposed([one, other], {"one": 0.5, "other": 0.5})
    assert found is not None
    assert found.verb == "sync"
    assert 0.3 < found.nats < 0.7  # at most ln 2, the doubt that there is
    assert proposed([one, other], {"one": 0.99999, "other": 0.00001}) is None
    silent = Cause({"worker-scale": "always"}, "", slug="silent")
    assert proposed([silent], {"silent": 0.5}) is None


def test_causes_state_answers_of_trials_that_there_are():
    stated = {sign for cause in known_causes() for sign in (*cause.shows, *cause.excludes) if sign.startswith(PREFIX)}
    assert stated
    assert {sign.removeprefix(PREFIX).partition(":")[0] for sign in stated} <= set(USUAL_RUNS)
