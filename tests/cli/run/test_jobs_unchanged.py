"""Jobs that touch what watching is built of: under `trueline run` they print and end as they do alone."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = """
import gc, io, copy, logging, os, pickle, sys, warnings, weakref
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps=4, model=model, optimizer=optimizer):
    for _ in range(steps):
        model(torch.randn(6, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
WEIGHTS = "\nprint([param.double().sum().item() for param in model.parameters()])"

JOBS = {
    "log-handlers-raise": """
def fail(*args): raise RuntimeError("a handler of the user's")
logging.getLogger("trueline").addFilter(fail)
if run := os.environ.get("TRUELINE_RUN"):
    open(run, "w").close()  # so that it cannot be watched, of which the log tells
train()
""",
    "parameters-swapped": """
torch.utils.swap_tensors(model[0].weight, nn.Parameter(model[0].weight.detach().clone()))
torch.__future__.set_swap_module_params_on_conversion(True)
for _ in range(14):
    train(1)
    model.double()
    model.float()
model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
""",
    "optimizers-without-hash": """
class SGD(torch.optim.SGD):
    def __eq__(self, other): return True
train(4, model, SGD(model.parameters(), lr=0.1))
""",
    "scripted-traced-exported-copied-saved": """
x = torch.randn(6, 8)
for step in range(3):
    train(1)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    loaded, twin = torch.load(saved, weights_only=False), copy.deepcopy(model)
    made = [torch.jit.script(each) for each in (model, loaded, twin)] + [loaded, twin]
    made += [torch.jit.trace(model, x), torch.export.export(model, (x,)).module(), torch.fx.symbolic_trace(model)]
    print([bool((each(x) == model(x)).all()) for each in made], torch.jit.trace(model, x).graph)
try:
    torch.jit.script(lambda *args: args)
except Exception as error:
    print(type(error))
train()
""",
    "hooks-take-themselves-off": """
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
calls, handles = [], {}
def once(name):
    def hook(*args):
        calls.append(name)
        handles.pop(name).remove()
    return hook
places = {
    "before": optimizer.register_step_pre_hook, "after": optimizer.register_step_post_hook,
    "before-any": register_optimizer_step_pre_hook, "after-any": register_optimizer_step_post_hook,
    "forward": model.register_forward_hook, "input": model.register_forward_pre_hook,
    "backward": model.register_full_backward_hook, "gradient": model[0].weight.register_hook,
    "accumulated": model[0].weight.register_post_accumulate_grad_hook,
}
def again(*args):
    global handle
    calls.append("again")
    handle.remove()
    handle = optimizer.register_step_pre_hook(again)
for step in range(14):
    for name, register in list(places.items())[(0 if step % 2 else 4):]:
        handles[name] = register(once(name))
    handle = None if step % 2 else optimizer.register_step_pre_hook(again)
    train(1)
    if handle is not None:
        handle.remove()
    print(calls, list(handles), len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks))
""",
    "users-exceptions": """
import signal
class Late(Exception): pass
def fail(*args): raise Late("mine")
places = [model.register_forward_hook, model.register_forward_pre_hook, model[0].weight.register_hook,
          optimizer.register_step_pre_hook, optimizer.register_step_post_hook]
for step in range(20):
    handle = places[step % 5](fail)
    try:
        train(1)
    except Late as error:
        print(step, repr(error))
    handle.remove()
    optimizer.zero_grad()
    train(1)
signal.signal(signal.SIGALRM, fail)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    while True:
        train(1)
except Late as error:
    print(repr(error))
torch.manual_seed(1)
for param in model.parameters():
    nn.init.normal_(param)
optimizer.zero_grad()
train()
""",
    "pickled-while-warnings-are-errors": """
warnings.simplefilter("error")
for _ in range(4):
    given = torch.randn(6, 8, requires_grad=True)
    output = model(given)
    for each in (given, output, output.square().mean()):
        pickle.dumps(each)
        torch.save(each, io.BytesIO())
    output.square().mean().backward()
    pickle.dumps([given, model, optimizer, *model.parameters()])
    optimizer.step()
    optimizer.zero_grad()
print(b"trueline" in pickle.dumps(model))
""",
    "models-that-are-dropped": """
left = []
for fold in range(10):
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for step in range(4):
        batch = torch.randn(6, 8)
        output = model(batch)
        output.square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        left += [weakref.ref(each) for each in (batch, output, model[0].weight.grad)]
        optimizer.zero_grad()
        del batch, output
    gc.collect()
    left += [weakref.ref(each) for each in (model, optimizer, schedule)]
    print(fold, [ref() is None for ref in left].count(False))
del optimizer, schedule
gc.collect()
print([ref() is None for ref in left].count(False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(2, model, optimizer)
last = model
del model, optimizer
model = nn.Linear(8, 4)
train(2, model, torch.optim.SGD(model.parameters(), lr=0.1))
del last
gc.collect()
print([ref() is None for ref in left].count(False))
""",
}
PLANS = {"parameters-swapped": ("workers", "mix"), "hooks-take-themselves-off": ("workers", "laws")}
PLANS |= {"pickled-while-warnings-are-errors": ("workers", "mix"), "users-exceptions": ("workers", "mix")}


def run(python: str, script: Path, *words: str) -> tuple[int, str]:
    """Exit status and output of a script, run by ``words``; what it leaves on standard error is shown where a test
    fails.
    """
    done = subprocess.run(
        [*words, python, str(script)], cwd=script.parent, env=os.environ, capture_output=True, text=True
    )
    sys.stderr.write(done.stderr)
    return done.returncode, done.stdout


def placed(job: str, folder: Path) -> Path:
    """The script of a job."""
    script = folder / "train.py"
    script.write_text(MODEL + JOBS[job] + WEIGHTS, encoding="utf-8")
    return script


@pytest.fixture(scope="module")
def alone(python, tmp_path_factory):
    """What a job does alone."""
    return functools.cache(lambda job: run(python, placed(job, tmp_path_factory.mktemp("alone"))))


@pytest.mark.in_turn
@pytest.mark.parametrize(("job", "plan"), [(job, plan) for job in JOBS for plan in PLANS.get(job, ("workers",))])
def test_a_job_ends_and_prints_as_it_does_alone(job, plan, tmp_path, python, warm_trueline, alone):
    assert alone(job)[0] == 0
    watched = (warm_trueline, "run", "--plan", plan, "--out", str(tmp_path / "run"), "--")
    assert run(python, placed(job, tmp_path), *watched) == alone(job)
    assert (tmp_path / "run").is_file() or (tmp_path / "run" / "manifest.json").exists(), "the job was not watched"
