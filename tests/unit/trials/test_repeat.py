"""What `trial repeat` concludes of compared values that are made here."""

from trueline.trials.frame.runs import Runs
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.repeat.repeat import RepeatTrial


def tried(tmp_path, *outcomes):
    made = [Outcome(False), *outcomes]
    runs = Runs("repeat", tmp_path / "t", lambda way, place: made.pop(0), {}, len(made))
    return RepeatTrial(runs, len(outcomes)).answer()


def test_the_answer_names_the_call_and_what_to_do(tmp_path):
    apart = Outcome(True, "torch.add", None, ("0.0/r0/fwd/a#0:out0", "made"))
    found = tried(tmp_path, Outcome(False), apart)
    assert (found.answer, found.credible) == ("confirmed", ("torch.add at 0.0/r0/fwd/a#0:out0",))
    assert "in 1 of 2 repeats: it does not repeat itself" in found.says[0]
    assert "use_deterministic_algorithms" in found.next[0]
    outside = Outcome(True, "torch.add", None, ("0.0/r0/fwd/a#0:in0", "given"))
    found = tried(tmp_path / "outside", outside)
    assert found.credible == ("before 0.0/r0/fwd/a#0:in0",)
    assert "no operation is named" in found.says[0]


def test_what_never_differed_has_a_bound_and_what_does_not_run_no_answer(tmp_path):
    found = tried(tmp_path, *[Outcome(False)] * 5)
    assert found.answer == "excluded"
    assert "less than 45%" in found.says[0]  # 1 - 0.05 ** (1 / 5)
    failing = tried(tmp_path / "f", *[Outcome(None, "it ended with status 1")] * 3)
    assert (failing.answer, failing.exit_code) == ("undecided", 3)
