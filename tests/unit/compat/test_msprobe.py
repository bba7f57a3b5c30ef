"""msProbe's config.json becomes a Plan, its guide's script records, and what is not supported is refused by name."""

import json
import subprocess

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import trueline
from trueline.compat import msprobe
from trueline.compat.msprobe import PrecisionDebugger
from trueline.compat.msprobe.config import read_config, settings_of
from trueline.compat.msprobe.name_globs import plan_of
from trueline.schema.errors import InputError, RunExistsError
from trueline.schema.plan import Plan

GUIDE = {
    "task": "statistics",
    "dump_path": "/home/data_dump",
    "rank": [],
    "step": [],
    "level": "L1",
    "async_dump": False,
    "extra_info": True,
    "statistics": {"scope": [], "list": [], "tensor_list": [], "data_mode": ["all"], "summary_mode": "statistics"},
}
"""The config.json of msProbe's guide."""

INSTALLED = {
    **{name: GUIDE[name] for name in ("task", "rank", "step", "level", "extra_info", "async_dump", "statistics")},
    "dump_path": "./dump_path",
    "tensor": {"scope": [], "list": [], "data_mode": ["all"]},
    "acc_check": {"white_list": [], "black_list": [], "error_data_path": "./"},
}
"""The fields of the config.json that msProbe installs."""

MODULES = {
    "conv1": "Conv2d",
    "layers": "ModuleList",
    "layers.0": "Block",
    "layers.0.mlp": "MLP",
    "layers.0.mlp.up": "Linear",
    "layers.0.odd[1]": "Linear",
    "fc2": "Linear",
}


def plan(modules=MODULES, **fields):
    """The Plan of the guide's config with some fields changed; those of the section with ``section``."""
    section = fields.pop("section", {})
    config = {**GUIDE, **fields}
    task = config["task"]
    config[task] = {**config.get(task, {}), **section}
    return Plan.load(plan_of(settings_of(config), modules))


def test_the_config_of_the_guide_and_the_installed_one_mean_statistics_of_calls_at_every_step_on_every_rank():
    for config in (GUIDE, INSTALLED, {}):
        settings = settings_of(config)
        assert (settings.preset, settings.depth, settings.ranks, settings.steps) == ("ops", "stats", None, None)
        assert settings.phases == ("fwd", "bwd", "opt", "comm")
        assert settings.stacks
    assert settings_of({}).dump_path == "./dump_path"


@pytest.mark.parametrize(("level", "preset"), [("L0", "modules"), ("L1", "ops"), ("mix", "mix")])
def test_a_level_is_a_preset(level, preset):
    assert plan(level=level).preset == preset


@pytest.mark.parametrize(
    ("task", "summary", "depth"),
    [
        ("statistics", "statistics", "stats"),
        ("statistics", "md5", "fingerprint"),
        ("statistics", "xor", "fingerprint"),
        ("tensor", "statistics", "tensor"),
        ("tensor", "md5", "tensor"),
    ],
)
def test_task_and_summary_mode_are_a_depth(task, summary, depth):
    assert plan(task=task, section={"summary_mode": summary}).depth == depth


def test_structure_is_of_modules_and_calls_unless_a_level_is_given():
    bare = {"task": "structure", "dump_path": "d"}
    assert (settings_of(bare).preset, settings_of(bare).depth) == ("mix", "structure")
    assert settings_of({**bare, "level": "L0"}).preset == "modules"


@pytest.mark.parametrize(
    ("mode", "phases"),
    [
        (["all"], ("fwd", "bwd", "param", "grad", "opt", "comm")),
        (["forward"], ("fwd", "param", "opt", "comm")),
        (["backward"], ("bwd", "grad")),
        (["forward", "backward"], ("fwd", "bwd", "param", "grad", "opt", "comm")),
        (["input", "output"], ("fwd", "bwd", "param", "grad", "opt", "comm")),
        (["forward", "input", "output"], ("fwd", "param", "opt", "comm")),
    ],
)
def test_data_modes_choose_phases(mode, phases):
    assert plan(level="mix", section={"data_mode": mode}).phases == phases


def test_ranks_and_steps_are_numbers_and_ranges_with_both_ends():
    settings = settings_of({**GUIDE, "rank": [1, "4-6"], "step": [0, "2-3", 3]})
    assert settings.ranks == {1, 4, 5, 6}
    assert settings.steps == {0, 2, 3}
    assert [step for step in range(6) if settings.wants(step)] == [0, 2, 3]
    assert settings_of(GUIDE).wants(10**9)


def test_arguments_take_the_place_of_fields():
    settings = settings_of(GUIDE, task="tensor", dump_path="elsewhere", level="mix", step=[7])
    assert (settings.depth, settings.dump_path, settings.preset, settings.steps) == ("tensor", "elsewhere", "mix", {7})


def test_without_extra_info_no_stack_is_kept():
    assert not plan(extra_info=False).stacks


@pytest.mark.parametrize("fields", [{"async_dump": True}, {"precision": "high"}, {"custom_op_namespaces": ["_C_x"]}])
def test_fields_that_change_nothing_here_are_taken(fields):
    assert plan(**fields) == plan()


def test_the_risk_level_that_leaves_nothing_out_is_taken():
    assert plan(risk_level="ALL") == plan()


@pytest.mark.parametrize(
    ("level", "entry", "names"),
    [
        ("L1", "relu", ("*relu*",)),
        ("L1", "Functional.relu", ("*relu*",)),
        ("L1", "__add__", ("*add*",)),
        ("L1", "odd[", ("*odd[[]*",)),
        ("L0", "mlp", ("layers.0.mlp", "layers.0.mlp.up")),
        ("L0", "Conv2d", ("conv1",)),
        ("L0", "Module.layers.0.mlp.MLP.forward.0", ("layers.0.mlp",)),
        ("L0", "Module.module.conv1.Conv2d.forward.0", ("conv1",)),
        ("L0", "odd[1]", ("layers.0.odd[[]1]",)),
        ("mix", "Module.layers.0.mlp.MLP.forward.0", ("layers.0.mlp", "layers.0.mlp.*")),
        ("mix", "conv1", ("conv1", "conv1.*", "*conv1*")),
    ],
)
def test_a_listed_name_is_a_glob_over_modules_and_calls(level, entry, names):
    assert plan(level=level, section={"list": [entry]}).names == names


@pytest.mark.parametrize(
    ("entries", "phases"),
    [
        (["Module.conv1.Conv2d.forward.0"], ("fwd", "param")),
        (["Module.conv1.Conv2d.backward.0"], ("bwd", "grad")),
        (["Module.conv1.Conv2d.forward.0", "Module.fc2.Linear.backward.0"], ("fwd", "bwd", "param", "grad")),
        (["Module.conv1.Conv2d.forward.0", "fc2"], ("fwd", "bwd", "param", "grad")),
    ],
)
def test_listed_names_that_all_say_one_direction_choose_its_phases(entries, phases):
    assert plan(level="L0", section={"list": entries}).phases == phases


def test_a_scope_is_what_runs_forward_between_two_modules():
    ends = ["Module.conv1.Conv2d.forward.0", "Module.layers.0.odd[1].Linear.forward.0"]
    found = plan(level="mix", section={"scope": ends})
    assert found.between == ("conv1", "layers.0.odd[[]1]")
    assert "bwd" not in found.phases
    assert "fwd" in found.phases


REFUSED = {
    "unknown field": (
        {"levle": "L0"},
        r"Field 'levle' is unknown. Did you mean 'level'\? Valid are acc_check, async_dump, ",
    ),
    "unknown in section": ({"section": {"lst": []}}, r"Field 'statistics.lst' is unknown. Did you mean"),
    "task": ({"task": "nan_check"}, r"Field 'task' is 'nan_check', .* Valid are statistics, tensor, structure"),
    "level L2": ({"level": "L2"}, r"Field 'level' is 'L2', .* Valid are L0, L1, mix"),
    "level debug": ({"level": "debug"}, r"Field 'level' is 'debug'"),
    "summary": (
        {"section": {"summary_mode": "sha"}},
        r"Field 'statistics.summary_mode' is 'sha'.* statistics, md5, xor",
    ),
    "data mode": ({"section": {"data_mode": ["sideways"]}}, r"Field 'statistics.data_mode' is 'sideways'"),
    "inputs alone": ({"section": {"data_mode": ["input"]}}, r"\['input'\], .* Valid are all, forward, backward"),
    "all and more": ({"section": {"data_mode": ["all", "forward"]}}, r"'all' stands alone"),
    "dump_enable": ({"dump_enable": True}, r"Field 'dump_enable' is not supported. Leave it out, and call start"),
    "load": ({"load": {"path": "x"}}, r"Field 'load' is not supported"),
    "tensor_list": ({"section": {"tensor_list": ["relu"]}}, r"Field 'statistics.tensor_list' is not supported"),
    "slice": ({"section": {"slice": [{"dim": 0}]}}, r"Field 'statistics.slice' is not supported"),
    "bench_path": ({"task": "tensor", "section": {"bench_path": "x"}}, r"Field 'tensor.bench_path' is not supported"),
    "risk level": ({"risk_level": "CORE"}, r"Field 'risk_level' is 'CORE'"),
    "rank text": ({"rank": ["2-1"]}, r"Field 'rank' holds '2-1'"),
    "rank true": ({"rank": [True]}, r"Field 'rank' holds True"),
    "rank negative": ({"rank": [-1]}, r"Field 'rank' holds -1"),
    "step no list": ({"step": 3}, r"Field 'step' is 3. Expected a list"),
    "path": ({"dump_path": 3}, r"Field 'dump_path' is 3"),
    "extra_info": ({"extra_info": "yes"}, r"Field 'extra_info' is 'yes'. Expected true or false"),
    "list text": ({"section": {"list": "relu"}}, r"Field 'statistics.list' is 'relu'. Expected a list of texts"),
    "list number": ({"task": "tensor", "section": {"list": 3}}, r"Field 'tensor.list' is 3. Expected a list of texts"),
    "one of calls": ({"section": {"list": ["Torch.relu.3.backward"]}}, r"one call among several.* Write 'relu'"),
    "regex": ({"section": {"list": ["name-regex(a.+)"]}}, r"which is of MindSpore"),
    "module at L1": ({"section": {"list": ["Module.conv1.Conv2d.forward.0"]}}, r"is a module, .* L0 or mix"),
    "later call": (
        {"level": "L0", "section": {"list": ["Module.conv1.Conv2d.forward.2"]}},
        r"End the name in '.forward.0'",
    ),
    "no such module": ({"level": "L0", "section": {"list": ["convv"]}}, r"none of 7 modules. Did you mean 'conv1'\?"),
    "no such whole name": (
        {"level": "mix", "section": {"list": ["Module.conv2.Conv2d.forward.0"]}},
        r"The model has no module .*Did you mean 'Module.conv1.Conv2d.forward.0'\?",
    ),
    "one end": ({"section": {"scope": ["Module.conv1.Conv2d.forward.0"]}}, r"'statistics.scope' has 1 names"),
    "scope of calls": ({"section": {"scope": ["Tensor.add.0.forward"] * 2}}, r"'scope' holds 'Tensor.add.0.forward'"),
    "scope backward": (
        {"level": "L0", "section": {"scope": ["Module.conv1.Conv2d.forward.0", "Module.fc2.Linear.backward.0"]}},
        r"'scope' holds 'Module.fc2.Linear.backward.0', which is not supported",
    ),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_supported_is_refused_by_name(fields, message):
    with pytest.raises(InputError, match=message):
        plan(**fields)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "There is no config file"), ("{", "cannot be parsed"), ("[]", "holds a list, expected an object")],
)
def test_a_config_that_is_none_is_refused(tmp_path, content, message):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        read_config(str(path))


@pytest.mark.parametrize("name", ["module_dump", "random_save"])
def test_what_else_msprobe_has_is_refused_by_name(name):
    with pytest.raises(InputError, match=f"'{name}' is not supported"):
        getattr(msprobe, name)


def test_seed_all_takes_the_place_of_msprobes():
    report = msprobe.seed_all(seed=9, mode=False, rm_dropout=False)
    assert report.seed == 9
    with pytest.raises(InputError, match="is_enhanced"):
        msprobe.seed_all(is_enhanced=True)
    with pytest.raises(InputError, match="mode is 'yes'"):
        msprobe.seed_all(1, "yes")


SCRIPT = """
import torch
import torch.nn as nn
import torch.nn.functional as F

from trueline.compat.msprobe import PrecisionDebugger, seed_all

seed_all()
debugger = PrecisionDebugger(config_path="./config.json")

class ModuleOP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features=8, out_features=4)

    def forward(self, x):
        x1 = self.linear(x)
        r1 = F.relu(x1)
        return r1

if __name__ == "__main__":
    model = ModuleOP()
    debugger.start(model=model)
    x = torch.randn(10, 8)
    out = model(x)
    loss = out.sum()
    loss.backward()
    debugger.stop()
    debugger.step()
"""
"""The first example of msProbe's guide, with one import changed."""


def test_the_script_of_the_guide_records_with_one_import_changed(tmp_path, python):
    (tmp_path / "config.json").write_text(json.dumps({**GUIDE, "dump_path": str(tmp_path / "dump")}))
    (tmp_path / "train.py").write_text(SCRIPT)
    subprocess.run([python, "train.py"], cwd=tmp_path, check=True, timeout=100)
    run = trueline.open_run(tmp_path / "dump")
    torch.manual_seed(1234)
    linear, x = nn.Linear(8, 4), torch.randn(10, 8)
    before = x.double().numpy() @ linear.weight.detach().double().numpy().T + linear.bias.detach().double().numpy()
    rows = run.records(names=["*relu"], columns=["step", "phase", "slot", "sum"]).to_pylist()
    sums = {(row["step"], row["phase"], row["slot"]): row["sum"] for row in rows}
    assert sums == {
        (0, "fwd", "in0"): pytest.approx(before.sum(), rel=1e-5),
        (0, "fwd", "out0"): pytest.approx(np.maximum(before, 0).sum(), rel=1e-5),
        (0, "bwd", "out0"): 40.0,
        (0, "bwd", "in0"): float((before > 0).sum()),
    }
    assert run.manifest.command == ["train.py"]
    assert run.problems == []


@pytest.fixture
def debug(tmp_path):
    """Makes the one PrecisionDebugger of the process from changed fields, and unmakes it."""

    def make(**fields):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**GUIDE, "dump_path": str(tmp_path / "dump"), **fields}))
        return PrecisionDebugger(config_path=str(path))

    yield make
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance.close()
    PrecisionDebugger._instance = None


def recorded(debugger, *columns):
    """What was recorded, as tuples of columns, once the Run is closed."""
    debugger.close()
    run = trueline.open_run(debugger.settings.dump_path)
    assert run.problems == []
    return [tuple(row.values()) for row in run.records(columns=list(columns)).to_pylist()]


def test_calls_belong_to_their_step_and_only_those_between_start_and_stop_are_recorded(debug):
    debugger, model, x = debug(), nn.ReLU(), torch.ones(2)
    for _ in range(2):
        debugger.start(model)
        model(x)
        debugger.stop()
        torch.sigmoid(x)
        debugger.start(model)
        torch.tanh(x)
        debugger.stop()
        debugger.step()
    calls = ["ReLU.relu", "ReLU.relu", "tanh", "tanh"]
    assert recorded(debugger, "step", "name") == [(step, name) for step in range(2) for name in calls]


def test_only_chosen_steps_are_recorded_and_the_run_is_sealed_after_the_last(debug, tmp_path):
    debugger, model = debug(step=["3-4", 6]), nn.ReLU()
    debugger.set_init_step(2)
    for _ in range(5):
        debugger.start(model)
        model(torch.ones(2))
        debugger.stop()
        debugger.step()
    assert list(trueline.open_run(tmp_path / "dump").record_steps) == [3, 4, 6]
    assert list((tmp_path / "dump" / "journal").iterdir()) == []
    debugger.start(model)
    debugger.step()
    assert {step for (step,) in recorded(debugger, "step")} == {3, 4, 6}


def test_without_a_model_calls_are_recorded_from_inside_a_forward_pass_through_the_class(debug):
    debugger = debug()

    class Two(nn.Module):
        def forward(self, x):
            PrecisionDebugger.start()
            x = torch.tanh(x)
            PrecisionDebugger.stop()
            return torch.sigmoid(x)

    Two()(torch.ones(2))
    PrecisionDebugger.step()
    assert recorded(debugger, "name", "slot") == [("tanh", "in0"), ("tanh", "out0")]


def test_a_backward_pass_after_stop_still_gives_the_gradients_of_what_was_recorded(debug):
    debugger, x = debug(), torch.ones(3, requires_grad=True)
    debugger.start()
    y = torch.tanh(x)
    debugger.stop()
    (2 * y).sum().backward()
    debugger.step()
    gradient = 2 * 3 * (1 - np.tanh(1.0) ** 2)
    assert recorded(debugger, "phase", "name", "slot", "sum") == [
        ("fwd", "tanh", "in0", 3.0),
        ("fwd", "tanh", "out0", pytest.approx(3 * np.tanh(1.0), rel=1e-6)),
        ("bwd", "tanh", "out0", 6.0),
        ("bwd", "tanh", "in0", pytest.approx(gradient, rel=1e-6)),
    ]


@pytest.mark.parametrize("updates", [True, False], ids=["with an update", "without"])
def test_modules_are_recorded_with_parameters_and_gradients_as_the_update_finds_them(debug, updates):
    debugger, model = debug(level="L0"), nn.Sequential(nn.Linear(2, 1, bias=False))
    weight = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    debugger.start(model)
    model(torch.ones(1, 2)).sum().backward()
    if updates:
        optimizer.step()
    debugger.stop()
    debugger.step()
    rows = recorded(debugger, "phase", "name", "kind", "sum")
    assert ("param", "0.weight", "param", pytest.approx(weight.sum().item())) in rows
    assert ("grad", "0.weight", "param", 2.0) in rows
    assert ("fwd", "0", "module", 2.0) in rows
    assert {kind for _, _, kind, _ in rows} == {"module", "param"}


def test_backward_data_alone_has_the_gradients_of_modules(debug):
    section = {**GUIDE["statistics"], "data_mode": ["backward"]}
    debugger, model = debug(level="L0", statistics=section), nn.Sequential(nn.Linear(2, 1, bias=False))
    debugger.start(model)
    model(torch.ones(1, 2)).sum().backward()
    debugger.stop()
    debugger.step()
    rows = recorded(debugger, "phase", "name", "slot", "sum")
    assert ("bwd", "0", "out0", 1.0) in rows
    assert {phase for phase, *_ in rows} == {"bwd", "grad"}


def test_several_models_are_recorded_under_their_place_in_the_list(debug):
    debugger, models = debug(level="L0"), [nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh())]
    for _ in range(2):
        debugger.start(models)
        for model in models:
            model(torch.ones(2))
        debugger.stop()
        debugger.step()
    assert set(recorded(debugger, "step", "name")) == {
        (step, name) for step in range(2) for name in ("0", "0.0", "1", "1.0")
    }


def test_tensors_are_stored_as_they_are(debug):
    debugger, x = debug(task="tensor"), torch.randn(3, 4)
    debugger.start()
    torch.tanh(x)
    debugger.stop()
    debugger.step()
    debugger.close()
    run = trueline.open_run(debugger.settings.dump_path)
    stored = {row["slot"]: run.tensor(row).data for row in run.records().to_pylist()}
    np.testing.assert_array_equal(stored["in0"], x.numpy())
    np.testing.assert_array_equal(stored["out0"], torch.tanh(x).numpy())


def test_training_is_bitwise_the_same_with_a_debugger(debug):
    def train(debugger):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            if debugger is not None:
                debugger.start(model)
            optimizer.zero_grad()
            functional.mse_loss(model(torch.randn(5, 4)), torch.randn(5, 2)).backward()
            optimizer.step()
            if debugger is not None:
                debugger.stop()
                debugger.step()
        return [param.detach().clone() for param in model.parameters()]

    bare = train(None)
    assert all(torch.equal(*pair) for pair in zip(bare, train(debug(level="mix", task="tensor")), strict=True))


def test_there_is_one_debugger_a_process_and_the_first_config_holds(debug):
    first = debug(level="L0")
    assert debug(level="mix") is first
    assert first.settings.level == "L0"


def test_a_rank_that_is_not_asked_for_makes_no_run(debug, tmp_path):
    debugger = debug(rank=[1])
    debugger.start()
    debugger.step()
    debugger.start(rank_id=0)
    assert not (tmp_path / "dump").exists()


def test_a_run_that_is_there_is_left_alone(debug, tmp_path):
    debugger = debug()
    debugger.start()
    debugger.step()
    debugger.close()
    PrecisionDebugger._instance = None
    with pytest.raises(RunExistsError, match="already holds a Run"):
        debug().start()


WRONG = {
    "no model": (lambda d: d.start(), r"given None as the model. At level L0 pass the torch.nn.Module"),
    "no module": (lambda d: d.start(model="x"), r"given 'x' as the model"),
    "token_range": (lambda d: d.start(nn.ReLU(), token_range=[1, 3]), r"token_range is not supported"),
    "first step": (lambda d: d.set_init_step(-1), r"The first step is -1"),
    "save": (lambda d: d.save(torch.ones(1), "x"), r"save\(\) is not supported. Use watch.save"),
    "custom": (lambda d: d.register_custom_api(torch, "matmul"), r"of 'matmul' is not supported. Leave it out"),
    "restored": (lambda d: d.restore_custom_api(torch, "matmul"), r"of 'matmul' is not supported"),
    "another model": (lambda d: (d.start(nn.ReLU()), d.start(nn.ReLU())), r"another model than before"),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG)
def test_calls_that_are_not_supported_say_so(debug, call, message):
    debugger = debug(level="L0")
    with pytest.raises(InputError, match=message):
        call(debugger)


def test_before_there_is_a_debugger_its_methods_say_so():
    with pytest.raises(InputError, match="There is no PrecisionDebugger yet"):
        PrecisionDebugger.stop()
