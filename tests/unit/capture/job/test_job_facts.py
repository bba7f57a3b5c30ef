"""What a process knows of its job is collected without a change to the script, and without a secret."""

import argparse
import importlib.metadata
import json
import subprocess
import sys
import sysconfig
import types
import weakref
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import trueline
from trueline.capture.job import job_facts
from trueline.capture.job.configs_in_sight import configs_in_sight, locals_of_job
from trueline.capture.job.job_facts import collect_facts, modules_of, overflow, sources, tied_of
from trueline.schema.errors import InputError

CPU = torch.device("cpu")


@dataclass
class TrainConfig:
    lr: float = 0.1
    dtype: torch.dtype = torch.bfloat16


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
        self.blocks[2].weight = self.blocks[0].weight


def test_configurations_that_functions_hold_are_seen():
    args = argparse.Namespace(lr=1e-3, layers=2)
    config = TrainConfig()
    cfg = {"optim": {"lr": 0.5}, "skip": nn.Linear(1, 1)}
    found = configs_in_sight(nn.Linear(1, 1))
    assert found["args"] == vars(args)
    assert found["config"] == {"lr": config.lr, "dtype": "torch.bfloat16"}
    assert found["cfg"] == {"optim": {"lr": 0.5}, "skip": type(cfg["skip"]).__name__}


def test_the_model_has_its_own_configuration():
    model = nn.Linear(1, 1)
    model.config = TrainConfig(lr=0.25)
    assert {"lr": 0.25, "dtype": "torch.bfloat16"} in configs_in_sight(model).values()


class DeepSpeedConfig:
    """As DeepSpeed 0.19.8 has it: what was given is in ``_param_dict``."""

    def __init__(self, options):
        self._param_dict, self.train_batch_size = options, 99


class DeepSpeedEngine(nn.Module):
    def __init__(self, options):
        super().__init__()
        self._config = DeepSpeedConfig(options)


DEEPSPEED = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}


def test_what_an_engine_of_deepspeed_and_megatron_hold_is_seen(monkeypatch):
    held = types.ModuleType("megatron.training.global_vars")
    held._GLOBAL_ARGS = argparse.Namespace(lr=1e-4, micro_batch_size=4)
    monkeypatch.setitem(sys.modules, held.__name__, held)
    found = configs_in_sight(DeepSpeedEngine(DEEPSPEED))
    assert found["deepspeed"] == DEEPSPEED
    assert found["megatron arguments"] == {"lr": 1e-4, "micro_batch_size": 4}


@pytest.mark.parametrize("made", [DeepSpeedConfig, DeepSpeedEngine, dict])
def test_objects_in_memory_are_compared(made):
    """DeepSpeed's, with Megatron's arguments as they come from ``get_args()``."""
    args = argparse.Namespace(micro_batch_size=4, clip_grad=0.5, lr=1e-4, train_iters=10, seq_length=64, bf16=True)
    found = trueline.diff(made(DEEPSPEED), args)
    names = {each.name: (each.run, each.ref) for each in found.differences}
    assert names["clip-norm"] == ("1", "0.5")
    assert "micro-batch" not in names
    assert trueline.diff(made(DEEPSPEED), made(dict(DEEPSPEED))).differences == ()


def test_an_object_without_options_is_refused():
    with pytest.raises(InputError, match="diff was given Linear, which holds no options"):
        trueline.diff(nn.Linear(1, 1), {"lr": 0.1})


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="f_locals is no copy there (PEP 667)")
def test_looking_keeps_no_tensor_alive():
    def look():
        held = torch.zeros(3)
        configs_in_sight(nn.Linear(1, 1))
        seen = weakref.ref(held)
        del held
        return seen()

    assert look() is None


def test_repeated_layers_are_counted_together_and_tied_names_known():
    found = {(each.name, each.kind): each.count for each in modules_of(Tied())}
    assert found["blocks.*", "Linear"] == 3
    assert tied_of(Tied()) == [["blocks.0.weight", "blocks.2.weight"]]


def test_a_compiled_model_has_modules():
    assert modules_of(torch.compile(Tied(), backend="eager"))


def test_the_commit_of_the_script_and_what_was_changed_since(tmp_path):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    script = tmp_path / "train.py"
    script.write_text("a = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    clean = sources(script, [])["script"]
    assert len(clean.commit) == 40
    assert clean.dirty == ""
    job_facts._state.cache_clear()
    script.write_text("a = 2\n")
    changed = sources(script, [])["script"]
    assert changed.commit == clean.commit
    assert changed.dirty


def test_no_checkout_is_said(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    left_out = []
    assert "script" not in sources(script, left_out)
    assert any("script" in line for line in left_out)


def test_configurations_that_a_command_names_are_kept_without_secrets(tmp_path):
    config = tmp_path / "train.yaml"
    config.write_text("lr: 0.1\nhub_token: hf_abcdefghijklmnopqrstuvwxyz\n")
    facts = collect_facts(CPU, command=["train.py", f"--config={config}", "--api-key", "s3cr3tK3y9x8"])
    assert "lr: 0.1" in facts.files["train.yaml"]
    text = facts.model_dump_json()
    assert "hf_abc" not in text
    assert "s3cr3t" not in text


def test_an_overflow_is_tried():
    assert overflow(CPU) == "inf"


def test_a_run_has_the_facts_of_its_first_rank(tmp_path):
    args = argparse.Namespace(lr=0.1, seed=3)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    watch = trueline.watch(model, optimizer, out=tmp_path / "run")
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    watch.close()
    facts = json.loads((tmp_path / "run/env/rank-00000.json").read_text())["facts"]
    assert facts["packages"]["torch"] == torch.__version__
    assert vars(args) in facts["configs"].values()
    assert facts["modules"][0]["kind"] == "Linear"


def test_every_installed_package_has_the_name_and_version_of_its_metadata():
    described = [package.metadata for package in importlib.metadata.distributions()]
    names = {fields["Name"].lower().replace("_", "-") for fields in described}
    assert {name for name, _ in job_facts.packages()} == names
    assert {(fields["Name"].lower().replace("_", "-"), fields["Version"]) for fields in described} >= set(
        job_facts.packages()
    )


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="f_locals is no copy there (PEP 667)")
def test_a_look_that_ends_early_keeps_no_tensor_alive():
    def look():
        held = torch.zeros(3)
        next(locals_of_job())
        seen = weakref.ref(held)
        del held
        return seen()

    assert look() is None


def test_the_script_and_what_was_imported_from_beside_it_are_kept_without_secrets(tmp_path, monkeypatch):
    script, helper, installed = tmp_path / "train.py", tmp_path / "model.py", tmp_path / "site-packages" / "lib.py"
    of_python = tmp_path / "python" / "json.py"
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(of_python.parent))
    for path in (script, helper, installed, of_python, tmp_path / "unused.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'PASSWORD = "plain"\nx = "{path.stem}"\n')
    for path in (helper, installed, of_python):
        module = types.ModuleType(path.stem)
        module.__file__ = str(path).replace(tmp_path.name, f"{tmp_path.name}/.")  # as of a module found by "./"
        monkeypatch.setitem(sys.modules, f"of_the_job_{path.stem}", module)
    left_out = []
    assert job_facts.scripts(script, left_out) == {
        str(script): 'PASSWORD = <redacted>\nx = "train"',
        str(helper): 'PASSWORD = <redacted>\nx = "model"',
    }
    assert left_out == []
    monkeypatch.setattr(job_facts, "_MAX_SCRIPTS_BYTES", script.stat().st_size)
    assert set(job_facts.scripts(script, left_out)) == {str(script)}
    assert left_out == ["text of model.py: more than is kept of sources"]
    assert job_facts.scripts(None, left_out) == {}
    assert job_facts.scripts(installed, left_out) == {}
