"""Random jobs, each a script of its own: a model, how it is wrapped, and what else people do around training."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.harm.running import Job

PRESETS = ("workers", "laws", "modules", "ops", "mix", "monitor")

HEAD = """\
import copy, hashlib, io, os, pickle, sys, threading, warnings
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
warnings.simplefilter("ignore")
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.set_num_threads(1)
if WORLD > 1: dist.init_process_group("gloo")
torch.manual_seed({seed})
seen, count = [], [0]
def bits(x):
    x = x.to_local() if hasattr(x, "to_local") else x
    return hashlib.sha256(x.detach().contiguous().numpy().tobytes()).hexdigest()[:12]
def state(model):
    own = [(n, bits(p), None if p.grad is None else bits(p.grad)) for n, p in model.named_parameters()]
    return own, [(n, bits(b)) for n, b in model.named_buffers()], bits(torch.get_rng_state())
def data(step): return torch.randn({batch}, 8)
"""

MODELS = {
    "leaf": "model = nn.Linear(8, 4)",
    "sequential": "model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))",
    "dropout": "model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 4))",
    "batch norm": (
        "model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Linear(16, 4))"
    ),
    "lazy": "model = nn.Sequential(nn.LazyLinear(16), nn.GELU(), nn.LazyLinear(4)); model(torch.zeros(2, 8))",
    "shared": "half = nn.Linear(8, 8); model = nn.Sequential(half, nn.ReLU(), half, nn.Linear(8, 4))",
    "scripted": "model = torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))",
    "scripted part": "model = nn.Sequential(torch.jit.script(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 4))",
    "weight norm": "model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 16)), nn.Linear(16, 4))",
    "spectral norm": (
        "model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)), nn.Linear(16, 4))"
    ),
    "called before": "model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)); model(torch.randn(3, 8))",
    "frozen": (
        "model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)); model[0].weight.requires_grad_(False)"
    ),
    "attention": """\
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True); self.b = nn.Linear(8, 4)
    def forward(self, x): return self.b(self.a(x.unsqueeze(1)).squeeze(1))
model = Net()""",
    "python state": """\
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b, self.calls, self.last = nn.Linear(8, 16), nn.Linear(16, 4), 0, None
        self.register_buffer("total", torch.zeros(()))
    def forward(self, x):
        self.calls += 1; self.total += x.detach().sum(); seen.append(self.calls)
        self.last = self.a(x); return self.b(torch.tanh(self.last)) * (1 + self.calls % 3)
model = Net()""",
    "returns a dict": """\
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x, **more):
        h = self.a(x); return {"logits": self.b(h.relu()), "h": (h, [h.detach()]), "n": 3, None: object()}
model = Net()""",
    "returns an object": """\
class Out:
    def __init__(self, logits): self._logits, self.asked = logits, 0
    @property
    def logits(self): seen.append("asked"); return self._logits
    def __getattr__(self, name): raise AttributeError(name)
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(8, 4)
    def forward(self, x): return Out(self.a(x))
model = Net()""",
    "checkpointed": """\
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a, self.d, self.b = nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 4)
    def forward(self, x): return self.b(checkpoint(lambda t: self.d(self.a(t)).tanh(), x, use_reentrant=False))
model = Net()""",
    "own function": """\
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return x * 2
    @staticmethod
    def backward(ctx, g): count[0] += 1; x, = ctx.saved_tensors; return g * 2 + 0 * torch.randn_like(x)
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x): return self.b(Twice.apply(self.a(x)))
model = Net()""",
    "odd buffers": """\
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.e = nn.Linear(8, 4), nn.Embedding(7, 4, sparse=WORLD == 1)
        self.register_buffer("i", torch.arange(4)); self.register_buffer("z", torch.randn(2, 2, dtype=torch.cfloat))
        self.eye = torch.eye(4).to_sparse()
    def forward(self, x):
        return self.a(x) + self.e(torch.arange(len(x)) % 7) @ self.eye.to_dense() + self.z.real.sum()
model = Net()""",
}

SIMPLE = (
    "sequential",
    "dropout",
    "batch norm",
    "shared",
    "called before",
    "python state",
    "checkpointed",
    "own function",
)
"""Models that every wrapper takes."""

WRAPPERS = {
    "none": "net = model",
    "data parallel": "net = nn.DataParallel(model)",
    "ddp": "net = nn.parallel.DistributedDataParallel(model{ddp})",
    "fsdp1": (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"
        "net = model = FSDP(model, use_orig_params={orig}, device_id=torch.device('cpu'))"
    ),
    "fsdp2": (
        "from torch.distributed.fsdp import fully_shard\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "net = fully_shard(model, mesh=init_device_mesh('cpu', (WORLD,)))"
    ),
    "compiled": "net = torch.compile(model, backend='eager')",
}

OPTIMIZERS = (
    "torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)",
    "torch.optim.SGD(model.parameters(), 0.05)",
    "torch.optim.AdamW(model.parameters(), 0.01)",
    "torch.optim.Adam(model.parameters(), 0.01, foreach=False)",
)
"""Of sparse gradients only SGD knows."""

BEFORE = {
    "forward hook": "net.register_forward_hook(lambda m, i, o: seen.append(type(o).__name__))",
    "module hooks": """\
def calls(m, i): count[0] += 1
for m in model.modules(): m.register_forward_pre_hook(calls)""",
    "backward hooks": "for m in model.children(): m.register_full_backward_hook(lambda m, i, o: seen.append(len(o)))",
    "parameter hook": "next(model.parameters()).register_hook(lambda g: count.__setitem__(0, count[0] + 1))",
    "hook once": """\
def once(o, a, k): handle.remove(); seen.append("once")
handle = optimizer.register_step_post_hook(once)""",
    "global hook": "nn.modules.module.register_module_forward_hook(lambda m, i, o: count.__setitem__(0, count[0] + 1))",
    "backward replaced": """\
torchs = torch.Tensor.backward
def backward(self, *a, **k): count[0] += 1; return torchs(self * 1.5, *a, **k)
torch.Tensor.backward = backward""",
    "step replaced": """\
torchs_step = torch.optim.Optimizer.zero_grad
def zero_grad(self, *a, **k): count[0] += 1; return torchs_step(self, *a, **k)
torch.optim.Optimizer.zero_grad = zero_grad""",
    "average": "average = torch.optim.swa_utils.AveragedModel(model)",
    "schedule": "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)",
    "float64 default": "torch.set_default_dtype(torch.float32)",
    "anomaly": "torch.autograd.set_detect_anomaly(True)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "errors of warnings": "warnings.simplefilter('error')",
    "logging raises": """\
import logging
class Raises(logging.Handler):
    def emit(self, record): raise ValueError("handler")
logging.getLogger().addHandler(Raises())""",
}

FORWARD = {
    "plain": "out = net(x)",
    "twice": "out = net(x); out2 = net(x * 0.5)",
    "keyword": "out = net(x)",
    "autocast": "with torch.autocast('cpu', torch.bfloat16): out = net(x)",
    "by parts": "out = x\n    for part in model.children(): out = part(out)",
    "thread": """\
box = []
    worker = threading.Thread(target=lambda: box.append(net(x))); worker.start(); worker.join(); out = box[0]""",
}

AFTER_FORWARD = {
    "noise on an activation": (
        "h = out if torch.is_tensor(out) else None\n"
        "    if h is not None: h.register_hook(lambda g: g + 0.01 * torch.randn_like(g))"
    ),
    "retained": "if torch.is_tensor(out): out.retain_grad()",
    "pickled": "if torch.is_tensor(out): pickle.dumps(out); torch.save(out, io.BytesIO())",
    "copied": "twin = copy.deepcopy(model); seen.append(len(list(twin.parameters())))",
    "evaluated": (
        "model.eval()\n    with torch.no_grad(): seen.append(str(type(net(x)).__name__)); e = net(x)\n"
        "    seen.append(bits(e) if torch.is_tensor(e) else ''); model.train()"
    ),
    "saved": "buffer = io.BytesIO(); torch.save(model.state_dict(), buffer)",
    "forked": """\
child = os.fork()
    if child == 0: y = torch.randn(3).sum(); os._exit(0)
    seen.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))""",
    "caught": """\
try: model(torch.randn(2, 3, 5, 7, 1))
    except Exception as error: seen.append(type(error).__name__)""",
    "second gradient": (
        "if torch.is_tensor(out): g, = torch.autograd.grad(out.sum(), [next(p for p in model.parameters() if "
        "p.requires_grad)], retain_graph=True); seen.append(bits(g))"
    ),
}

MODES = {
    "none": "",
    "flops": "from torch.utils.flop_counter import FlopCounterMode as Mode",
    "dispatch mode": """\
from torch.utils._python_dispatch import TorchDispatchMode
class Mode(TorchDispatchMode):
    def __init__(self, **k): super().__init__()
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        count[0] += 1; return func(*args, **(kwargs or {}))""",
    "function mode": """\
from torch.overrides import TorchFunctionMode
class Mode(TorchFunctionMode):
    def __init__(self, **k): super().__init__()
    def __torch_function__(self, func, types, args=(), kwargs=None):
        count[0] += 1; return func(*args, **(kwargs or {}))""",
}

UPDATES = {
    "step": "optimizer.step()",
    "clipped": "seen.append(bits(nn.utils.clip_grad_norm_(model.parameters(), 1.0))); optimizer.step()",
    "every other": "optimizer.step() if step % 2 else None",
    "closure": "optimizer.step(lambda: loss.detach())",
    "moved": "optimizer.step(); model.double(); model.float()",
}

SHARDED = ("clipped", "moved")
"""Updates that are left out where parameters are sharded."""


def draw(seed: int) -> Job:
    """The job of number ``seed``."""
    of = random.Random(seed)
    wrapper = of.choices([*WRAPPERS], (10, 1, 4, 2, 2, 1))[0]
    ranks = 2 if wrapper in ("ddp", "fsdp1", "fsdp2") else 1
    name = of.choice([*MODELS] if wrapper == "none" else SIMPLE)
    plain = wrapper == "none"
    preset = of.choice(PRESETS)
    before = _some(of, BEFORE, 0.25)
    if wrapper != "none" or name in ("scripted", "scripted part", "odd buffers"):
        before = [one for one in before if one not in ("average", "backward hooks", "deterministic", "anomaly")]
    ways = {one: text for one, text in FORWARD.items() if one != "by parts" or (plain and name == "sequential")}
    ways = {one: text for one, text in ways.items() if plain or one not in ("thread", "twice")}
    forward = "plain" if of.random() < 0.5 else of.choice([*ways])
    after = _some(of, AFTER_FORWARD, 0.2)
    if not plain or "scripted" in name or name == "lazy":
        after = [one for one in after if one in ("noise on an activation", "retained", "forked", "pickled")]
    mode = of.choice([*MODES]) if plain and of.random() < 0.3 and "scripted" not in name else "none"
    update = of.choice([one for one in UPDATES if plain or one not in SHARDED])
    if name == "odd buffers":
        update = "step" if update in ("clipped", "moved") else update
    if "scripted" in name or name in ("spectral norm", "weight norm"):
        update = "step" if update == "moved" else update
    optimizer = OPTIMIZERS[1] if name == "odd buffers" else of.choice(OPTIMIZERS)
    body = ["x = data(step)", FORWARD[forward], *(AFTER_FORWARD[one] for one in after)]
    body.append("y = out if torch.is_tensor(out) else out['logits'] if isinstance(out, dict) else out.logits")
    body.append(
        "loss = y.float().square().mean()"
        + (" + out2.square().mean()" if forward == "twice" and name in _TENSOR else "")
    )
    body += ["loss.backward()", UPDATES[update], "print(step, bits(loss), state(model) if step % 4 == 0 else '')"]
    body += ["average.update_parameters(model)"] if "average" in before else []
    body += ["schedule.step()"] if "schedule" in before else []
    body.append("optimizer.zero_grad() if step % 3 else model.zero_grad()")
    steps = of.choice((3, 6, 13))
    loop = f"for step in range({steps}):\n    " + "\n    ".join(body)
    if mode != "none":
        enter = "with Mode(display=False) as mode:" if mode == "flops" else "with Mode():"
        loop = f"{MODES[mode]}\n{enter}\n    " + loop.replace("\n", "\n    ")
        loop += "\nprint(mode.get_total_flops())" if mode == "flops" else ""
    texts = (
        HEAD.replace("{seed}", str(seed)).replace("{batch}", str(of.choice((4, 6, 16)))),
        MODELS[name],
        WRAPPERS[wrapper].format(
            ddp=of.choice(("", ", gradient_as_bucket_view=True", ", static_graph=True")), orig=of.choice((True, False))
        ),
        f"optimizer = {optimizer}",
        *(BEFORE[one] for one in before),
        loop,
        "print(count, seen, state(model))",
        "print([bits(v) for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)])",
        "if WORLD > 1: dist.destroy_process_group()",
    )
    traits = (name, wrapper, *before, forward, *after, mode, update, f"{steps} steps")
    return Job("\n".join(texts) + "\n", ranks, preset, traits)


_TENSOR = frozenset(MODELS) - {"returns a dict", "returns an object"}


def _some(of: random.Random, among: dict[str, str], likely: float) -> Sequence[str]:
    return [name for name in among if of.random() < likely / 2 + 0.02]
