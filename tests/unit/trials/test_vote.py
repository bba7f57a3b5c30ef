"""`trial vote` on jobs that exist in numbers only: what it blames, and when it says that it cannot tell."""

import random

import pytest
from tests.simulated_votes import STEPS, bits, tried

from trueline.schema.errors import InputError
from trueline.trials.frame.runs import Runs
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.vote.groups import VARIABLE, Groups, devices_named, variables_of
from trueline.trials.vote.replay import ReplayedJob, first_apart
from trueline.trials.vote.suspects import Replay, Suspect, ranked
from trueline.trials.vote.vote import VoteTrial


def test_a_device_that_spoils_its_work_is_named_and_the_others_have_a_bound():
    found = tried(lambda device, rank, draw: device == "3")
    assert (found.answer, found.credible, found.exit_code) == ("confirmed", ("device 3",), 0)
    assert found.findings[0].code == "minority-rank"
    assert (found.findings[0].ranks, found.findings[0].evidence["devices"]) == ((3,), ["3"])
    assert "It follows device 3" in found.says[0]
    assert "as rank 0 and 1 of its group" in found.says[0]
    assert "from step 1 on, first in its gradient" in found.says[0]
    assert "q <= " in found.says[1]
    assert found.to_json()["findings"][0]["code"] == "minority-rank"
    assert found.runs <= 16


@pytest.mark.parametrize("rate", [0.5, 0.25])
def test_a_device_that_spoils_some_of_its_runs_takes_more_of_them(rate):
    answers = [
        tried(lambda device, rank, draw: device == "3" and draw.random() < rate, seed=seed, rate=0.1)
        for seed in range(12)
    ]
    named = [each.credible for each in answers if each.answer == "confirmed"]
    assert len(named) >= 10, [each.says for each in answers]
    assert {*named} == {("device 3",)}


@pytest.mark.parametrize(("rate", "told"), [(1.0, "undecided"), (0.4, "excluded")])
def test_the_same_fault_in_a_rank_whichever_device_it_has_is_no_devices_fault(rate, told):
    """Where all replays have it, by chance each, none agree."""
    answers = [tried(lambda device, place, draw: place == 1 and draw.random() < rate, seed=seed) for seed in range(6)]
    assert not any(each.findings for each in answers)
    assert [each.answer for each in answers].count(told) >= 3, [each.says for each in answers]
    assert {each.credible for each in answers if each.answer == "excluded"} <= {("rank 1",)}


def test_two_bad_devices_are_both_named():
    found = tried(lambda device, rank, draw: device in "36", devices=12)
    assert (found.answer, found.credible) == ("confirmed", ("device 3 + device 6",)), found.says
    assert found.findings[0].evidence["devices"] == ["3", "6"]


def test_an_operation_that_does_not_repeat_itself_anywhere_is_no_vote():
    found = tried(lambda device, rank, draw: draw.random() < 0.8)
    assert (found.answer, found.exit_code, found.credible) == ("undecided", 3, ())
    assert "not deterministic here" in found.says[0]
    seldom = [tried(lambda device, rank, draw: draw.random() < 0.15, seed=10 + seed) for seed in range(8)]
    assert not any(each.findings for each in seldom), [each.says for each in seldom]


def test_nothing_in_so_many_replays_is_a_bound_and_not_health():
    found = tried(lambda device, rank, draw: False, rate=0.3)
    assert (found.answer, found.runs) == ("excluded", 9 * 3)  # 0.7 ** 9 = 0.04
    assert "In 9 replays or more of all nothing differed: each spoils at most 28% of them (q <= 0.33" in found.says[1]
    short = tried(lambda device, rank, draw: False, max_runs=8, seed=1)
    assert (short.answer, "q <= 1" in short.says[1]) == ("undecided", True)


def test_other_data_is_no_devices_fault(tmp_path):
    made = iter([bits(1), bits(1), bits(1), bits(1), ("0 samples 1", *bits(1)[1:]), bits(1)])
    runs = Runs("vote", tmp_path / "t", lambda way, place: Outcome(False, codes=next(made)), {}, 6)
    found = VoteTrial(runs, ReplayedJob(None, STEPS, 0), Groups(("a", "b", "c"), 1, (), ("job",))).answer()
    assert (found.answer, "read other samples from step 0 on" in found.says[0]) == ("undecided", True)


def test_devices_that_shared_a_group_share_none_in_the_next_block():
    groups = Groups([str(number) for number in range(12)], 3, (), ("job",))
    first, second, third = (groups.block(number, random.Random(0)) for number in range(3))
    assert sorted(sorted(first)[0]) == ["0", "1", "2"]
    for block in (first, second, third):
        assert sorted(name for group in block for name in group) == sorted(groups.devices)
    pairs = [{(a, b) for group in block for a in group for b in group if a != b} for block in (first, second)]
    assert not pairs[0] & pairs[1]
    rank_of = [{name: rank for group in block for rank, name in enumerate(group)} for block in (first, second)]
    assert all(rank_of[0][name] != rank_of[1][name] for name in groups.devices)


def test_a_run_is_told_its_devices_in_the_order_of_its_ranks():
    groups = Groups(("n1", "n2", "n3"), 1, ("MINE",), ("srun", "--nodelist={devices}"))
    way = groups.way("replay", ("n2",))
    assert (way.words, way.environ) == (["srun", "--nodelist=n2"], {VARIABLE: "n2", "MINE": "n2"})
    assert devices_named("0-2, 5,gpu-a") == ("0", "1", "2", "5", "gpu-a")
    assert "CUDA_VISIBLE_DEVICES" in variables_of(("0", "1"), ("job",), None)
    assert variables_of(("n1",), ("srun", "-w{devices}"), None) == ()
    with pytest.raises(InputError, match="Nothing tells the command on which of n1"):
        variables_of(("n1",), ("job",), None)


@pytest.mark.parametrize(
    ("devices", "size", "told"),
    [
        (("0", "1"), 1, "A majority takes 3 groups"),
        (tuple("0123"), 3, "A majority takes 3 groups"),
        (tuple("0120"), 1, "twice"),
    ],
)
def test_what_cannot_be_voted_on_is_refused(devices, size, told):
    with pytest.raises(InputError, match=told):
        Groups(devices, size, (), ("job",))


def test_who_was_first_to_differ_speaks_for_its_device():
    clean = [Replay(("0", "1"), False), Replay(("2", "5"), False)]
    groups = [*clean, Replay(("3", "4"), True, 0), Replay(("1", "3"), True, 1)]
    assert ranked(groups, "012345")[0][0] == Suspect(("3",))
    in_rank = [*clean, Replay(("3", "4"), True, 1), Replay(("1", "2"), True, 1), Replay(("0", "5"), True, 1)]
    assert ranked(in_rank, "012345")[0][0] == Suspect(rank=1)


def test_the_first_value_that_differs_and_its_ranks():
    apart = first_apart(bits(2, [1], "9"), bits(2))
    assert (apart.step, apart.kind, apart.ranks) == (1, "gradient", (1,))
    assert first_apart(bits(2), bits(2)) is None
