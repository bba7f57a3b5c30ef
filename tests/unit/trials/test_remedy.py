"""What `trial remedy` concludes of numbers that are made here, and of names that it is given."""

import numpy as np
import pytest
from torch import nn

from trueline.capture.trial.remedies import others_like
from trueline.schema.errors import InputError
from trueline.trials.frame.runs import Runs
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.remedy.effect import effect_of, ratio, sign_test
from trueline.trials.remedy.remedy import RemedyTrial
from trueline.trials.remedy.treated_job import BASE, NOT_FINITE, REMEDY, SHAM, Measure, Treatment, Ways


def drawn(draw, *, gap=1.0, left=1.0, sham=1.0, spread=0.1, pairs=8):
    """What is wrong in pairs of runs, of which a part is of the seeds."""
    seeds = spread * draw.standard_normal(pairs)
    good = spread * draw.standard_normal()
    noise = spread * draw.standard_normal((3, pairs)) / 2
    return [gap * share + seeds + each - good for share, each in zip((1.0, left, sham), noise, strict=True)]


@pytest.mark.parametrize(
    ("left", "sham", "verdict"), [(0.0, 1.0, "recovers"), (0.5, 1.0, "partly"), (1.0, 1.0, "no effect")]
)
def test_a_remedy_recovers_a_job_partly_or_has_no_effect(left, sham, verdict):
    draw = np.random.default_rng(0)
    found = [effect_of(*drawn(draw, left=left, sham=sham, spread=0.05), good_varies=True).verdict for _ in range(40)]
    assert found.count(verdict) >= 36, found


def test_where_the_sham_does_as_much_it_is_not_the_remedy():
    draw = np.random.default_rng(1)
    found = [effect_of(*drawn(draw, left=0.0, sham=0.0, spread=0.05), good_varies=True).verdict for _ in range(40)]
    assert {*found} == {"undecided"}, "what a sham does as well is no reason to take the remedy out again"


def test_half_a_cure_of_a_small_gap_is_never_no_effect():
    """A quarter of what is wrong matters: before, 15 % of such jobs were told that there is no effect."""
    draw = np.random.default_rng(4)
    verdicts = [effect_of(*drawn(draw, gap=3.0, left=0.5, spread=1.0), good_varies=True).verdict for _ in range(400)]
    assert verdicts.count("no effect") <= 12, {verdict: verdicts.count(verdict) for verdict in verdicts}


@pytest.mark.parametrize("seed", range(8))
def test_a_remedy_of_a_loss_that_explodes_recovers_it(seed):
    """Base is 5e4 to 1e16 above the good run, and 0.6 to 0.9 with the remedy: what a mean and Student's t lose."""
    draw = np.random.default_rng(seed)
    base = 10 ** draw.uniform(np.log10(5e4), 16, 8)
    remedy, sham = draw.uniform(0.6, 0.9, 8), 10 ** draw.uniform(np.log10(5e4), 16, 8)
    measure = Measure(0, 3, 2.3, 2.3)
    wrong = [[measure.above(np.full(4, 2.3 + gap)) for gap in arm] for arm in (base, remedy, sham)]
    assert effect_of(*wrong, good_varies=True).verdict == "recovers"


def test_a_small_difference_of_losses_counts_as_it_is():
    assert Measure(0, 3, 2.0, 2.0).above(np.array([2.1, 1.9, 2.2])) == pytest.approx(0.2 / 3, rel=0.01)


def test_a_sham_that_does_harm_makes_no_remedy_of_what_does_nothing():
    base = np.array([1.0, 1.1, 0.9, 1.2, 0.8, 1.0])
    assert effect_of(base, base, base + 0.5, good_varies=True).verdict == "no effect"


def test_chaos_alone_has_no_effect_of_any_remedy():
    """Of 400 jobs in which nothing is wrong but the luck of seeds."""
    draw = np.random.default_rng(2)
    found = [effect_of(*drawn(draw, gap=0.0, spread=1.0), good_varies=True).verdict for _ in range(400)]
    assert found.count("no effect") >= 0.95 * 400, {each: found.count(each) for each in found}
    assert not {*found} & {"recovers", "partly"}, {each: found.count(each) for each in found}


def test_fiellers_interval_covers_the_ratio_as_often_as_it_says():
    draw = np.random.default_rng(3)
    held = 0
    for _ in range(1000):
        seeds = 0.3 * draw.standard_normal(8)
        base, remedy = 1 + seeds + 0.2 * draw.standard_normal(8), 0.4 + seeds + 0.2 * draw.standard_normal(8)
        found = ratio(remedy, base, 0.05)
        held += found is not None and found.low <= 0.4 <= found.high
    assert 930 <= held <= 970  # 950 ± 3 standard errors of a binomial
    assert ratio(np.ones(8), np.array([1.0, -1.0] * 4), 0.05) is None


def test_the_sign_test_leaves_out_pairs_without_a_difference():
    assert sign_test(np.zeros(6), np.ones(6)) == pytest.approx(2 / 2**6)
    assert sign_test(np.array([0.0, 0, 0, 1]), np.array([1.0, 1, 1, 1])) == pytest.approx(2 / 2**3)
    assert sign_test(np.ones(4), np.ones(4)) == 1.0


@pytest.mark.parametrize("text", ["fp32", "fp32:", "clip:embed", "clip:embed=x", "clip:embed=0", "fp32:a=1", "magic"])
def test_what_is_no_remedy_is_refused(text):
    with pytest.raises(InputError, match="--remedy is"):
        Treatment.from_text(text)


def test_the_sham_is_the_same_elsewhere_or_in_place_and_off(tmp_path):
    fp32, unfused = Treatment.from_text("fp32:layers.3"), Treatment.from_text("unfused")
    assert fp32.changes("base") == {}
    assert [fp32.changes(arm)["remedy"]["sham"] for arm in ("remedy", "sham")] == [False, True]
    assert unfused.changes("sham")["off"] == []
    assert "fused-optimizer" in unfused.changes("remedy")["off"]
    assert unfused.changes("sham")["switches"][0]["name"] == "fused-optimizer"
    way = Ways(("job", "--seed={seed}"), fp32, 5, tmp_path).way(REMEDY, 2)
    assert (way.words, way.changes["seed"], way.changes["shift"]) == (["job", "--seed=7"], 7, 0)
    assert Ways(("job",), fp32, 5, tmp_path).way(BASE, 2).changes == {"seed": 7, "shift": 2}


def test_the_module_of_the_sham_is_of_the_same_class_and_size_and_apart():
    block = lambda size: nn.Sequential(nn.Linear(size, size), nn.ReLU())  # noqa: E731
    model = nn.ModuleDict({"a": block(8), "b": block(16), "c": block(9), "head": nn.Linear(8, 9)})
    named = {name: module for name, module in model.named_modules() if name}
    assert others_like(["a"], named) == ["c"]
    assert others_like(["a.0"], named) == ["head"]
    assert others_like(["a", "c"], named) == ["b", "head"]
    assert others_like(["a"], {"a": named["a"], "a.0": named["a.0"]}) == []


def test_the_sham_holds_no_tensor_of_the_remedys_module():
    """A head that is tied to its embedding would be clipped by a sham as by the remedy."""
    model = nn.ModuleDict({"embed": nn.Embedding(9, 8), "body": nn.Linear(8, 8), "head": nn.Linear(8, 9, bias=False)})
    model["head"].weight = model["embed"].weight
    named = {name: module for name, module in model.named_modules() if name}
    assert others_like(["embed"], named) == ["body"]
    model["head"].weight = nn.Parameter(model["embed"].weight.detach())  # another object, the same memory
    assert others_like(["embed"], named) == ["body"]


def trial_of(tmp_path, engine, *, kind="fp32:x", pairs=6):
    treatment = Treatment.from_text(kind)
    ways = Ways(("job",), treatment, 0, tmp_path)
    runs = Runs("remedy", tmp_path / "t", engine, {}, 100)
    return RemedyTrial(runs, "?", ways.way, treatment, Measure(0, 9, None), pairs)


def test_seeds_that_reach_nothing_and_a_module_that_is_not_there_are_told(tmp_path):
    same = trial_of(tmp_path, lambda way, place: Outcome(False, measured=1.0, codes=("a", "remedy:there 1"))).answer()
    assert (same.answer, same.runs) == ("undecided", 6)
    assert "Other seeds change nothing" in same.says[0]
    absent = trial_of(tmp_path / "a", lambda way, place: Outcome(False, measured=1.0, codes=("a",))).answer()
    assert (absent.exit_code, absent.runs) == (3, 3)
    assert "no module of the model is called 'x'" in absent.says[0]


def test_a_trial_goes_on_where_it_was(tmp_path):
    def engine(way, place):
        wrong = 0.0 if way.arm == REMEDY else 0.5
        return Outcome(
            False, measured=wrong, codes=(str(way.changes["seed"]), "remedy:there 1", f"remedy:fp32 {way.arm}")
        )

    found = trial_of(tmp_path, engine).answer()
    assert (found.answer, found.credible) == ("confirmed", ("recovers",))
    assert "The remedy was at remedy, the sham at sham." in found.says[-1]
    assert {arm.name: arm.showed for arm in found.arms} == {"base": 6, "remedy": 0, "sham": 6}
    assert trial_of(tmp_path, lambda way, place: None).answer() == found


@pytest.mark.parametrize(
    ("diverged", "answer", "told"),
    [
        ({BASE: 2, SHAM: 2, REMEDY: 0}, "confirmed", "not finite (base 2, remedy 0, sham 2) count as the worst"),
        ({BASE: 0, SHAM: 0, REMEDY: 1}, "undecided", "With the remedy more runs have a loss that is not finite"),
        ({BASE: 8, SHAM: 8, REMEDY: 0}, "undecided", "No run of the job as it is has a loss that is finite"),
    ],
    ids=["some", "by the remedy", "all"],
)
def test_runs_that_diverge_count_as_the_worst_of_the_others(tmp_path, diverged, answer, told):
    def engine(way, place):
        number = way.changes["seed"]
        wrong = (0.0 if way.arm == REMEDY else 0.5) + number / 100
        wrong = NOT_FINITE if number < diverged[way.arm] else wrong
        return Outcome(False, measured=wrong, codes=(str(number), "remedy:there 1", f"remedy:fp32 {way.arm}"))

    trial = trial_of(tmp_path, engine, pairs=8)
    trial.measure = Measure(0, 9, 1.0)
    found = trial.answer()
    assert (found.answer, [told in line for line in found.says].count(True)) == (answer, 1), found.says
    assert {arm.name: arm.showed for arm in found.arms}[BASE] == 8, "of which all are worse than half of the usual"
