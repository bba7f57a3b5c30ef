"""What `trial repeat` concludes of compared values that are made here."""

import pytest

from trueline.analyze.compare.result import ComparedRow
from trueline.trials.repeat import Part, RepeatTrial, first_apart
from trueline.trials.runs import Runs
from trueline.trials.same_fault import Outcome


def row(site, place, judgement="equal", measured=0.0, api="f"):
    return ComparedRow(0, 0, place, site, site, judgement, "op", api, "float32", "float32", (2,), measured)


FORWARD = [
    row("0.0/r0/fwd/a#0:in0", 0),
    row("0.0/r0/fwd/a#0:out0", 1),
    row("0.0/r0/fwd/b#0:in0", 2),
    row("0.0/r0/fwd/b#0:out0", 3),
    row("0.0/r0/bwd/b#0:out0", 4),
    row("0.0/r0/bwd/b#0:in0", 5),
]


@pytest.mark.parametrize(
    ("places", "site", "role"),
    [
        ((), None, None),
        ((1, 2, 3), "0.0/r0/fwd/a#0:out0", "made"),
        ((2, 3, 4), "0.0/r0/fwd/b#0:in0", "given"),  # the consumer is not to blame
        ((0, 1, 2), "0.0/r0/fwd/a#0:in0", "given"),
        ((4, 5), "0.0/r0/bwd/b#0:out0", "given"),  # the gradient of what b returned
        ((5,), "0.0/r0/bwd/b#0:in0", "made"),  # the gradient that b made
    ],
)
def test_the_first_difference_is_of_who_made_it_and_never_of_who_received_it(places, site, role):
    rows = [row(each.site, each.place, "within", 1e-7) if each.place in places else each for each in FORWARD]
    found = first_apart(reversed(rows))
    assert (found and found.site, found and found.role) == (site, role)


def test_a_call_whose_inputs_come_later_in_the_order_is_not_blamed_either():
    rows = [row("0.0/r0/fwd/a#0:out0", 0, "beyond", 0.5), row("0.0/r0/fwd/a#0:in0", 1, "beyond", 0.5)]
    assert first_apart(rows) == Part("0.0/r0/fwd/a#0:out0", "f", "given", "beyond", 0.5)
    assert first_apart([row("0.0/r0/fwd/a#0:out0", 0, "not-comparable", None)]) is None


def tried(tmp_path, *outcomes):
    made = [Outcome(False), *outcomes]
    runs = Runs("repeat", tmp_path / "t", lambda way, place: made.pop(0), {}, len(made))
    return RepeatTrial(runs, len(outcomes)).answer()


def test_the_answer_names_the_call_its_size_and_what_to_do(tmp_path):
    apart = Outcome(True, "torch.add", 1e-7, ("0.0/r0/fwd/a#0:out0", "made", "within"))
    found = tried(tmp_path, Outcome(False), apart)
    assert (found.answer, found.credible) == ("confirmed", ("torch.add at 0.0/r0/fwd/a#0:out0",))
    assert "in 1 of 2 repeats, as much as another order" in found.says[0]
    assert "use_deterministic_algorithms" in found.next[0]
    outside = Outcome(True, "torch.add", 0.5, ("0.0/r0/fwd/a#0:in0", "given", "beyond"))
    found = tried(tmp_path / "outside", outside)
    assert found.credible == ("before 0.0/r0/fwd/a#0:in0",)
    assert "no operation is named" in found.says[0]


def test_what_never_differed_has_a_bound_and_what_does_not_run_no_answer(tmp_path):
    found = tried(tmp_path, *[Outcome(False)] * 5)
    assert found.answer == "excluded"
    assert "less than 45%" in found.says[0]  # 1 - 0.05 ** (1 / 5)
    failing = tried(tmp_path / "f", *[Outcome(None, "it ended with status 1")] * 3)
    assert (failing.answer, failing.exit_code) == ("undecided", 3)
