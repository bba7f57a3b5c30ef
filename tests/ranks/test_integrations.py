"""Callbacks of frameworks watch every rank, change nothing, and close the Run: two real ranks, under torchrun or
started by Ray, which train once without and once with the callback.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

HEAD = """
import os, sys, torch
out = sys.argv[1]

def rows():
    data = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(data)

def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

def total(model):
    return [param.detach().double().sum().item().hex() for param in model.parameters()]
"""

SCRIPTS = {
    "transformers": """
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from trueline.integrations.transformers import TruelineCallback

def train(watched):
    torch.manual_seed(0)
    sizes = dict(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
    tokens = torch.randint(0, 64, (64, 8), generator=torch.Generator().manual_seed(1))
    given = dict(report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, per_device_train_batch_size=4)
    args = TrainingArguments(out + "-hf", num_train_epochs=2, **given)
    callbacks = [TruelineCallback(out)] if watched else []
    # an optimizer that is made before the callback
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    data = [{"input_ids": one, "labels": one} for one in tokens]
    Trainer(model, args, train_dataset=data, callbacks=callbacks, optimizers=(optimizer, schedule)).train()
    return total(model)
""",
    "lightning": """
import lightning.pytorch as pl
from trueline.integrations.lightning import TruelineCallback

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()
    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)

def train(watched):
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    callbacks = [TruelineCallback(out)] if watched else []
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", callbacks=callbacks, **quiet)
    module = Module()
    torch.manual_seed(0)
    trainer.fit(module, torch.utils.data.DataLoader(rows(), batch_size=4, shuffle=True))
    return total(module)
""",
    "accelerate": """
from accelerate import Accelerator
from trueline.integrations.accelerate import TruelineTracker

def train(watched):
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, log_with=[TruelineTracker(out)] if watched else None)
    loader = torch.utils.data.DataLoader(rows(), batch_size=4, shuffle=True)
    model = net()
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2), loader)
    accelerator.init_trackers("trueline")
    for epoch in range(2):
        for (x,) in loader:
            loss = model(x).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.log({"loss": loss.item()})
    if watched:  # it destroys the process group
        accelerator.end_training()
    return total(model)
""",
    "deepspeed": """
import deepspeed
from trueline.integrations.deepspeed import watched as watching
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles that

def train(watched):
    from contextlib import nullcontext
    model = net()
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    config["zero_allow_untested_optimizer"] = True
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    engine, _, loader, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, training_data=rows())
    with watching(engine, out) if watched else nullcontext():
        for epoch in range(2):
            loader.data_sampler.set_epoch(epoch)
            for (x,) in loader:
                engine.backward(engine(x.bfloat16()).square().mean())
                engine.step()
    return total(engine.module)
""",
    "ray": """
import ray
from pathlib import Path
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from trueline.integrations.ray import watched as watching

def loop():
    torch.manual_seed(0)
    model = prepare_model(net())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loader = prepare_data_loader(torch.utils.data.DataLoader(rows(), batch_size=4, shuffle=True))
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for (x,) in loader:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return total(model)

loops = {"False": loop, "True": watching(loop, out)}

def both(config):  # workers take seconds to start
    for name, function in loops.items():
        Path(out + name + str(ray.train.get_context().get_world_rank())).write_text(str(function()))

def train(watched):
    if not watched:
        run, two = RunConfig(storage_path=out + "-ray"), ScalingConfig(num_workers=2)
        TorchTrainer(both, run_config=run, scaling_config=two).fit()
    return [Path(out + str(watched) + rank).read_text() for rank in "01"]

if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
""",
}

TAIL = """
if __name__ == "__main__":
    plain, watched = train(False), train(True)
    from trueline.capture.watch import _living
    assert plain == watched, "watching changed the weights"
    main_only = "Accelerator" in globals() and os.environ["RANK"] != "0"  # the others close at exit
    assert main_only or not _living, "the end was not seen"
"""


ADAPTERS = {"deepspeed": "deepspeed"}


@pytest.mark.in_turn
@pytest.mark.timeout(600)  # Ray starts its own processes twice: 50 s on a quiet machine
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_callback_watches_every_rank_and_changes_nothing(tmp_path, python, name):
    import trueline

    needed = {"transformers": "accelerate"}.get(name, name)
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    script = tmp_path / "train.py"
    script.write_text(HEAD + SCRIPTS[name] + TAIL, encoding="utf-8")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable] if name == "ray" else [python, *torchrun]
    env = os.environ | {
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1",
        "DS_ACCELERATOR": "cpu",
        "PYTHON_EXEC": python,
    }
    done = subprocess.run(
        [*command, str(script), str(tmp_path / "run")], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    run = trueline.open_run(tmp_path / "run")
    assert (run.manifest.adapter, run.ranks, run.unclosed) == (ADAPTERS.get(name, "ddp"), [0, 1], [])
    assert run.steps.tolist() == list(range(16))
    for column in ("loss", "epoch"):
        assert run.pivot(column)[1].all(), column
    sampled = run.pivot("grad_norm")[1]  # a slow machine samples fewer steps, all ranks the same ones
    assert sampled[0].all()
    assert (sampled.any(axis=1) == sampled.all(axis=1)).all()
    assert trueline.check(run).exit_code == 0
