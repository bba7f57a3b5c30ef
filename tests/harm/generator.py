"""Random jobs, each a script of its own: a model, how it is wrapped, and what else people do around training."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.harm.running import Job

PRESETS = ("workers", "laws", "modules", "ops", "mix", "bits", "monitor")

HEAD = """\
import copy, hashlib, io, os, pickle, random, sys, threading, warnings
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
warnings.simplefilter("ignore")
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.set_num_threads(1)
if WORLD > 1: dist.init_process_group("gloo")
torch.manual_seed({seed}); random.seed({seed}); np.random.seed({seed})
seen, count = [], [0]
def bits(x):
    x = x.to_local() if hasattr(x, "to_local") else x
    x = x.to_dense() if x.layout != torch.strided else x
    return hashlib.sha256(x.detach().contiguous().numpy().tobytes()).hexdigest()[:12]
def state(model):
    own = [(n, bits(p), None if p.grad is None else bits(p.grad)) for n, p in model.named_parameters()]
    drawn = [bits(torch.get_rng_state()), str(random.getstate())[-40:], str(np.random.get_state()[2:])]
    return own, [(n, bits(b)) for n, b in model.named_buffers()], drawn
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
    "dictionary of parts": 'model = nn.ModuleDict({"a": nn.Linear(8, 16), "b": nn.Linear(16, 4)})',
    "list of parts": "model = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 4)])",
    "bare parameters": """\
class Net(nn.Module):
    def __init__(self): super().__init__(); self.w = nn.ParameterList([torch.randn(8, 16), torch.randn(16, 4)])
    def forward(self, x): return F.gelu(x @ self.w[0]) @ self.w[1]
model = Net()""",
    "lazy and late": """\
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a, self.late = nn.Linear(8, 4), None
    def forward(self, x):
        if self.late is None: self.late = nn.Linear(4, 4)
        return self.late(self.a(x))
model = Net()""",
    "tied": """\
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b, self.c = nn.Linear(8, 4), nn.Linear(4, 8), nn.Linear(8, 4)
        self.c.weight = self.a.weight
    def forward(self, x): return self.c(torch.relu(self.b(self.a(x))))
model = Net()""",
    "convolution": "model = nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 4, 3), nn.Flatten(), nn.Linear(24, 4))",
    "recurrent": """\
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a, self.b = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 4)
    def forward(self, x): y, h = self.a(x.view(len(x), 2, 4)); return self.b(h[-1]) + 0 * y.sum()
model = Net()""",
    "awkward": """\
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
    def __len__(self): return 0
    def __bool__(self): raise ValueError("no truth")
    def __eq__(self, other): raise ValueError("no equality")
    __hash__ = nn.Module.__hash__
    def __repr__(self): seen.append("shown"); return "Net"
    def forward(self, x, *rest, scale=1.0): return self.b(self.a(x).tanh()) * scale
model = Net()""",
    "returns a tuple": """\
import collections
Out = collections.namedtuple("Out", "logits loss more")
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(8, 4)
    def forward(self, x): y = self.a(x); return Out(y, y.square().mean(), {"deep": [[[[y.detach()]]]], "text": "x"})
model = Net()""",
    "returns a mapping": """\
import collections.abc
class Lazy(collections.abc.Mapping):
    def __init__(self, logits): self.held = logits
    def __getitem__(self, key): seen.append(key); return self.held if key == "logits" else self.held * 2
    def __iter__(self): seen.append("iterated"); return iter(["logits", "other"])
    def __len__(self): return 2
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(8, 4)
    def forward(self, x): return Lazy(self.a(x))
model = Net()""",
    "returns a generator": """\
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x):
        def parts():
            h = self.a(x); seen.append("half"); yield h
            yield self.b(h.tanh())
        return parts()
model = Net()""",
    "returns a subclass": """\
class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        count[0] += 1; return super().__torch_function__(func, types, args, kwargs or {})
class Net(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(8, 4)
    def forward(self, x): return self.a(x).as_subclass(Tagged)
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
    "tied",
    "convolution",
    "recurrent",
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
    "anomaly": "torch.autograd.set_detect_anomaly(True)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "errors of warnings": "warnings.simplefilter('error')",
    "hook once before": """\
def early(o, a, k): before.remove(); seen.append("early")
before = optimizer.register_step_pre_hook(early)""",
    "module hook once": """\
def taken(m, i, o): leaving.remove(); seen.append("taken off")
leaving = next(iter(model.modules())).register_forward_hook(taken)
def entered(m, i): entering.remove(); seen.append("entered")
entering = [*model.modules()][-1].register_forward_pre_hook(entered)""",
    "hooks that change": """\
[*model.modules()][-1].register_forward_hook(lambda m, i, o: o * 1.01 if torch.is_tensor(o) else None)
net.register_forward_pre_hook(lambda m, a, k: (a, k), with_kwargs=True)""",
    "hook that fails once": """\
def fails(m, i, o):
    count[0] += 1
    if count[0] == 5: raise KeyError("hook")
model.register_forward_hook(fails)""",
    "gradients gathered": """\
ps = [p for p in model.parameters() if p.requires_grad]
torch.autograd.graph.register_multi_grad_hook(ps[-2:], lambda gs: seen.append(len(gs)))""",
    "gradient halved when it is there": """\
def halve(p): count[0] += 1; p.grad.mul_(0.5) if p.grad.layout == torch.strided else None
for p in model.parameters():
    if p.requires_grad: p.register_post_accumulate_grad_hook(halve)""",
    "module replaced": """\
torchs_call = nn.Module.__call__
def called(self, *a, **k): count[0] += 1; return torchs_call(self, *a, **k)
nn.Module.__call__ = called""",
    "linear replaced": """\
torchs_linear = F.linear
def linear(x, w, b=None): count[0] += 1; return torchs_linear(x, w, b)
F.linear = linear""",
    "one step replaced": """\
own_step = optimizer.step
def step_here(*a, **k): count[0] += 1; return own_step(*a, **k)
optimizer.step = step_here""",
    "class step replaced": """\
class_step = type(optimizer).step
def step_of_class(self, *a, **k): seen.append("class"); return class_step(self, *a, **k)
type(optimizer).step = step_of_class""",
    "forward replaced": """\
own_forward = model.forward
def forward_here(*a, **k): count[0] += 1; return own_forward(*a, **k)
model.forward = forward_here""",
    "profiled": """\
def traced(frame, event, arg): count[0] += event == "call" and frame.f_code is data.__code__
sys.setprofile(traced)""",
    "no collector": "import gc; gc.collect(); gc.disable()",
    "alarms": """\
import signal
signal.signal(signal.SIGALRM, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)""",
    "at exit": """\
import atexit
atexit.register(lambda: print("exit", threading.active_count() > 0, count))""",
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
    "inference first": "with torch.inference_mode(): net(x)\n    out = net(x)",
    "without graph first": "with torch.no_grad(): net(x)\n    out = net(x)",
    "saved elsewhere": """\
def pack(t): count[0] += 1; return t
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t): out = net(x)""",
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
    "node hook": """\
if torch.is_tensor(out): out.grad_fn.register_hook(lambda i, o: seen.append(len(i)))
    if torch.is_tensor(out): out.grad_fn.register_prehook(lambda o: count.__setitem__(0, count[0] + 1))""",
    "looked at": """\
if torch.is_tensor(out): seen.append((type(out.grad_fn).__name__, out._version))""",
    "failed in backward": """\
try:
        t = model(x); t = t * 1
        t.register_hook(lambda g: 1 / 0); t.sum().backward()
    except Exception as error: seen.append(type(error).__name__); optimizer.zero_grad()""",
    "trained beside": """\
def beside():
        small = nn.Linear(3, 1); F.mse_loss(small(torch.ones(2, 3)), torch.ones(2, 1)).backward()
    aside = threading.Thread(target=beside); aside.start(); aside.join()""",
    "workers": """\
if step == 1:
        load = torch.utils.data.DataLoader([torch.full((2,), float(i)) for i in range(4)], num_workers=1)
        seen.append([float(t.sum()) for t in load])""",
    "counted": "seen.append(len(__import__('traceback').extract_stack()))",
    "trace": "seen.append(sys._getframe().f_code.co_name)",
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
    "offloaded": "optimizer.step(); model.cpu()",
    "written in place": """\
optimizer.step()
    with torch.no_grad(): [p.add_(0.0) for p in model.parameters()]""",
    "data replaced": "optimizer.step(); p = next(model.parameters()); p.data = p.data.clone()",
    "gradients by hand": """\
ps = [p for p in model.parameters() if p.grad is not None]
    for p in ps: p.grad = p.grad * 0.9
    optimizer.step()""",
    "twice": "optimizer.step(); optimizer.step()",
    "scaled": "scaler.step(optimizer); scaler.update()",
    "loaded": "optimizer.step(); model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()})",
    "assigned": """\
optimizer.step()
    if step == 2: model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)""",
    "swapped": """\
optimizer.step(); p = next(model.parameters()); p.grad = None
    del out, y, loss
    torch.utils.swap_tensors(p, nn.Parameter(p.detach().clone()))""",
}

UNSHARDED = (
    "clipped",
    "moved",
    "data replaced",
    "swapped",
    "loaded",
    "assigned",
    "written in place",
    "gradients by hand",
)
"""Updates that are left out where a wrapper holds the parameters."""

RETURNS = frozenset(name for name in MODELS if name.startswith("returns")) | {
    "odd buffers",
    "scripted",
    "scripted part",
}
"""Models whose output is no tensor as others have, or that know no second dtype."""

PARTS = {"dictionary of parts": "model['b'](model['a'](x).tanh())", "list of parts": "model[1](model[0](x).tanh())"}
"""Models that are no function, and how they are called."""

WARN = frozenset({"backward hooks", "forward hook", "scaled", "autocast", "schedule"})
"""What warns by itself, so that a job whose warnings are errors would end at once."""


def draw(seed: int) -> Job:
    """The job of number ``seed``."""
    of = random.Random(seed)
    wrapper = of.choices([*WRAPPERS], (14, 1, 4, 2, 2, 1))[0]
    plain = wrapper == "none"
    name = of.choice([*MODELS] if plain else SIMPLE)
    before = [way for way in BEFORE if of.random() < 0.11 and _fits(way, name, wrapper)]
    if len({*before} & {"alarms", "profiled", "no collector"}) > 1:
        before.remove("profiled") if "profiled" in before else before.remove("alarms")
    ways = [way for way in FORWARD if _fits(way, name, wrapper)]
    forward = "plain" if name in PARTS or of.random() < 0.5 else of.choice(ways)
    after = [way for way in AFTER_FORWARD if of.random() < 0.11 and _fits(way, name, wrapper)]
    mode = of.choice([*MODES]) if plain and of.random() < 0.3 and "scripted" not in name else "none"
    update = of.choice([way for way in UPDATES if _fits(way, name, wrapper)])
    if update == "swapped" and (after or mode != "none" or forward != "plain"):
        update = "step"
    if WARN & {*before, forward, update} and "errors of warnings" in before:
        before.remove("errors of warnings")
    steps = of.choice((3, 5, 13))
    chosen = (name, wrapper, *before, forward, *after, mode, update)
    sparse = name == "odd buffers"
    texts = (
        HEAD.replace("{seed}", str(seed)).replace("{batch}", str(of.choice((4, 6, 16)))),
        MODELS[name],
        WRAPPERS[wrapper].format(
            ddp=of.choice(("", ", gradient_as_bucket_view=True", ", static_graph=True")), orig=of.choice((True, False))
        ),
        f"optimizer = {OPTIMIZERS[1] if sparse else of.choice(OPTIMIZERS)}",
        "scaler = torch.amp.GradScaler('cpu', init_scale=256.0)" if update == "scaled" else "",
        *(BEFORE[way] for way in before),
        _loop(chosen, steps),
        "print(count, seen, state(model))",
        "print([bits(v) for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)])",
        "if WORLD > 1: dist.destroy_process_group()",
    )
    num_ranks = 2 if wrapper in ("ddp", "fsdp1", "fsdp2") else 1
    return Job("\n".join(texts) + "\n", num_ranks, of.choice(PRESETS), (*chosen, f"{steps} steps"))


def _loop(chosen: Sequence[str], steps: int) -> str:
    name, forward = chosen[0], next(way for way in chosen if way in FORWARD)
    update, mode = chosen[-1], chosen[-2]
    body = ["x = data(step)", f"out = {PARTS[name]}" if name in PARTS else FORWARD[forward]]
    body += [AFTER_FORWARD[way] for way in chosen if way in AFTER_FORWARD]
    body.append(
        "y = [*out][-1] if hasattr(out, 'send') else out if torch.is_tensor(out) "
        "else out['logits'] if hasattr(out, 'keys') else out.logits"
    )
    second = forward == "twice" and name not in RETURNS
    body.append("loss = y.float().square().mean()" + (" + out2.square().mean()" if second else ""))
    body.append("scaler.scale(loss).backward()" if update == "scaled" else "loss.backward()")
    body += ["print(step, bits(loss), state(model) if step % 4 == 0 else '')", UPDATES[update]]
    body += ["average.update_parameters(model)"] if "average" in chosen else []
    body += ["schedule.step()"] if "schedule" in chosen else []
    body.append("optimizer.zero_grad() if step % 3 else model.zero_grad()")
    lines = "\n    ".join(body)
    if "hook that fails once" in chosen:
        lines = lines.replace("\n", "\n    ")
        lines = f"try:\n        {lines}\n    except KeyError as error: print(step, repr(error))"
    text = f"for step in range({steps}):\n    {lines}"
    if mode != "none":
        enter = "with Mode(display=False) as mode:" if mode == "flops" else "with Mode():"
        text = f"{MODES[mode]}\n{enter}\n    " + text.replace("\n", "\n    ")
        text += "\nprint(mode.get_total_flops())" if mode == "flops" else ""
    return text


def _fits(way: str, name: str, wrapper: str) -> bool:
    """Whether a job of the model ``name`` can do so by itself; what cannot would fail alone, and show nothing."""
    plain, scripted = wrapper == "none", "scripted" in name
    if name in PARTS and way in (*FORWARD, "caught", "evaluated", "failed in backward", "forward replaced"):
        return way == "plain"
    if way in ("backward hooks", "anomaly", "deterministic", "average"):
        return plain and not scripted and name not in ("batch norm", "shared", "odd buffers", "lazy and late", *RETURNS)
    if way == "by parts":
        return plain and name in ("sequential", "dropout", "convolution")
    if way in ("thread", "twice", "keyword", "inference first", "without graph first", "saved elsewhere", "autocast"):
        return plain and not scripted and name not in ("odd buffers", "spectral norm", "lazy and late")
    if way in ("copied", "evaluated", "saved", "caught", "second gradient", "failed in backward"):
        held = name in ("python state", "lazy", "lazy and late", "checkpointed", "spectral norm", "weight norm")
        return plain and not scripted and not held and name not in RETURNS
    if way in ("hook that fails once", "hooks that change", "module hook once", "forward replaced", "parameter hook"):
        return plain and not scripted and name not in (*RETURNS, "recurrent", "attention")
    if way in UNSHARDED:
        parametrized = scripted or name in ("spectral norm", "weight norm", "odd buffers", "recurrent", "lazy and late")
        return plain and not parametrized
    if way in ("scaled", "offloaded", "twice", "node hook", "looked at", "gradients gathered", "linear replaced"):
        return wrapper in ("none", "ddp") and not scripted and name != "odd buffers"
    if way in ("gradient halved when it is there", "module replaced", "trained beside", "profiled"):
        return wrapper not in ("fsdp1", "compiled")
    return not (way == "pickled" and name == "returns a subclass")
