"""Kinds of jobs that watching has ended or changed, each as a script that prints what may not depend on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A script, the presets that changed or ended it, and how many ranks run it."""

    source: str
    presets: tuple[str, ...]
    num_ranks: int = 1


MEMORY = """\
import torch, warnings
from torch import nn
warnings.simplefilter("ignore")
class Sub(torch.Tensor): pass
class Wrap(torch.Tensor):
    @staticmethod
    def __new__(cls, inner): return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
    def __init__(self, inner): self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        un = lambda x: x.inner if isinstance(x, Wrap) else x
        out = func(*[un(a) for a in args], **(kwargs or {}))
        return Wrap(out) if isinstance(out, torch.Tensor) else out
class M(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(8, 4); self.e = nn.Embedding(9, 4, sparse=True)
        self.register_buffer("q", torch.quantize_per_tensor(torch.randn(4), .1, 0, torch.qint8))
        self.register_buffer("s", torch.eye(4).to_sparse())
        self.register_buffer("c", torch.eye(4).to_sparse_csr())
        self.register_buffer("m", torch.empty(4, device="meta"))
        self.register_buffer("z", torch._efficientzerotensor((4,)))
        self.register_buffer("f8", torch.randn(4).to(torch.float8_e4m3fn))
        freed = torch.randn(4096); freed.untyped_storage().resize_(0); self.register_buffer("freed", freed)
        short = torch.randn(4096); short.untyped_storage().resize_(64); self.register_buffer("short", short)
        self.id = nn.Identity()
    def forward(self, x):
        for b in (self.q, self.s, self.m, self.c, self.z, self.f8, self.freed, self.short): self.id(b)
        self.id(torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]))
        self.id(torch.nested.nested_tensor([torch.randn(2), torch.randn(3)], layout=torch.jagged))
        self.id(torch.randn(3, 3).to_mkldnn())
        w = Wrap(torch.randn(4)); w = self.id(w + 1)
        with torch._subclasses.FakeTensorMode(): f = torch.randn(3) * 2
        self.id(f); self.id(torch.randn(3).as_subclass(Sub) + 1)
        torch.func.vmap(lambda t: self.id(t) * 2)(torch.randn(2, 3))
        torch.func.grad(lambda t: self.id(t).sum())(torch.randn(3))
        self.s.mul_(1.0)
        y = self.l(x) + self.q.dequantize() + torch.sparse.mm(self.s, torch.ones(4, 1)).T + self.e(torch.arange(6))
        return y + w.inner + self.z
m = M(); o = torch.optim.SGD(m.parameters(), .1)
for s in range(3):
    m(torch.randn(6, 8)).square().mean().backward(); o.step(); o.zero_grad()
print("END", [p.double().sum().item().hex() for p in m.parameters()], torch.get_rng_state().sum())
"""
"""Tensors that are no plain memory pass through a watched model."""

REPLACED = """\
import torch, warnings, functools
from torch import nn
from torch.nn import functional as F
n = {"b": 0, "add": 0, "sm": 0, "norm": 0, "c": 0, "item": 0}
def count(key, owner, name, wraps=True):
    orig = getattr(owner, name)
    def mine(*a, **k):
        n[key] += 1
        out = orig(*a, **k)
        return out
    setattr(owner, name, functools.wraps(orig)(mine) if wraps else mine)
ob = torch.Tensor.backward
def back(self, *a, **k):
    n["b"] += 1; ob(self * 1.5, *a, **k)
torch.Tensor.backward = back
count("add", torch.Tensor, "add"); count("sm", F, "softmax"); count("norm", torch.Tensor, "norm")
count("item", torch.Tensor, "item", False)
class C:
    __hash__ = None
    __name__ = 7
    @property
    def __module__(self): raise ValueError
    def __eq__(self, o): raise ValueError
    def __call__(self, x):
        if torch.overrides.has_torch_function_unary(x): return torch.overrides.handle_torch_function(self, (x,), x)
        n["c"] += 1; return x * 2
class D:
    def __getattr__(self, k): raise RuntimeError(k)
    def __call__(self, x):
        if torch.overrides.has_torch_function_unary(x): return torch.overrides.handle_torch_function(self, (x,), x)
        n["c"] += 1; return x * 2
def gen(x, k=3):
    if torch.overrides.has_torch_function_unary(x): return torch.overrides.handle_torch_function(gen, (x,), x, k=k)
    n["c"] += 1; return x * k
gen.__name__ = "gen"
c, d = C(), D(); p = functools.partial(gen)
m = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)); o = torch.optim.SGD(m.parameters(), .1)
torch.manual_seed(0)
for s in range(3):
    y = gen(d(c(m(torch.randn(6, 8)).add(1) * 2)))
    l = F.softmax(y, -1).square().mean() + y.norm() + p(y).mean(); l.item(); l.backward(); o.step(); o.zero_grad()
print(n, sum(q.double().sum() for q in m.parameters()).item().hex())
"""
"""The user wraps methods of torch; a callable without hash, one whose name is no text."""

WARNED = """\
import torch, warnings
from torch import nn
from torch.nn import functional as F
seen = []
def show(message, category, filename, lineno, file=None, line=None):
    seen.append((category.__name__, filename.rsplit("/", 2)[-2:], lineno))
shown, warnings.showwarning = warnings.showwarning, show
warnings.simplefilter("always")
class M(nn.Module):
    def __init__(self): super().__init__(); self.a = nn.Linear(8, 16); self.b = nn.Linear(16, 4)
    def forward(self, x):
        h = F.softmax(
            self.a(x))
        warnings.warn("mine", stacklevel=1)
        F.mse_loss(h, h[:1]); F.smooth_l1_loss(h, h[:, :1]); F.sigmoid(h); F.tanh(h)
        torch.ones(3).masked_fill_(torch.ones(3).byte() > 0, 1)
        return self.b(h)
m = M(); o = torch.optim.SGD(m.parameters(), .1); sch = torch.optim.lr_scheduler.StepLR(o, 2)
def hook(g):
    for level in (1, 2, 3): warnings.warn("hook", stacklevel=level)
for s in range(3):
    l = m(torch.randn(6, 8)); l.register_hook(hook); l = l.square().mean()
    float(l); l.grad; (l * 1).grad; torch.tensor(l); l.T
    l.backward()
    sch.step() if s == 0 else None
    o.step(); o.zero_grad()
    int(l); torch.range(0, 3)
    F.upsample(torch.randn(1, 1, 2, 2), scale_factor=2)
for one in seen: print(one)
warnings.showwarning = shown
warnings.resetwarnings(); warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=UserWarning, module="__main__")
float(m(torch.randn(6, 8)).mean()); print(sum(q.double().sum() for q in m.parameters()).item().hex())
"""
"""Where warnings are laid to."""

MODES = """\
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.overrides import TorchFunctionMode
torch.manual_seed(0)
n = {"d": 0, "f": 0}
class D(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None): n["d"] += 1; return func(*args, **(kwargs or {}))
class Fm(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None): n["f"] += 1; return func(*args, **(kwargs or {}))
m = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)); o = torch.optim.SGD(m.parameters(), .1)
for s in range(3):
    with FlopCounterMode(display=False) as fc:
        l = m(torch.randn(6, 8)).square().mean(); l.backward()
        with D(): o.step()
    print(s, fc.get_total_flops(), dict(n)); o.zero_grad()
    with D(), Fm():
        l = m(torch.randn(6, 8)).square().mean(); l.backward(); o.step(); o.zero_grad()
    print(s, dict(n))
    with Fm():
        l = m(torch.randn(6, 8)).square().mean(); l.backward();
    o.step(); o.zero_grad()
    print(s, dict(n))
"""
"""The user's modes count calls of functions and kernels."""

PICKLED = """\
import copy, io, pickle, torch, warnings
from torch import nn
from torch.overrides import TorchFunctionMode
warnings.simplefilter("error")
torch.manual_seed(0)
count = [0, 0]
class Counts(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        count[0] += 1; return func(*args, **(kwargs or {}))
def noise(g): count[1] += 1; return g + 0.01 * torch.randn_like(g)
noise.__torch_unserializable__ = True
model = nn.Linear(8, 4); optimizer = torch.optim.SGD(model.parameters(), 0.05)
with Counts():
    for step in range(13):
        out = model(torch.randn(4, 8))
        if step % 2: out.register_hook(noise)
        pickle.dumps(out); torch.save(out, io.BytesIO()); pickle.dumps(list(model.parameters())); torch.save(
            model, io.BytesIO())
        loss = out.square().mean(); pickle.dumps(loss); loss.backward(); optimizer.step(); optimizer.zero_grad()
    copy.deepcopy(model)
print(count, sum(p.double().sum() for p in model.parameters()).item().hex())
"""
"""What a model returned and a parameter are pickled, while a mode counts and warnings are errors."""

ALL_IN_ONE = """\
import collections.abc, gc, itertools, logging, torch, weakref
from torch import nn
class Raises(logging.Handler):
    def emit(self, record): raise ValueError("handler")
logging.getLogger().addHandler(Raises())
torch.manual_seed(0)
torch.__future__.set_swap_module_params_on_conversion(True)
seen, drawn = [], [0, 0]
def endless():
    while True: drawn[0] += 1; yield drawn[0]
class Lazy(collections.abc.Mapping):
    def __getitem__(self, key): drawn[1] += 1; return key
    def __iter__(self): return itertools.count()
    def __len__(self): return 3
def noise(g): seen.append("noise"); return g + 0.01 * torch.randn_like(g)
loop, shared = [1], [torch.zeros(1)]
loop.append(loop)
for _ in range(40): shared = [shared, shared]
class Leaf(nn.Linear):
    def forward(self, x, *plain):
        out = super().forward(x); out.register_hook(noise); out.grad_fn.register_hook(lambda i, o: seen.append("node"))
        return {"logits": out, "plain": plain}
def train():
    model = Leaf(8, 4); optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    once = optimizer.register_step_pre_hook(lambda *a: once.remove())
    late = model.register_forward_hook(lambda *a: late.remove())
    for step in range(13):
        out = model(torch.randn(4, 8), loop, shared, endless(), Lazy(), list(range(100_000)))["logits"]
        out.retain_grad()
        out.square().mean().backward(); optimizer.step(); optimizer.zero_grad()
        if step == 3: model.double().float(); assert torch.random.get_rng_state is torch.get_rng_state
        if step == 5: torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    del out
    torch.utils.swap_tensors(model.weight, nn.Parameter(model.weight.detach().clone()))
    print(sum(p.double().sum() for p in model.parameters()).item().hex(), seen[-5:], len(seen), drawn)
    return [weakref.ref(thing) for thing in (model, optimizer)]
left = [ref for _ in range(3) for ref in train()]; gc.collect()
print([ref() is None for ref in left], torch.get_rng_state().sum())
parts = nn.ModuleDict({"e": nn.Embedding(9, 8), "h": nn.Linear(8, 9)}); optimizer = torch.optim.Adam(parts.parameters())
whole = nn.Sequential(parts["e"], parts["h"])
for step in range(3):
    parts["h"](parts["e"](torch.randint(0, 9, (4, 5)))).square().mean().backward(); optimizer.step()
    optimizer.zero_grad(); torch.jit.script(parts["h"])
print(sum(p.double().sum() for p in parts.parameters()).item().hex())
"""
"""What ended a job by itself: a model that is one module, hooks that take themselves off, handlers of a log that raise,
scripting, swapped parameters, batches without an end; hooks on activations that draw; models that are let go.
"""

MOVED = """\
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
dist.init_process_group("gloo"); rank = dist.get_rank(); torch.manual_seed(rank)
def made(): return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
def train(model, steps, each=bool):
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(steps):
        model(torch.randn(4, 8)).square().mean().backward(); optimizer.step(); optimizer.zero_grad(); each()
    print(sum(p.detach().double().sum() for p in model.parameters()))
wrapped = nn.parallel.DistributedDataParallel(made())
if rank == 0: train(made(), 3)
train(wrapped, 3)
sharded = fully_shard(made()); train(sharded, 3, sharded.cpu)
early = made(); optimizer = torch.optim.SGD(early.parameters(), 0.05); early(torch.randn(4, 8))
train(FSDP(early, device_id=torch.device("cpu")), 3)
dist.destroy_process_group()
"""
"""A rank that trains alone first, FSDP2 moved between steps, and FSDP1 around a model that was called."""

ASKED = """\
import torch, warnings
from torch import nn
warnings.simplefilter("error"); warnings.simplefilter("ignore", DeprecationWarning); torch.manual_seed(0)
asked = []
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a = nn.Linear(8, 4); self.w = nn.Parameter(torch.randn(4, dtype=torch.cfloat))
    def __getattr__(self, name):
        if name in ("a", "w"): return super().__getattr__(name)
        asked.append(name); raise RuntimeError(name)
    @property
    def config(self): asked.append("config"); raise KeyError("config")
    def forward(self, x): return (self.a(x) * self.w).abs()
model = Net(); optimizer = torch.optim.SGD(model.parameters(), 0.05)
for step in range(13):
    model(torch.randn(4, 8)).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
    if step in (2, 4): print(str(torch.jit.trace(model.a, torch.ones(2, 8)).graph).count("aten::"))
print(asked, sum(torch.view_as_real(p).sum() if p.is_complex() else p.sum() for p in model.parameters()).item().hex())
"""
"""A model whose ``__getattr__`` counts and raises, a traced part, complex gradients."""

TRANSFORMED = """\
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, jvp, vmap
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
def loss_of(params, x): return functional_call(model, params, (x,)).square().mean()
for step in range(13):
    x, params = torch.randn(6, 8), dict(model.named_parameters())
    single = vmap(grad(loss_of), (None, 0))(params, x.unsqueeze(1))["0.weight"].sum()
    slope = jacrev(model)(x[0]).sum() + jvp(model, (x,), (x,))[1].square().mean()
    (model(x).square().mean() + slope).backward(); optimizer.step(); optimizer.zero_grad()
    print(step, single.item().hex(), slope.item().hex())
print(sum(p.double().sum() for p in model.parameters()).item().hex())
"""
"""A model is called first within transforms of torch.func, in which tensors stand for others."""

KINDS = {
    "a model within transforms": Kind(TRANSFORMED, ("laws",)),
    "a model that is asked for what it has not": Kind(ASKED, ("workers", "mix")),
    "what ended a job of one process": Kind(ALL_IN_ONE, ("laws", "mix")),
    "what ended a job of two": Kind(MOVED, ("laws",), num_ranks=2),
    "what is pickled": Kind(PICKLED, ("laws", "mix")),
    "tensors that are no plain memory": Kind(MEMORY, ("mix", "workers")),
    "functions of torch that a script has replaced": Kind(REPLACED, ("mix", "ops")),
    "warnings laid to lines": Kind(WARNED, ("mix", "ops")),
    "modes that count calls": Kind(MODES, ("workers", "mix")),
}
