"""Which probes are asked: worked out once for each choice of them, and again where they say something else."""

from trueline.capture.probes.base import FactProbe, Step
from trueline.capture.step.probing import Probing
from trueline.capture.step.working_parts import WorkingParts
from trueline.schema.plan import Plan


class Asked(FactProbe):
    """Notes when it is asked; ``between`` may change."""

    moments = ("forward", "update")

    def __init__(self, name, between=None):
        self.name, self.between, self.steps = name, between, []

    def take(self, moment, step):
        self.steps.append((step.number, moment))
        return {}


class Fails(Asked):
    def begin(self, step):
        if step.watched and step.number == 3:
            raise ValueError
        return True


def run(probes, sampled):
    failed = []
    probing = Probing(probes, WorkingParts(lambda part, error: failed.append(part)))
    for number, is_sampled in enumerate(sampled):
        probing.begin(Step(number, layout=None, plan=Plan(), facts={}, watched=True, sampled=is_sampled))
        for moment in ("forward", "update"):
            probing.ask(moment)
    return failed


def test_a_probe_is_asked_between_samples_at_the_moments_that_it_names():
    always, rests = Asked("always", between=("update",)), Asked("rests")
    assert run([always, rests], [True, False, False, True]) == []
    both = [(0, "forward"), (0, "update")], [(3, "forward"), (3, "update")]
    assert rests.steps == [*both[0], *both[1]]
    assert always.steps == [*both[0], (1, "update"), (2, "update"), *both[1]]


def test_a_probe_whose_beginning_fails_is_asked_no_more_and_the_others_are():
    before, fails, after = Asked("before", ("update",)), Fails("fails", ("update",)), Asked("after", ("forward",))
    assert run([before, fails, after], [True, False, False, False, False, True]) == ["fails"]
    assert fails.steps[-1] == (2, "update")
    assert before.steps[-4:] == [(3, "update"), (4, "update"), (5, "forward"), (5, "update")]
    assert after.steps[-4:] == [(3, "forward"), (4, "forward"), (5, "forward"), (5, "update")]


def test_moments_that_a_probe_comes_to_name_are_asked_after_the_next_sample():
    probe = Asked("comes", between=())

    def sampled():
        for number in range(6):
            if number == 2:
                probe.between = ("update",)
            yield number in (0, 3)

    assert run([probe], sampled()) == []
    assert [number for number, moment in probe.steps if moment == "update"] == [0, 3, 4, 5]
