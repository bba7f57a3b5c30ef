"""The laws of torch's optimizers: every healthy setting is within what rounding may explain, faults are not."""

import numpy as np
import pytest
import torch
from tests.optimizer_settings import Setting, settings, train

from trueline.capture.probes.around_update.update_slices import PREDICTED_CLASSES
from trueline.judge.series.update_rules import PARAM, TOLERANCE, UPDATE_RULES

FLOAT32 = Setting("AdamW", "foreach", torch.float32)


def errors(setting, **more):
    """The worst error of each name over a short training, in the units of TOLERANCE."""
    found = {}
    for _, judged in train(setting, numel=256, **more):
        assert judged.counts_right
        for name in judged.excess:
            found[name] = max(found.get(name, 0.0), judged.worst_error(name))
    return found


@pytest.mark.parametrize("setting", [*settings()], ids=lambda one: f"{one.rule}-{one.form}-{one.dtype}")
def test_rounding_explains_every_form_of_every_optimizer(setting):
    worst = max(errors(setting, steps=12).values())
    assert worst > TOLERANCE if setting.broken else 0 < worst < TOLERANCE


@pytest.mark.parametrize("rule", ["AdamW", "NAdam", "RMSprop", "Adagrad"])
def test_gradients_near_the_least_number_lose_digits_in_each_product(rule):
    """As those of the bias of a token that hardly ever comes, in a large vocabulary."""
    worst = errors(Setting(rule, "foreach", torch.float32), steps=6, shrinks=1e-36)
    assert 0 < max(worst.values()) < TOLERANCE


def test_each_law_is_of_a_class_that_is_recognised():
    assert set(UPDATE_RULES) == set(PREDICTED_CLASSES)


def tampered(setting, change):
    """The worst errors where ``change(param, state, held)`` is made to each update from the sixth on."""

    def tamper(step, optimizer, held):
        if step > 5:
            (param,) = optimizer.param_groups[0]["params"]
            change(param, optimizer.state[param], held)

    return errors(setting, steps=10, tamper=tamper)


def test_a_rate_off_by_a_thousandth_shows_in_the_parameter_alone():
    found = tampered(FLOAT32, lambda param, state, held: param.add_(1e-3 * (param - held["param"])))
    assert found.pop(PARAM) > 10 * TOLERANCE
    assert max(found.values()) < TOLERANCE


def test_a_first_moment_that_stays_shows_in_itself_alone():
    def stays(param, state, held):
        declared = state["exp_avg"].clone()
        state["exp_avg"].copy_(held["exp_avg"])
        param.add_((param - held["param"] * (1 - 1e-4)) * (state["exp_avg"] / declared - 1))  # the update is made of it

    found = tampered(FLOAT32, stays)
    assert found["exp_avg"] > 1000 * TOLERANCE
    assert found["exp_avg_sq"] < TOLERANCE


def test_what_is_not_finite_tells_nothing():
    found = tampered(FLOAT32, lambda param, state, held: param.fill_(float("nan")))
    assert found[PARAM] < TOLERANCE


def test_a_wrong_value_is_seen_at_the_one_element_that_has_it():
    def one(param, state, held):
        param[17] += 1e-3

    def tamper(step, optimizer, held):
        if step == 5:
            one(optimizer.param_groups[0]["params"][0], None, held)

    (last,) = [judged for step, judged in train(FLOAT32, steps=6, numel=64, tamper=tamper) if step == 5]
    assert np.flatnonzero(last.excess[PARAM] > 1).tolist() == [17]
