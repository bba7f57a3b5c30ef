"""Both versions of msProbe's monitor configuration become a Plan that records, and what is not measured is refused."""

import json

import pytest
import torch
from torch import nn

import trueline
from trueline.compat.msprobe import TrainerMon
from trueline.schema.errors import InputError
from trueline.schema.plan import PHASES

V1 = {
    "targets": {"0": {"input": "tuple[1]:0"}},
    "module_ranks": [0],
    "start_step": 2,
    "step_interval": 3,
    "collect_times": 2,
    "xy_distribution": True,
    "backward_only": False,
    "forward_only": True,
    "wg_distribution": True,
    "mv_distribution": False,
    "alert": {"rules": [], "dump": False},
    "cc_distribution": {"enable": False},
    "ops": ["norm", "nans"],
    "format": "csv",
    "ndigits": 12,
}
V2 = {
    "framework": "pytorch",
    "step_interval": 2,
    "monitors": {
        "module": {"enabled": False},
        "weight_grad": {"enabled": True, "ops": ["max"]},
        "optimizer": {"enabled": True, "mv_distribution": True},
        "param": {"enabled": True, "param_distribution": False},
    },
}


@pytest.fixture
def monitor(tmp_path, monkeypatch):
    """A TrainerMon with this configuration, whose Run is the folder ``run``."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "run"))

    def make(config):
        (tmp_path / "monitor.json").write_text(json.dumps(config))
        return TrainerMon(str(tmp_path / "monitor.json"), params_have_main_grad=False)

    return make


def test_both_versions_become_a_plan(monitor):
    plan = monitor(V1).plan
    assert (plan.preset, plan.every, plan.steps, plan.ranks) == ("monitor", 3, (2, 8), (0,))
    assert (plan.phases, plan.names) == (("fwd", "bwd", "grad"), ("0", "0.*"))
    assert monitor(V1 | {"wg_distribution": False}).plan.phases == ("fwd",)
    plan = monitor(V2).plan
    assert (plan.preset, plan.every, plan.steps, plan.ranks) == ("monitor", 2, (0, None), None)
    assert (plan.phases, plan.names) == (("bwd", "grad", "opt"), ("*",))
    everything = dict.fromkeys(("xy", "wg", "mv", "ur", "param"), True)
    config = {f"{name}_distribution": on for name, on in everything.items()} | {"cc_distribution": {"enable": True}}
    assert monitor(config).plan.phases == PHASES
    assert monitor(config).plan.every is None


def test_the_guides_script_leaves_a_run(monitor, tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    mon = monitor(V2)
    mon.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    for _ in range(5):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    mon.stop()
    run = trueline.open_run(str(tmp_path / "run"))
    assert run.record_steps.tolist() == [0, 2, 4]
    slots = {(row["phase"], row["slot"]) for row in run.records(names=["2.weight"]).to_pylist()}
    assert slots == {(phase, "grad") for phase in ("bwd", "grad")} | {
        ("opt", slot) for slot in ("update", "state.exp_avg", "state.exp_avg_sq")
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"mg_direction": True}, "'mg_direction' is not supported. .*momentum"),
        ({"l2_targets": {"linear_hook": ["0"]}}, "'l2_targets' is not supported"),
        ({"alert": {"rules": [{"rule_name": "AnomalyNan"}]}}, "'alert' is not supported. .*trueline check"),
        ({"cc_distribution": {"enable": True, "cc_log_only": True}}, "'cc_distribution.cc_log_only' is unknown"),
        ({"ops": ["id"]}, "'ops' has 'id', which is not measured"),
        ({"xy_distributions": True}, "'xy_distributions' is unknown. Did you mean 'xy_distribution'"),
        ({"step_interval": "2"}, "'step_interval' is '2'"),
        ({"xy_distribution": False, "wg_distribution": False}, "monitors nothing"),
        ({"monitors": {"attention": {"enabled": True}}}, "is unknown"),
    ],
)
def test_what_is_not_measured_is_refused_by_name(monitor, change, named):
    with pytest.raises(InputError, match=named):
        monitor(V1 | change)


def test_other_methods_and_several_models_are_refused(monitor):
    with pytest.raises(InputError, match=r"TrainerMon\.adhoc_check is not supported"):
        monitor(V1).adhoc_check()
    with pytest.raises(InputError, match="2 models"):
        monitor(V1).set_monitor([nn.Linear(1, 1), nn.Linear(1, 1)], None)
