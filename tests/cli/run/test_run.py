"""`trueline run`: attaches to scripts that know nothing of it, and stays out of their way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli import in_process
from tests.forked_scripts import run_unwatched, run_watched
from tests.synthetic_runs import write_run

import trueline
from trueline.cli.main import main
from trueline.cli.run_end import watched as told_as_watched
from trueline.demo.ranks import Ranks
from trueline.schema.errors import InputError
from trueline.schema.finding import WATCH_DEGRADED, Finding
from trueline.sinks.registry import require_ready

BIN = Path(sys.executable).parent
TRUELINE = str(BIN / "trueline")
TORCHRUN = str(BIN / "torchrun")

SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
kind = sys.argv[1]
alone = kind == "single"
if not alone:
    dist.init_process_group("gloo")
rank, world = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 40))
net = model
if kind in ("ddp", "raw"):
    net = nn.parallel.DistributedDataParallel(model)
elif kind == "fsdp2":
    from torch.distributed.fsdp import fully_shard
    net = fully_shard(model)
elif kind == "compiled":
    net = torch.compile(nn.parallel.DistributedDataParallel(model), backend="aot_eager")
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
if kind == "ddp":
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    net.register_comm_hook(None, allreduce_hook)
rows = torch.utils.data.TensorDataset(torch.randint(0, 40, (32, 6), generator=torch.Generator().manual_seed(1)))
sampler = torch.utils.data.DistributedSampler(rows, num_replicas=world, rank=rank)
loader = torch.utils.data.DataLoader(rows, batch_size=4, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for (tokens,) in loader:
        forward = model if kind == "raw" else net
        logits = forward(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        if kind == "manual":
            for param in model.parameters():
                dist.all_reduce(param.grad)
                param.grad /= world
        optimizer.step()
        optimizer.zero_grad()
total = sum((p.full_tensor() if hasattr(p, "full_tensor") else p).double().sum().item() for p in model.parameters())
sys.stdout.write(f"rank {rank} {total!r}\\n")
sys.stdout.flush()
if not alone:
    dist.barrier()
    dist.destroy_process_group()
"""


KINDS = ("ddp", "fsdp2", "manual", "compiled", "single")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


COMPILED = """
import torch
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_of = torch.compile(lambda x: model(x).sum(), backend="eager")
loss_of(torch.ones(2, 3)).backward()
optimizer.step()
"""
"""A training whose model is called by compiled code only."""


def call(words, cwd, **environment):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment}
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The sorted lines that the script prints unwatched, by kind."""
    script = tmp_path_factory.mktemp("bare") / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    with Ranks(2) as two, Ranks(1) as one:
        printed = {kind: run_unwatched(one if kind == "single" else two, script, kind) for kind in KINDS}
    return {kind: sorted("".join(texts).splitlines()) for kind, texts in printed.items()}


@pytest.fixture
def watched(script, tmp_path):
    """Runs the script under watch and returns its lines, sorted: with the command, or in ranks that attach the same
    way but need not start Python and import torch.
    """

    def run(kind, *, command_line, plan=None):
        if not command_line:
            size = 1 if kind == "single" else 2
            printed = run_watched(script, kind, out=tmp_path / "run", plan=plan, world_size=size)
            return sorted("".join(printed).splitlines())
        options = [] if plan is None else ["--plan", plan]
        command = [TORCHRUN, "--nproc-per-node", "2", "train.py", kind]
        done = call([TRUELINE, "run", "--out", "run", *options, "--", *command], tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("trueline: watched ") == 1, "one line, whatever the number of ranks"
        assert done.stderr.endswith(" Run: run. Next: trueline check run\n")
        return sorted(done.stdout.splitlines())

    return run


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", KINDS)
def test_an_unchanged_script_is_watched_and_computes_the_same(watched, tmp_path, bare, kind):
    import trueline

    assert len(bare[kind]) == (1 if kind == "single" else 2)
    assert watched(kind, command_line=kind == "ddp") == bare[kind]
    run = trueline.open_run(tmp_path / "run")
    expected = "ddp" if kind == "compiled" else kind
    assert run.manifest.adapter == expected
    steps = 16 if kind == "single" else 8
    assert len(run.steps) == steps
    assert run.pivot("grad_norm")[1].all()
    assert run.pivot("loss")[1].all()
    epochs, seen = run.pivot("epoch")
    assert seen.all()
    assert sorted(set(epochs.flatten().tolist())) == [0, 1]
    digests = run.lists("sample_digests")
    assert all(len(digests[step, rank]) == 4 for step in run.steps for rank in run.ranks)
    assert [f.claim for f in trueline.check(tmp_path / "run").findings if f.is_grave] == []


@pytest.mark.parametrize(("kind", "preset"), [("single", "ops"), ("fsdp2", "mix")])
def test_an_unchanged_script_is_recorded_and_computes_the_same(watched, tmp_path, bare, kind, preset):
    import trueline

    assert watched(kind, command_line=False, plan=preset) == bare[kind]
    run = trueline.open_run(tmp_path / "run")
    rows = run.records(names=["1.linear"], phases=["fwd"])
    assert sorted(set(rows["step"].to_pylist())) == list(run.steps)
    assert set(rows["rank"].to_pylist()) == set(run.ranks)
    assert set(rows["slot"].to_pylist()) == {"in0", "in1", "in2", "out0"}


def test_a_forward_pass_around_the_wrapper_is_found(watched, tmp_path):
    import trueline

    watched("raw", command_line=False)
    codes = {finding.code for finding in trueline.check(tmp_path / "run").findings}
    assert "gradient-not-reduced" in codes


@pytest.mark.in_turn
def test_exit_code_output_and_sitecustomize_are_the_programs_own(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys; sys.stderr.write('mine ')\n", encoding="utf-8")
    program = "import sys, torch\nprint('out', 'torch.distributed.tensor' in sys.modules)\nsys.exit(37)\n"
    (tmp_path / "fails.py").write_text(program, encoding="utf-8")
    words = [TRUELINE, "run", "--out", "run", "--", sys.executable, "fails.py"]
    done = call(words, tmp_path, PYTHONPATH=str(tmp_path / "own"))
    assert done.returncode == 37
    assert done.stdout == "out False\n", "attaching imports DTensor, which takes half a second and which few need"
    assert "mine" in done.stderr
    assert "NOTHING WAS WATCHED: no optimizer step seen" in done.stderr
    assert done.stderr.endswith("an optimizer of torch.optim trains. The command ended with exit code 37.\n")
    assert not (tmp_path / "run").exists()


def test_an_exception_of_the_script_is_shown_as_it_is_and_the_run_is_kept_but_not_told_again(
    script, tmp_path, python, warm_trueline
):
    import trueline

    script.write_text(SCRIPT.replace("total = sum", "raise ValueError('mine')\ntotal = sum"), encoding="utf-8")
    done = call([warm_trueline, "run", "--out", "run", "--", python, "train.py", "single"], tmp_path)
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
    assert "watched model (single, 1 rank): 16 steps, gradients at 16" in done.stderr
    run = trueline.open_run(tmp_path / "run")
    assert len(run.steps) == 16
    line = 1 + SCRIPT[: SCRIPT.index("total = sum")].count("\n")
    assert run.env[0].raised == f"ValueError at {script.name}:{line}"
    assert trueline.check(run).notes[0] == f"The process raised ValueError at {script.name}:{line} after step 15."
    again = call([warm_trueline, "run", "--overwrite", "--out", "run", "--", "true"], tmp_path)
    assert "NOTHING WAS WATCHED: the Run at 'run' is as it was before the command" in again.stderr
    assert "The command" not in again.stderr
    killed = call(
        [warm_trueline, "run", "--out", "other", "--", "timeout", "-s", "KILL", "0.1", "sleep", "9"], tmp_path
    )
    assert "NOTHING WAS WATCHED" in killed.stderr
    assert killed.stderr.endswith(" The command, or what it started, was ended by SIGKILL.\n")


def test_a_model_that_compiled_code_alone_calls_is_told_with_what_to_do(tmp_path, warm_trueline, python):
    done = call([warm_trueline, "run", "--out", "run", "--", python, "-c", COMPILED], tmp_path)
    assert "NOTHING WAS WATCHED: the model is called only inside of what torch.compile made" in done.stderr
    assert "leave its call, loss.backward() and optimizer.step() outside" in done.stderr


BY_HAND = """
import torch
model = torch.nn.Linear(4, 2)
for _ in range(12):
    model(torch.randn(3, 4)).square().mean().backward()
    for parameter in model.parameters():
        parameter.data -= 0.1 * parameter.grad
        parameter.grad = None
"""


def test_weights_that_the_script_updates_by_hand_are_told_with_what_to_do(tmp_path, warm_trueline, python):
    done = call([warm_trueline, "run", "--out", "run", "--", python, "-c", BY_HAND], tmp_path)
    assert "NOTHING WAS WATCHED: 12 calls of backward, and no optimizer of torch.optim was made." in done.stderr
    assert "torch.optim.SGD(model.parameters(), lr)" in done.stderr


def test_the_run_has_the_whole_command_and_the_keys_that_were_set(tmp_path, warm_trueline, python):
    (tmp_path / "train.py").write_text(COMPILED.replace("torch.compile", "(lambda f, backend: f)"), encoding="utf-8")
    words = [python, "train.py", "--name", "a b", "--token", "hf_abcdefghijklmnop1234"]
    done = call(
        [warm_trueline, "run", "--out", "run", "--set", "every=7", "--set", "names=we*,bias", "--", *words], tmp_path
    )
    assert "trueline: watched " in done.stderr, done.stderr
    manifest = trueline.open_run(tmp_path / "run").manifest
    assert manifest.argv == [*words[:-1], "<redacted>"]
    assert manifest.command == ["train.py", *manifest.argv[2:]]
    assert (manifest.plan["every"], manifest.plan["names"]) == (7, ["we*", "bias"])


def test_a_signal_reaches_the_program(tmp_path, warm_trueline):
    program = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
    program += "print('ready', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "waits.py").write_text(program, encoding="utf-8")
    words = [warm_trueline, "run", "--out", "run", "--", sys.executable, "waits.py"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 5


ENDS = """
import os, signal, sys, torch
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
{end}
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("end", "says"),
    [
        (KILLED, "killed by SIGKILL, as the system does where memory ran out"),
        ("os._exit(3)", "killed, or ended at once; the command's exit code is 3"),
        ("os.abort()", "ended by SIGABRT"),
        ("os._exit(0)", ""),
        ("os.kill(os.getpid(), signal.SIGTERM)", ""),
    ],
)
def test_a_job_that_was_killed_at_once_is_said_to_have_died(tmp_path, warm_trueline, python, end, says):
    (tmp_path / "train.py").write_text(ENDS.format(end=end), encoding="utf-8")
    ended = call([warm_trueline, "run", "--out", "run", "--", python, "train.py"], tmp_path)
    report = trueline.check(tmp_path / "run")
    if not says:
        assert not report.incidents
        return
    assert ended.returncode not in (0, 1)
    died = f"the job died: the process did not close this Run (last step 11): {says}"
    assert report.verdict.line.startswith(f"Fault found: {died}")
    assert report.exit_code == 1


def test_a_job_that_was_told_to_end_did_not_die(tmp_path, warm_trueline, python):
    """It takes its time, and `trueline run` passed the signal on before."""
    waits = "signal.signal(signal.SIGTERM, lambda *_: os._exit(5))\nprint('ready', flush=True)\nsignal.pause()"
    (tmp_path / "train.py").write_text(ENDS.format(end=waits), encoding="utf-8")
    words = [warm_trueline, "run", "--out", "run", "--", python, "train.py"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 5
    run = trueline.open_run(tmp_path / "run")
    assert (run.manifest.ended.status, run.manifest.ended.passed_on) == (5, signal.SIGTERM)
    assert not trueline.check(run).incidents


def test_killed_training_leaves_a_readable_run(script, tmp_path, python, warm_trueline):
    import trueline
    from trueline.schema.errors import RunError

    slow = SCRIPT.replace("optimizer.step()", "optimizer.step(); __import__('time').sleep(0.3)")
    script.write_text(slow, encoding="utf-8")
    words = [warm_trueline, "run", "--out", "run", "--", python, "train.py", "single"]
    with subprocess.Popen(words, cwd=tmp_path) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if len(trueline.open_run(tmp_path / "run").steps) >= 4:
                    break
            except RunError:
                pass
            time.sleep(0.05)
        process.kill()
    run = trueline.open_run(tmp_path / "run")
    assert len(run.steps) >= 4
    assert run.problems == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "No command was given"),
        (["--set", "stepz=3", "--", "python", "-V"], "did you mean 'steps'?"),
        (["--set", "steps=20:19", "--", "python", "-V"], "no step lies from 20"),
        (["--", "no-such-program"], "'no-such-program' is not a program"),
        (["--", "python", "missing.py"], "'missing.py' does not exist"),
        (["--plan", "nonsense", "--", "python", "-V"], "neither a preset"),
        (["--out", "taken", "--", "python", "-V"], "'taken' is not empty and not a Trueline Run"),
        (["--out", "taken", "--overwrite", "--", "python", "-V"], "so it is left alone"),
        (["--out", "taken", "--resume", "--", "python", "-V"], "'taken' is not a Run"),
        (["--out", "taken/precious.txt", "--", "python", "-V"], "is a file, and a Run is a directory"),
        (["--out", "taken/precious.txt/run", "--", "python", "-V"], "precious.txt' is a file"),
        (["--out", "", "--", "python", "-V"], "The path for the Run is empty"),
        (["--out", "s3://bucket/run", "--", "python", "-V"], "only local and mounted file systems"),
        (["--out", "run", "--overwrite", "--resume", "--", "python", "-V"], "contradict each other"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_touched(tmp_path, monkeypatch, capsys, words, says):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "precious.txt").write_text("keep", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trueline", "run", *words])
    with pytest.raises(SystemExit) as left:
        main()
    errors = capsys.readouterr().err
    assert left.value.code == 2
    assert says in errors
    assert "Traceback" not in errors
    assert errors.count("\n") == 1
    assert (tmp_path / "taken" / "precious.txt").read_text(encoding="utf-8") == "keep"


def test_nobody_logged_in_to_wandb_is_said_before_the_job_starts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_CONFIG_DIR", "WANDB_DIR", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.py").write_text("open('started', 'w')\n")
    words = ("run", "--sink", "wandb:project", "--out", tmp_path / "run", "--", sys.executable, tmp_path / "train.py")
    code, _, said = in_process.trueline(monkeypatch, capsys, *words)
    assert code == 2
    assert said.startswith("trueline: W&B is not logged in: run `wandb login`")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def _by_key(home, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)


def _offline(home, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")


def _by_netrc(home, monkeypatch):
    (home / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password " + "a" * 40 + "\n")


def _by_settings(home, monkeypatch):
    (home / "wandb").mkdir()
    (home / "wandb" / "settings").write_text("[default]\nmode = offline\n")


@pytest.mark.parametrize("how", [_by_key, _offline, _by_netrc, _by_settings])
def test_a_key_of_wandb_is_found_wherever_it_is(tmp_path, monkeypatch, how):
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_CONFIG_DIR", "WANDB_DIR", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("machine github.com\n  login somebody\n  password x\n")
    with pytest.raises(InputError):
        require_ready(["wandb:project", "jsonl:out"])
    how(tmp_path, monkeypatch)
    require_ready(["wandb:project", "jsonl:out"])


@pytest.mark.parametrize("how", ["--overwrite", "--resume"])
def test_the_run_of_a_job_that_lives_is_left_alone(tmp_path, warm_trueline, how):
    wait = "import sys; from trueline.store.writer import RunWriter; RunWriter('run', rank=0); print('x', flush=True);"
    words = [sys.executable, "-c", f"{wait} sys.stdin.read()"]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        job.stdout.readline()
        done = call([warm_trueline, "run", "--out", "run", how, "--", sys.executable, "-V"], tmp_path)
        job.stdin.close()
    assert done.returncode == 2
    assert f"is still being written by process {job.pid}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_model_that_cannot_be_watched_trains_on(tmp_path, warm_trueline, python):
    program = (
        "import torch\nfrom torch import nn\n"
        "model = nn.Linear(2, 2)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(1, 2)).sum().backward(); opt.step(); print('done')\n"
    )
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "plan.toml").write_text('names = ["nothing.*"]\n', encoding="utf-8")
    words = [warm_trueline, "run", "--out", "run", "--plan", "plan.toml", "--", python, "train.py"]
    done = call(words, tmp_path)
    assert done.returncode == 0
    assert done.stdout == "done\n"
    assert "not watching" in done.stderr
    assert "matches none of the 2 parameters" in done.stderr


def test_a_run_that_could_not_be_written_is_not_told_as_training_without_a_step(tmp_path):
    claim = "The Run could not be written from step 1 on rank 0: File too large."
    write_run(tmp_path, num_ranks=1, num_steps=0, findings=(Finding(WATCH_DEGRADED, "info", claim),))
    assert told_as_watched(str(tmp_path), before={}).startswith(f"NOTHING WAS RECORDED: {claim} Run: ")


EVALUATES = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_model_that_trains_in_evaluation_mode_is_watched_and_told(tmp_path):
    (tmp_path / "train.py").write_text(EVALUATES, encoding="utf-8")
    run_watched(tmp_path / "train.py", out=tmp_path / "run", world_size=1)
    run = trueline.open_run(tmp_path / "run")
    assert run.steps.tolist() == [0, 1, 2]
    assert run.pivot("num_micro")[0][1:, 0].tolist() == [1, 1]
    (note,) = run.manifest.notes
    assert "model.train()" in note


def test_the_last_line_of_a_job_that_was_refused_does_not_tell_of_another_one(tmp_path):
    """The other job wrote its Run while this one ran, so that what is there is new, and not this one's."""
    out = str(write_run(tmp_path / "run", num_steps=3))
    why = f"'{out}' already holds a Run. Pass another path."
    told = told_as_watched(out, before={}, unseen=why)
    assert told == f"NOTHING WAS WATCHED: {why}"
    assert told_as_watched(out, before={}, unseen=why, began=True).startswith("watched ")


def test_the_last_line_names_why_no_step_could_be_written_where_the_run_cannot(tmp_path):
    out = str(write_run(tmp_path / "run", num_steps=0))
    why = "The Run could not be written from step 0 on rank 0: No space left on device."
    assert told_as_watched(out, before={}, unseen=why, began=True).startswith(f"NOTHING WAS RECORDED: {why}")


def test_the_last_line_of_a_run_that_was_moved_says_so(tmp_path):
    told = told_as_watched(str(tmp_path / "run"), before={}, began=True)
    assert told.startswith(
        f"THE RUN IS GONE from '{tmp_path / 'run'}': it was written there, and moved or removed since."
    )
    assert "NOTHING WAS WATCHED" not in told
