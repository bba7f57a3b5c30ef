"""What the checks of rollouts find in rollouts that are drawn from known distributions, and what they leave alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gallery.rollouts.drawn import Made
from gallery.rollouts.policy import Policy, Sampling, generate
from tests.unit.made_rollouts import Change, codes, recorded

import trueline
from trueline.rl.batch import rows_of
from trueline.store.importers.rollout_logs import import_rollouts

GAP = {"logprob-gap"}


def _kinds(finding: Any) -> set[str]:
    kind = finding.evidence["kind"]
    return {kind} if isinstance(kind, str) else set(kind)


def _bfloat16(batch: dict[str, Any]) -> None:
    for name in ("logp_rollout", "logp_train"):
        bits = batch[name].astype(np.float32).view(np.uint32)
        batch[name] = ((bits + 0x8000) & 0xFFFF0000).view(np.float32)
    batch["sampling"] = {"dtype": "bfloat16"}


def _int8(batch: dict[str, Any]) -> None:
    batch["sampling"] = {"dtype": "int8"}


def _forced(batch: dict[str, Any]) -> None:
    shape = batch["response_ids"].shape
    batch["mask"] = (np.random.default_rng(batch["step"]).random(shape) > 0.3).astype(int)
    for name in ("logp_rollout", "logp_train"):
        batch[name] = np.where(batch["mask"] == 1, batch[name], -9.0)


def _padded(batch: dict[str, Any]) -> None:
    """Sequences of different lengths, one of them of none, padded with NaN on the right."""
    shape = batch["response_ids"].shape
    length = np.arange(shape[0]) % shape[1]
    batch["mask"] = (np.arange(shape[1]) < length[:, None]).astype(int)
    for name in ("logp_rollout", "logp_train", "entropy", "varentropy"):
        batch[name] = np.where(batch["mask"] == 1, batch[name], np.nan)


@pytest.mark.parametrize(
    ("error", "change"),
    [(1e-6, None), (0.01, _bfloat16), (0.2, _int8), (1e-6, _forced), (1e-6, _padded)],
    ids=["float32", "bfloat16", "int8", "tool tokens", "lengths"],
)
def test_nothing_is_found_of_engines_that_agree_to_within_rounding(
    tmp_path: Path, error: float, change: Change | None
) -> None:
    report = trueline.check(recorded(tmp_path, Made(error=error), steps=20, change=change))
    assert [each.claim for each in report.findings] == []
    assert report.exit_code == 0
    assert "recorded-logprobs-wrong" in report.checks_run


@pytest.mark.parametrize(("temperature", "kind"), [(0.7, "sharper"), (1.4, "flatter")])
def test_a_temperature_before_which_logprobs_were_recorded_is_found(
    tmp_path: Path, temperature: float, kind: str
) -> None:
    found = codes(recorded(tmp_path, Made(), temperature=temperature, processed=False))
    assert set(found) == {"recorded-logprobs-wrong"}
    assert {kind, "same"} <= _kinds(found["recorded-logprobs-wrong"])


def _unrecorded(batch: dict[str, Any]) -> None:
    del batch["logp_rollout"], batch["odds_rollout"], batch["odds_train"]


def _entropies_alone(batch: dict[str, Any]) -> None:
    _unrecorded(batch)
    del batch["varentropy"]
    batch["sampling"] = {"dtype": "float32", "vocabulary": 50}


@pytest.mark.in_turn
@pytest.mark.parametrize("change", [_unrecorded, _entropies_alone])
@pytest.mark.parametrize(
    ("sampled", "kind"),
    [({"temperature": 0.7}, "sharper"), ({"top_p": 0.9}, "sharper"), ({"temperature": 1.5}, "flatter"), ({}, "")],
)
def test_where_the_engine_recorded_nothing_the_trainers_distribution_judges(
    tmp_path: Path, change: Change, sampled: dict[str, float], kind: str
) -> None:
    run = recorded(tmp_path, Made(size=64, scale=3.0), change=change, **sampled)
    found = codes(run)
    assert set(found) == ({"sampling-mismatch"} if kind else set())
    if kind:
        assert _kinds(found["sampling-mismatch"]) == {"unrecorded", kind}
        assert ("stand in it once" in found["sampling-mismatch"].claim) == (kind == "flatter")
    report = trueline.check(run)
    assert "sampling-mismatch" in report.checks_run


@pytest.mark.parametrize(
    ("kept", "declared", "padded"), [(0.002, {}, True), (0.9, {}, True), (0.0, {"top_k": 1}, False)]
)
def test_missing_log_probabilities_that_were_filled_with_zeros_are_an_error(
    tmp_path: Path, kept: float, declared: dict[str, int], padded: bool
) -> None:
    """As dynamo did that read SGLang's stream as if it were cumulative (ai-dynamo/dynamo#11640)."""
    random = np.random.default_rng(0)

    def change(batch: dict[str, Any]) -> None:
        batch["logp_rollout"] = np.where(random.random(batch["logp_rollout"].shape) < kept, batch["logp_rollout"], 0.0)
        batch["sampling"] = {"dtype": "float32", **declared}
        del batch["odds_rollout"], batch["odds_train"]

    diagnosis = trueline.diagnose(recorded(tmp_path, Made(size=32), change=change))
    found = [each for each in diagnosis.report.findings if each.evidence.get("kind") == "padded"]
    assert [each.severity for each in found] == ["error"] * padded
    assert (diagnosis.of(0)[0].cause == "logprobs-missing") == padded


def _all(batch: dict[str, Any]) -> None:
    """Everything that the loop can record."""


def _without_mass(batch: dict[str, Any]) -> None:
    del batch["mass_above"]


def _log_probabilities_alone(batch: dict[str, Any]) -> None:
    for name in ("mass_above", "entropy", "varentropy", "odds_rollout", "odds_train"):
        del batch[name]


@pytest.mark.parametrize("told", [_all, _without_mass, _log_probabilities_alone])
@pytest.mark.parametrize("way", ["top_p", "min_p"])
def test_a_single_token_that_a_cut_leaves_is_no_missing_value(tmp_path: Path, told: Change, way: str) -> None:
    """Its log-probability is exactly 0, and the trainer, which cuts nothing off, gives it what it likes."""
    made = Made(size=32, scale=3.0)

    def change(batch: dict[str, Any]) -> None:
        if way == "min_p":
            batch.update(_of_min_p(made, 0.3))
        assert (batch["logp_rollout"][batch["logp_train"] < -0.3] == 0).sum() > 10
        told(batch)

    report = trueline.check(recorded(tmp_path, made, change=change, **({"top_p": 0.6} if way == "top_p" else {})))
    assert "padded" not in {kind for each in report.findings for kind in _kinds(each)}
    assert "recorded-logprobs-wrong" in report.checks_run


def _of_min_p(made: Made, least: float) -> dict[str, Any]:
    """A batch sampled from the words that have ``least`` times the probability of the likeliest or more."""
    logits = made.scale * made.random.normal(size=made.shape)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    q = np.where(p >= least * p.max(-1, keepdims=True), p, 0.0)
    q /= q.sum(-1, keepdims=True)
    ids = (np.cumsum(q, -1) < made.random.random((*q.shape[:-1], 1))).sum(-1)

    def of(values: np.ndarray) -> np.ndarray:
        return np.take_along_axis(values, ids[..., None], -1)[..., 0]

    entropy = -(p * np.log(p)).sum(-1)
    return {
        "response_ids": ids,
        "logp_rollout": np.log(of(q)),
        "logp_train": np.log(of(p)),
        "entropy": entropy,
        "varentropy": (p * (np.log(p) + entropy[..., None]) ** 2).sum(-1),
        "mass_above": (p * (p > of(p)[..., None])).sum(-1),
    }


@pytest.mark.parametrize("told", [_all, _without_mass, _log_probabilities_alone])
def test_a_tail_without_log_probabilities_is_missing_whatever_else_was_recorded(tmp_path: Path, told: Change) -> None:
    def change(batch: dict[str, Any]) -> None:
        batch["logp_rollout"][:, 16:] = 0.0
        told(batch)

    (found,) = (
        each
        for each in trueline.check(recorded(tmp_path, Made(size=32), change=change, top_p=0.9)).findings
        if each.code == "recorded-logprobs-wrong" and "padded" in _kinds(each)
    )
    assert "values that are missing, and filled with 0" in found.claim


def test_a_log_of_means_that_is_well_says_how_much_was_looked_at(tmp_path: Path) -> None:
    """verl's, beside the values of a healthy run with SGLang."""
    lines = [
        {"step": step, "data": {"rollout_corr/kl": 0.00204, "rollout_corr/k3_kl": 0.00204}} for step in range(1, 22)
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    import_rollouts(str(tmp_path / "log.jsonl"), str(tmp_path / "run"), rows_of, version="")
    report = trueline.check(tmp_path / "run")
    assert (report.exit_code, report.findings) == (3, ())
    assert "2 of 11 checks of rollouts had what they need; these found nothing" in report.verdict.line


@pytest.mark.in_turn
@pytest.mark.parametrize("told", [("entropy", "varentropy"), ("entropy",)])
@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_an_engine_that_records_what_is_before_its_temperature_beside_a_trainer_with_it(
    tmp_path: Path, told: tuple[str, ...], temperature: float
) -> None:
    """TRL issue 4159: the trainer divides by the temperature, and its distribution is that of the tokens."""
    torch.manual_seed(0)
    policy, random, out = Policy(), torch.Generator().manual_seed(0), str(tmp_path / "run")
    sampling = Sampling(temperature, 1.0, processed=False)
    for step in range(4):
        prompts = torch.randint(256, (32, 8), generator=random)
        made = generate(policy, prompts, length=24, sampling=sampling, generator=random)
        with torch.no_grad():
            logits = policy(torch.cat([prompts, made.ids], 1))[:, 7:-1]
        train = trueline.rl.of_logits(logits, made.ids, temperature=temperature)
        given = {name: getattr(train, name) for name in told}
        declared = {"temperature": temperature, "dtype": "float32", "vocabulary": 256}
        trueline.rl.record(
            step, prompts, made.ids, None, made.logp, train.logp, versions=(0, 0), sampling=declared, out=out, **given
        )
    trueline.rl.close()
    diagnosis = trueline.diagnose(out)
    assert diagnosis.of(0)[0].cause == "temperature-not-recorded"
    wrong = [each for each in diagnosis.report.findings if each.code == "recorded-logprobs-wrong"]
    assert any("as-trainer" in each.evidence["kind"] for each in wrong)
    assert not any("nan" in each.claim or "inf" in each.claim for each in wrong)


@pytest.mark.parametrize(("engine", "exit_code"), [("transformers", 0), ("vllm", 3)])
def test_a_trainer_that_samples_by_itself_lacks_no_second_engine(tmp_path: Path, engine: str, exit_code: int) -> None:
    def change(batch: dict[str, Any]) -> None:
        _unrecorded(batch)
        batch["sampling"] = {"dtype": "float32", "engine": engine}

    report = trueline.check(recorded(tmp_path, Made(), change=change))
    assert report.exit_code == exit_code
    why = {each.check: each.why for each in report.checks_not_run}["decode-diverges"]
    assert ("the trainer's own model samples" in why) == (engine == "transformers")


@pytest.mark.parametrize("versions", [(0, 1), None])
def test_tokens_of_other_weights_are_not_judged_by_the_trainers_distribution(
    tmp_path: Path, versions: tuple[int, int] | None
) -> None:
    def change(batch: dict[str, Any]) -> None:
        _unrecorded(batch)
        batch["versions"] = versions

    report = trueline.check(recorded(tmp_path, Made(size=64), change=change, temperature=0.7))
    assert "sampling-mismatch" in {each.check for each in report.checks_not_run}


def test_what_rounding_can_do_is_no_other_distribution(tmp_path: Path) -> None:
    """Logits 3 % off all in one direction move -log p by less than errors of 0.1 may, which bfloat16 leaves."""

    def change(batch: dict[str, Any]) -> None:
        _unrecorded(batch)
        batch["sampling"] = {"dtype": dtype}

    for dtype, expected in (("bfloat16", set()), ("float32", {"sampling-mismatch"})):
        (tmp_path / dtype).mkdir()
        run = recorded(tmp_path / dtype, Made(size=200), steps=20, change=change, temperature=0.97)
        assert set(codes(run)) == expected


@pytest.mark.parametrize(("error", "temperature", "kind"), [(20.0, 1.0, {"nonsense"}), (1e-6, 2.0, set())])
def test_tokens_that_are_nonsense_to_the_trainer_are_called_so(
    tmp_path: Path, error: float, temperature: float, kind: set[str]
) -> None:
    made = Made(words=256, scale=2.5, error=error)
    gap = codes(recorded(tmp_path, made, temperature=temperature))["logprob-gap"]
    assert _kinds(gap) & {"nonsense"} == kind
    assert ("nonsense" in gap.claim) == bool(kind)


def test_a_temperature_of_nine_tenths_takes_five_steps_of_20000_tokens_at_most(tmp_path: Path) -> None:
    made = Made(size=200, length=100, words=30)
    found = codes(recorded(tmp_path, made, steps=5, temperature=0.9, processed=False))
    assert set(found) == {"recorded-logprobs-wrong"}


def test_a_temperature_that_the_trainer_is_without_is_named_with_its_size(tmp_path: Path) -> None:
    found = codes(recorded(tmp_path, Made(), temperature=0.7))
    assert set(found) == {"sampling-mismatch", *GAP}
    assert found["sampling-mismatch"].evidence["temperature"] == pytest.approx(0.7, rel=1e-3)


def test_the_temperature_is_read_from_entropies_where_there_are_no_odds(tmp_path: Path) -> None:
    def without_odds(batch: dict[str, Any]) -> None:
        del batch["odds_rollout"], batch["odds_train"]

    found = codes(recorded(tmp_path, Made(), temperature=0.8, change=without_odds))
    assert found["sampling-mismatch"].evidence["temperature"] == pytest.approx(0.8, rel=0.1)


def test_no_temperature_is_read_from_entropies_where_it_would_be_far_from_one(tmp_path: Path) -> None:
    """An engine without the trained head is nearly uniform: a temperature of 20 explains that as well."""

    def without_odds(batch: dict[str, Any]) -> None:
        del batch["odds_rollout"], batch["odds_train"]

    found = codes(recorded(tmp_path, Made(scale=4.0), temperature=20.0, change=without_odds))
    assert "sampling-mismatch" not in found
    assert set(found) >= GAP


@pytest.mark.parametrize(("at_once", "cause"), [(False, "weights-partly-synced"), (True, "implementations-differ")])
def test_a_gap_that_grows_gradually_from_nothing_comes_with_the_weights(
    tmp_path: Path, at_once: bool, cause: str
) -> None:
    made = Made()

    def grows(batch: dict[str, Any]) -> None:
        made.error = (0.3 if batch["step"] >= 5 else 1e-6) if at_once else min(1e-6 * 3.0 ** batch["step"], 0.3)

    diagnosis = trueline.diagnose(recorded(tmp_path, made, steps=20, change=grows))
    grown = next(each for each in diagnosis.report.findings if each.code == "logprob-gap-grows")
    assert ("gradually" in _kinds(grown)) is not at_once
    assert diagnosis.of(0)[0].cause == cause


def test_a_cut_that_was_not_recorded_is_told_from_a_temperature(tmp_path: Path) -> None:
    found = codes(recorded(tmp_path, Made(size=32), top_p=0.9, processed=False))
    assert set(found) == {"recorded-logprobs-wrong"}
    assert "cut" in _kinds(found["recorded-logprobs-wrong"])
    assert found["recorded-logprobs-wrong"].evidence["kept"] == 0.9


def test_a_cut_within_which_logprobs_were_recorded_gives_the_mass_that_was_kept(tmp_path: Path) -> None:
    found = codes(recorded(tmp_path, Made(size=32), top_p=0.9))
    assert found["sampling-mismatch"].evidence["kind"] == "cut-support"
    assert 0.9 < found["sampling-mismatch"].measured < 0.95


def test_a_large_lag_breaks_no_law(tmp_path: Path) -> None:
    """The tokens are of the recorded distribution: importance weights make up for the rest."""

    def declared(batch: dict[str, Any]) -> None:
        batch["versions"], batch["sampling"] = (batch["step"] - 1, batch["step"]), {"lag": 1}

    assert codes(recorded(tmp_path, Made(error=0.4), steps=12, change=declared)) == {}


def test_a_lag_that_was_not_declared_is_found_by_its_versions(tmp_path: Path) -> None:
    def behind(batch: dict[str, Any]) -> None:
        batch["versions"] = (batch["step"] - 2, batch["step"])

    found = codes(recorded(tmp_path, Made(error=0.3), change=behind))
    assert set(found) == {"policy-lag"}
    assert found["policy-lag"].measured == 2


def test_a_gap_beyond_rounding_is_found_in_float32_and_left_to_bfloat16(tmp_path: Path) -> None:
    found = codes(recorded(tmp_path, Made(error=0.02)))
    assert set(found) == GAP


def test_a_gap_that_grows_is_found_where_each_step_alone_is_within_rounding(tmp_path: Path) -> None:
    made = Made(error=0.005)

    def grows(batch: dict[str, Any]) -> None:
        batch["sampling"] = {"dtype": "bfloat16"}
        made.error = 0.005 * (1 + batch["step"] / 4)

    assert set(codes(recorded(tmp_path, made, steps=24, change=grows))) == {"logprob-gap-grows"}


def test_a_policy_that_sharpens_leaves_what_float32_loses_of_any_logarithm(tmp_path: Path) -> None:
    """log p is the difference of logits of 10 or more, so it is off by 1e-6 however near p comes to 1."""
    made = Made()

    def sharpens(batch: dict[str, Any]) -> None:
        noise = np.random.default_rng(batch["step"]).normal(size=batch["logp_train"].shape)
        batch["logp_rollout"] = np.minimum(batch["logp_train"] + 1e-6 * noise, 0.0)
        made.scale = 2.0 + 20 * batch["step"]

    report = trueline.check(recorded(tmp_path, made, steps=30, change=sharpens))
    assert [each.claim for each in report.findings] == []
    assert {"logprob-gap-grows", "decode-diverges", "prefill-diverges"} <= {*report.checks_run}


def test_a_gap_that_grows_along_the_response_is_of_decoding(tmp_path: Path) -> None:
    def drifts(batch: dict[str, Any]) -> None:
        noise = np.random.default_rng(batch["step"]).normal(size=batch["logp_train"].shape)
        batch["logp_rollout"] = batch["logp_train"] + 1e-4 * np.arange(noise.shape[1]) * noise

    found = codes(recorded(tmp_path, Made(), steps=10, change=drifts))
    assert set(found) >= {"decode-diverges"}
    assert set(found) <= {"decode-diverges", *GAP}


def test_a_gap_that_decays_along_the_response_is_of_the_prompt(tmp_path: Path) -> None:
    def decays(batch: dict[str, Any]) -> None:
        noise = np.random.default_rng(batch["step"]).normal(size=batch["logp_train"].shape)
        batch["logp_rollout"] = batch["logp_train"] + 0.04 * np.exp(-np.arange(noise.shape[1]) / 4) * noise

    found = codes(recorded(tmp_path, Made(), steps=10, change=decays))
    assert set(found) == {"prefill-diverges", *GAP}


def test_a_gap_that_decays_by_a_third_is_of_the_prompt_and_one_incident_with_it(tmp_path: Path) -> None:
    def decays(batch: dict[str, Any]) -> None:
        noise = np.random.default_rng(batch["step"]).normal(size=batch["logp_train"].shape)
        batch["logp_rollout"] = batch["logp_train"] + 0.01 * (1 + np.exp(-np.arange(noise.shape[1]) / 6)) * noise

    report = trueline.check(recorded(tmp_path, Made(), steps=24, change=decays))
    assert {each.code for each in report.findings} == {"prefill-diverges", *GAP}
    assert len(report.incidents) == 1


def test_a_gap_that_decays_within_what_rounding_leaves_is_left_alone(tmp_path: Path) -> None:
    """As of an engine in int8, whose first tokens are flatter once the policy has learned."""

    def decays(batch: dict[str, Any]) -> None:
        noise = np.random.default_rng(batch["step"]).normal(size=batch["logp_train"].shape)
        batch["logp_rollout"] = batch["logp_train"] + 0.01 * (1 + np.exp(-np.arange(noise.shape[1]) / 6)) * noise
        batch["sampling"] = {"dtype": "int8"}

    assert codes(recorded(tmp_path, Made(), steps=40, change=decays)) == {}


def test_log_probabilities_of_the_next_token_are_called_shifted(tmp_path: Path) -> None:
    def shifted(batch: dict[str, Any]) -> None:
        batch["logp_train"] = np.roll(batch["logp_train"], -1, axis=1)

    found = codes(recorded(tmp_path, Made(), change=shifted))
    assert found["tokens-differ"].evidence["kind"] == "shifted"


def test_responses_that_differ_from_one_token_on_are_found_without_ids(tmp_path: Path) -> None:
    def again(batch: dict[str, Any]) -> None:
        other = -np.random.default_rng(batch["step"]).exponential(4.0, (16, 24)) - 0.5
        begin = 7 + np.arange(16)[:, None] % 8
        batch["logp_train"] = np.where(np.arange(24) >= begin, other, batch["logp_train"])

    found = codes(recorded(tmp_path, Made(), change=again))
    assert found["tokens-differ"].evidence["kind"] == ["from-one-position", "tokens-unclear"]


@pytest.mark.parametrize("side", ["prompt", "response"])
def test_ids_of_both_sides_are_compared_exactly(tmp_path: Path, side: str) -> None:
    def other(batch: dict[str, Any]) -> None:
        ids = np.array(batch[f"{side}_ids"])
        batch[f"train_{side}_ids"] = ids.copy()
        if batch["step"] == 3:
            batch[f"train_{side}_ids"][5, 2] += 1

    found = codes(recorded(tmp_path, Made(), change=other))
    assert set(found) == {"tokens-differ"}
    assert (found["tokens-differ"].step_first, found["tokens-differ"].evidence["first_token"]) == (3, 2)
    assert found["tokens-differ"].evidence["kind"] == side


def test_two_passes_of_the_trainer_that_differ_are_found(tmp_path: Path) -> None:
    def again(batch: dict[str, Any]) -> None:
        noise = np.random.default_rng(batch["step"]).normal(size=batch["logp_train"].shape)
        batch["logp_update"] = batch["logp_train"] + 0.1 * noise

    found = codes(recorded(tmp_path, Made(), change=again))
    assert _kinds(found["logprob-gap"]) == {"passes-differ"}


def test_log_probabilities_that_none_can_be_are_an_error(tmp_path: Path) -> None:
    def wrong(batch: dict[str, Any]) -> None:
        batch["logp_rollout"][0, 0], batch["logp_rollout"][1, 1] = 0.5, -np.inf

    found = codes(recorded(tmp_path, Made(), change=wrong))
    assert found["recorded-logprobs-wrong"].severity == "error"
    assert found["recorded-logprobs-wrong"].measured == 12


def test_rewards_that_change_and_advantages_of_another_group_are_found(tmp_path: Path) -> None:
    reward = np.tile([0.0, 1.0, 1.0, 0.0], 4)
    group = np.repeat(np.arange(4), 4)
    right = reward - 0.5

    def with_rewards(again: np.ndarray, advantage: np.ndarray) -> Change:
        def change(batch: dict[str, Any]) -> None:
            batch |= {"reward": reward, "reward_again": again, "advantage": advantage, "group": group}

        return change

    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir(), (tmp_path / "c").mkdir()
    assert codes(recorded(tmp_path / "a", Made(), change=with_rewards(reward, right))) == {}
    other = reward.copy()
    other[3] = 1.0
    found = codes(recorded(tmp_path / "b", Made(), change=with_rewards(other, right)))
    assert found["reward-differs"].evidence["kind"] == "rule"
    found = codes(recorded(tmp_path / "c", Made(), change=with_rewards(reward, np.roll(right, 1))))
    assert found["reward-differs"].evidence["kind"] == "group-law"


def test_a_group_of_which_a_sequence_is_missing_is_not_judged(tmp_path: Path) -> None:
    """Declared sizes tell it from one that is whole."""
    whole = np.array([0.0, 1.0, 1.0, 0.0])
    rest = np.tile(whole[:3], 4)

    def change(batch: dict[str, Any]) -> None:
        for name in [*batch]:
            batch[name] = batch[name][:12] if isinstance(batch[name], np.ndarray) else batch[name]
        batch |= {"reward": rest, "advantage": rest - whole.mean(), "group": np.repeat(np.arange(4), 3)}
        batch["sampling"] = {**(batch.get("sampling") or {}), **declared}

    declared: dict[str, int] = {}
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    assert codes(recorded(tmp_path / "a", Made(), change=change))["reward-differs"].evidence["kind"] == "group-law"
    declared["group_size"] = 4
    assert "reward-differs" not in codes(recorded(tmp_path / "b", Made(), change=change))


def test_what_cannot_be_judged_is_said(tmp_path: Path) -> None:
    def poor(batch: dict[str, Any]) -> None:
        for name in [*batch]:
            if name not in ("response_ids", "logp_rollout", "step"):
                del batch[name]

    report = trueline.check(recorded(tmp_path, Made(), change=poor))
    why = {each.check: each.why for each in report.checks_not_run}
    assert "no sampled token has log-probabilities of both sides" in why["logprob-gap"]
    assert report.exit_code == 3


def _short_mask(batch: dict[str, Any]) -> None:
    batch["mask"] = [np.ones(24 - row % 2, int) for row in range(16)]


def _other_tokenizer(batch: dict[str, Any]) -> None:
    batch["train_response_ids"] = [row[:20] + 7 for row in batch["response_ids"]]
    batch["logp_train"] = batch["logp_train"][:, :20]


def _of_one_token_lost(batch: dict[str, Any]) -> None:
    batch["logp_train"][0, 3] = -np.inf


def _without_tokens(batch: dict[str, Any]) -> None:
    for name in [*batch]:
        if isinstance(batch[name], np.ndarray):
            batch[name] = batch[name][:, :0]


def _of_other_lengths(batch: dict[str, Any]) -> None:
    batch["mask"] = [np.ones(24 - 1 - row, int) for row in range(16)]


@pytest.mark.parametrize(
    ("change", "says", "judges", "found"),
    [
        (
            _short_mask,
            "mask has 23 values for 24 tokens, so that no token counts as sampled, in 48 seq",
            True,
            {"tokens-differ"},
        ),
        (_other_tokenizer, "logp_train has 20 values for 24 tokens and was left out, in 96", False, {"tokens-differ"}),
        (_of_one_token_lost, "the trainer has no finite log-probability of 6 sampled tokens", True, set()),
        (_without_tokens, "no token was sampled, in 96 sequences", False, set()),
        (_of_other_lengths, "14 further notes of this kind", False, {"tokens-differ"}),
    ],
)
def test_what_of_a_batch_could_not_be_judged_is_said_and_the_rest_is_judged(
    tmp_path: Path, change: Change, says: str, judges: bool, found: set[str]
) -> None:
    report = trueline.check(recorded(tmp_path, Made(), change=change))
    assert says in " ".join(report.notes)
    assert {each.code for each in report.findings} == found
    assert ("logprob-gap" in report.checks_run) is judges
    if not judges:
        why = next(each.why for each in report.checks_not_run if each.check == "logprob-gap")
        assert why.startswith("no sampled token has log-probabilities of both sides, logp_rollout and logp_train: ")


def _short_and_sure(batch: dict[str, Any]) -> None:
    """A fifth of the responses are a few tokens of a policy that is sure of them: what rounding leaves of these is much
    beside 1 - p, and nothing beside the whole batch.
    """
    few = np.arange(16) % 5 == 0
    lost = np.where(few[:, None], 2e-3, 1e-7) * np.random.default_rng(batch["step"]).normal(size=(16, 24))
    batch["logp_train"] = np.where(few[:, None], -1e-3, batch["logp_train"])
    batch["logp_rollout"] = np.minimum(batch["logp_train"] + lost, 0.0)
    for name in ("entropy", "varentropy", "mass_above", "odds_rollout", "odds_train"):
        del batch[name]


def _number(finding: Any) -> tuple[float, float]:
    return finding.measured, finding.expected


def test_no_gap_is_reported_whose_number_is_below_what_rounding_explains(tmp_path: Path) -> None:
    report = trueline.check(recorded(tmp_path, Made(), steps=40, change=_short_and_sure))
    assert [(each.claim, _number(each)) for each in report.findings if each.code == "logprob-gap"] == []
    assert "logprob-gap" in report.checks_run


def test_a_gap_of_a_part_of_the_sequences_is_said_of_these(tmp_path: Path) -> None:
    """As of one engine in five, while all together are within what rounding leaves in bfloat16."""

    def one_in_five(batch: dict[str, Any]) -> None:
        noise = np.random.default_rng(batch["step"]).normal(size=(16, 24))
        error = np.where(np.arange(16) % 5 == 0, 0.35, 1e-4)[:, None]
        batch["logp_rollout"] = np.minimum(batch["logp_train"] + error * noise, 0.0)
        batch["sampling"] = {"dtype": "bfloat16"}
        for name in ("entropy", "varentropy", "mass_above", "odds_rollout", "odds_train"):
            del batch[name]

    finding = codes(recorded(tmp_path, Made(), steps=40, change=one_in_five))["logprob-gap"]
    assert "160 of 640 sequences" in finding.claim
    assert finding.measured > 2 * finding.expected


@pytest.mark.parametrize(("high", "found"), [(0.06, False), (0.105, True), (0.2, True)])
def test_a_log_of_means_is_reported_where_its_number_is_beyond_its_bound(
    tmp_path: Path, high: float, found: bool
) -> None:
    """In two steps of five |d| is ``high``, in the others 0.01, and rounding explains 0.05."""
    lines = [{"step": step, "rollout_corr/log_ppl_abs_diff": high if step % 5 < 2 else 0.01} for step in range(160)]
    (tmp_path / "log.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    import_rollouts(str(tmp_path / "log.jsonl"), str(tmp_path / "run"), rows_of, version="0")
    gaps = [each for each in trueline.check(tmp_path / "run").findings if each.code == "logprob-gap"]
    assert bool(gaps) is found
    assert all(each.measured > each.expected for each in gaps)


def test_a_gap_that_grows_by_less_than_its_bound_is_not_reported(tmp_path: Path) -> None:
    """A third of the later responses are short ones of which the policy is sure."""

    def later(batch: dict[str, Any]) -> None:
        error = np.full((16, 24), 1e-3)
        if batch["step"] >= 8:
            sure = np.arange(16) % 3 == 0
            batch["logp_train"] = np.where(sure[:, None], -1e-2, batch["logp_train"])
            error[sure] = 2e-4
        noise = np.random.default_rng(batch["step"]).normal(size=(16, 24))
        batch["logp_rollout"] = np.minimum(batch["logp_train"] + error * noise, 0.0)
        batch["sampling"] = {"dtype": "bfloat16"}
        for name in ("entropy", "varentropy", "mass_above", "odds_rollout", "odds_train"):
            del batch[name]

    report = trueline.check(recorded(tmp_path, Made(), steps=60, change=later))
    assert [(each.claim, _number(each)) for each in report.findings if each.code == "logprob-gap-grows"] == []
    assert "logprob-gap-grows" in report.checks_run


def _one_more(name: str) -> Change:
    def change(batch: dict[str, Any]) -> None:
        batch[name] = np.concatenate([np.full((16, 1), batch[name].mean()), batch[name]], axis=1)

    return change


def _both_one_more(batch: dict[str, Any]) -> None:
    for name in ("logp_rollout", "logp_train"):
        _one_more(name)(batch)


def _a_sequence_less(batch: dict[str, Any]) -> None:
    batch["logp_train"] = batch["logp_train"][1:]


@pytest.mark.parametrize(
    ("change", "lists", "says"),
    [
        (
            _one_more("logp_rollout"),
            ["logp_rollout"],
            "1 value more than there are tokens in 96 of 96 sequences of steps 0-5 (25 for 24",
        ),
        (
            _one_more("logp_train"),
            ["logp_train"],
            "1 value more than there are tokens in 96 of 96 sequences of steps 0-5 (25 for 24",
        ),
        (
            _one_more("entropy"),
            ["entropy"],
            "1 value more than there are tokens in 96 of 96 sequences of steps 0-5 (25 for 24",
        ),
        (_both_one_more, ["logp_rollout", "logp_train"], "logp_rollout has 1 value more"),
        (_a_sequence_less, ["logp_train"], "1 sequence less than the batch at steps 0-5 (15 for 16"),
    ],
)
def test_lists_that_do_not_fit_the_tokens_are_an_error(
    tmp_path: Path, change: Change, lists: list[str], says: str
) -> None:
    diagnosis = trueline.diagnose(recorded(tmp_path, Made(), change=change))
    found = [each for each in diagnosis.report.findings if each.code == "tokens-differ"]
    assert [each.evidence["list"] for each in found] == lists
    assert says in found[0].claim
    assert diagnosis.report.exit_code == 1
    assert diagnosis.of(0)[0].cause == "unknown"
