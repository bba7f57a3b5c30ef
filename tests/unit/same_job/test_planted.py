"""Differences planted into public examples are named in one vocabulary; what cannot change numbers is silent."""

import pytest
from tests.unit.same_job.cases import ACROSS, HARMLESS, PLANTED
from tests.unit.same_job.configs import CONFIGS

from trueline.same_job.diff import diff
from trueline.same_job.vocabulary import vocabulary


def planted_diff(tmp_path, case):
    for name, text in (
        ("run", CONFIGS[case.config].replace(case.before, case.after, 1)),
        ("ref", CONFIGS[case.config]),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / case.config).write_text(text)
    return diff(tmp_path / "run" / case.config, tmp_path / "ref" / case.config)


@pytest.mark.parametrize("case", PLANTED, ids=lambda case: f"{case.config}-{case.term}")
def test_a_planted_difference_is_found_and_named(tmp_path, case):
    assert case.before in CONFIGS[case.config]
    differences = {difference.name: difference for difference in planted_diff(tmp_path, case).differences}
    assert case.term in differences
    assert len(differences) <= 2  # and what follows from it


@pytest.mark.parametrize("case", HARMLESS, ids=lambda case: f"{case.config}-{case.before[:24].strip()}")
def test_what_cannot_change_numbers_is_silent(tmp_path, case):
    assert case.before in CONFIGS[case.config]
    result = planted_diff(tmp_path, case)
    assert result.differences == ()
    assert result.exit_code == 0
    assert result.compared["settings"] > 5


@pytest.mark.parametrize(("config", "option", "other_config", "other_option", "term"), ACROSS)
def test_two_frameworks_share_a_word(config, option, other_config, other_option, term):
    rules = vocabulary().rules
    frameworks = {"megatron.sh": "megatron", "llamafactory.yaml": "llamafactory", "lightning.yaml": "lightning"}
    frameworks |= {"torchtitan.toml": "torchtitan", "deepspeed.json": "deepspeed", "verl.sh": "verl"}
    for name, words in ((config, option), (other_config, other_option)):
        assert term in {rule.term.slug for rule in rules[frameworks[name]][words]}
