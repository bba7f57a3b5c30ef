"""Trainings of a small language model on meshes of several axes, by torch's own means; the mode is the name of a
function. Data-parallel replicas read samples of their own, all other ranks those of their replica.

Letters: B batch, L sequence length, D model width, V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from gallery.problems import CausalLM
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

D, V, L, B = 16, 64, 12, 8
SAMPLES = 2048
LR = 0.01
PLANTED_AT = 4
"""The step from which on a fault that changes weights is there."""


class Block(nn.Module):
    """x + down(tanh(up(norm(x))))."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.up = nn.Linear(D, 2 * D)
        self.down = nn.Linear(2 * D, D)

    def forward(self, x_BLD: Tensor) -> Tensor:
        return x_BLD + self.down(torch.tanh(self.up(self.norm(x_BLD))))


class Gathered(torch.autograd.Function):
    """The pieces [B, L / N, D] of all ranks of a group, as one sequence; backwards the sum of what each has of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        pieces = [torch.empty_like(x).contiguous() for _ in range(dist.get_world_size(group))]
        dist.all_gather(pieces, x.contiguous(), group=group)
        return torch.cat(pieces, dim=1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        total = grads[0].clone().contiguous()
        dist.all_reduce(total, group=ctx.group)
        return total.chunk(dist.get_world_size(ctx.group), dim=1)[dist.get_rank(ctx.group)], None


class Causal(nn.Module):
    """x + attention(x), in which a position sees those before it; the ranks of ``group`` have equal pieces of the
    sequence, in order, and gather keys and values.
    """

    def __init__(self, group: Any) -> None:
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D)
        self.group = group

    def forward(self, x_BLD: Tensor) -> Tensor:
        q, k, v = self.qkv(x_BLD).chunk(3, dim=-1)
        k, v = (Gathered.apply(each, self.group) for each in (k, v))
        start, size = dist.get_rank(self.group) * q.shape[1], q.shape[1]
        seen = torch.arange(k.shape[1])[None] <= torch.arange(start, start + size)[:, None]
        scores = (q @ k.transpose(1, 2) / D**0.5).masked_fill(~seen, float("-inf"))
        return x_BLD + scores.softmax(-1) @ v


class Model(nn.Module):
    """Embedding, ``layers`` and a head; the first or the last may be absent, as on a stage."""

    def __init__(self, layers: dict[str, nn.Module]) -> None:
        super().__init__()
        self.embed: nn.Module | None = nn.Embedding(V, D)
        self.layers = nn.ModuleDict(layers)
        self.norm: nn.Module | None = nn.LayerNorm(D)
        self.head: nn.Module | None = nn.Linear(D, V)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.embed is None else self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        x = x if self.norm is None else self.norm(x)
        return x if self.head is None else self.head(x)


@dataclass
class Job:
    """One training of one rank. ``fault`` is planted on ``bad`` ranks; ``ends`` are loss and weights at the end."""

    steps: int
    fault: str = ""
    bad: tuple[int, ...] = ()

    def is_bad(self, fault: str) -> bool:
        """Whether ``fault`` is planted on this rank."""
        return fault == self.fault and dist.get_rank() in self.bad

    @property
    def lr(self) -> float:
        """Of a frozen rank 0, so that it updates nothing."""
        return 0.0 if self.is_bad("frozen") else LR

    def batches(self, replicas: int, replica: int) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs, labels) [B, L] of each step of one replica."""
        rows = CausalLM().dataset(SAMPLES, seed=1)
        seed = 5 if self.is_bad("another data seed") else 0
        sampler: DistributedSampler[Any] = DistributedSampler(rows, num_replicas=replicas, rank=replica, seed=seed)
        loader, step, epoch = DataLoader(rows, batch_size=B, sampler=sampler), 0, 0
        while True:
            sampler.set_epoch(epoch)
            for batch in loader:
                if step == self.steps:
                    return
                yield batch["input_ids"][:, :L], batch["labels"][:, 1 : L + 1]
                step += 1
            epoch += 1

    def loss(self, logits: Tensor, labels_BL: Tensor) -> Tensor:
        """Mean cross-entropy, times 1.5 where that is the fault."""
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels_BL.flatten())
        return loss * 1.5 if self.is_bad("loss x 1.5") else loss

    def after(self, step: int, param: Tensor) -> None:
        """Change ``param`` a little after ``step``, where that is the fault."""
        if step == PLANTED_AT and self.is_bad("weight drifts"):
            with torch.no_grad():
                (param.to_local() if hasattr(param, "to_local") else param).mul_(1.001)


def digest(model: nn.Module) -> str:
    """Of all local weights."""
    made = hashlib.sha256()
    for param in model.parameters():
        local = param.to_local() if hasattr(param, "to_local") else param
        made.update(local.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def plain(make: Callable[[], nn.Module] = Block, layers: int = 2) -> Model:
    """The model that all ranks begin with."""
    torch.manual_seed(0)
    return Model({str(number): make() for number in range(layers)})


def train(job: Job, model: nn.Module, replicas: int, replica: int, *, norm: Tensor, reduce: Any = None) -> str:
    """The usual loop; ``reduce()`` is called between backward and the update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    for step, (inputs, labels) in enumerate(job.batches(replicas, replica)):
        job.loss(model(inputs), labels).backward()
        if reduce is not None:
            reduce()
        optimizer.step()
        optimizer.zero_grad()
        job.after(step, norm)
    return digest(model)


def _cut(model: Model, tp: DeviceMesh, *, sequence: bool = False) -> None:
    """Tensor parallelism in each block; with ``sequence``, all between embedding and head is on pieces of the sequence,
    norms included.
    """
    pieces: dict[str, Any] = {"input_layouts": Shard(1)} if sequence else {}
    ends: dict[str, Any] = {"output_layouts": Shard(1)} if sequence else {}
    norms: dict[str, Any] = {"norm": SequenceParallel()} if sequence else {}
    for layer in model.layers.values():
        parallelize_module(layer, tp, {**norms, "up": ColwiseParallel(**pieces), "down": RowwiseParallel(**ends)})
    if sequence:
        embed = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        head = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
        parallelize_module(model, tp, {"embed": embed, "norm": SequenceParallel(), "head": head})


def tp(job: Job) -> str:
    """Tensor parallelism alone."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = plain()
    _cut(model, mesh)
    return train(job, model, 1, 0, norm=model.layers["0"].norm.weight)


def ddp_tp(job: Job) -> str:
    """DDP over tensor parallelism."""
    from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = plain()
    _cut(model, mesh["tp"])
    _pre_dp_module_transform(model)
    wrapped = DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    return train(job, wrapped, mesh["dp"].size(), mesh.get_local_rank("dp"), norm=model.layers["0"].norm.weight)


def hand_tp(job: Job) -> str:
    """Gradients averaged by hand over tensor parallelism."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = plain()
    _cut(model, mesh["tp"])

    def reduce() -> None:
        for param in model.parameters():
            grad: Any = param.grad
            local = grad.to_local() if hasattr(grad, "to_local") else grad
            dist.all_reduce(local, group=mesh.get_group("dp"))
            local /= mesh["dp"].size()

    norm = model.layers["0"].norm.weight
    return train(job, model, mesh["dp"].size(), mesh.get_local_rank("dp"), norm=norm, reduce=reduce)


def fsdp2_tp(job: Job) -> str:
    """FSDP2 over tensor and sequence parallelism."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = plain()
    _cut(model, mesh["tp"], sequence=True)
    for each in (*model.layers.values(), model):
        fully_shard(each, mesh=mesh["dp"])
    return train(job, model, mesh["dp"].size(), mesh.get_local_rank("dp"), norm=model.layers["0"].norm.weight)


def hsdp_tp(job: Job) -> str:
    """FSDP2 with replicas of shards, over tensor parallelism."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 4, 2), mesh_dim_names=("rep", "shard", "tp"))
    model = plain()
    _cut(model, mesh["tp"], sequence=True)
    for each in (*model.layers.values(), model):
        fully_shard(each, mesh=mesh["rep", "shard"])
    dp = dist.get_rank() // 2
    return train(job, model, dist.get_world_size() // 2, dp, norm=model.layers["0"].norm.weight)


def _staged(job: Job, wrap: Callable[[nn.Module, DeviceMesh], nn.Module], num_stages: int) -> str:
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (num_stages, world // num_stages), mesh_dim_names=("pp", "dp"))
    at, last = mesh.get_local_rank("pp"), num_stages - 1
    model = plain(layers=num_stages)
    model.layers = nn.ModuleDict({str(at): model.layers[str(at)]})
    model.embed = model.embed if at == 0 else None
    model.norm, model.head = (model.norm, model.head) if at == last else (None, None)
    stage = PipelineStage(wrap(model, mesh["dp"]), at, num_stages, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, 4, loss_fn=job.loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    norm = model.layers[str(at)].norm.weight
    for step, (inputs, labels) in enumerate(job.batches(mesh["dp"].size(), mesh.get_local_rank("dp"))):
        if at == 0:
            schedule.step(inputs)
        elif at == last:
            schedule.step(target=labels)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        job.after(step, norm)
    return digest(model)


def pp(job: Job) -> str:
    """A pipeline alone."""
    return _staged(job, lambda model, mesh: model, dist.get_world_size())


def pp_ddp(job: Job) -> str:
    """A pipeline of two stages of DDP."""
    return _staged(job, lambda model, mesh: DistributedDataParallel(model, process_group=mesh.get_group()), 2)


def pp_fsdp2(job: Job) -> str:
    """A pipeline of two stages of FSDP2."""

    def wrap(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        for each in (*model.layers.values(), model):  # type: ignore[union-attr, operator]
            fully_shard(each, mesh=mesh)
        return model

    return _staged(job, wrap, 2)


class Exchanged(torch.autograd.Function):
    """all_to_all of equal pieces of dimension 0, forwards and backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        out = torch.empty_like(grads[0])
        dist.all_to_all_single(out, grads[0].contiguous(), group=ctx.group)
        return out, None


class Experts(nn.Module):
    """Two experts, one on each rank of ``group``; every token goes to the one that its position says."""

    def __init__(self, group: Any, place: int) -> None:
        super().__init__()
        self.gate = nn.Linear(D, 2)
        experts = [nn.Sequential(nn.Linear(D, 2 * D), nn.Tanh(), nn.Linear(2 * D, D)) for _ in range(2)]
        self.expert = experts[place]
        nn.init.zeros_(self.expert[2].bias)  # equal everywhere at first
        self.group = group

    def forward(self, x_BLD: Tensor) -> Tensor:
        weight = torch.sigmoid(self.gate(x_BLD)[..., :1])
        first, second = x_BLD[:, ::2], x_BLD[:, 1::2]
        size = min(first.shape[1], second.shape[1])
        sent = torch.stack([first[:, :size], second[:, :size]])
        back = Exchanged.apply(self.expert(Exchanged.apply(sent, self.group)), self.group)
        out = torch.zeros_like(x_BLD)
        out[:, : 2 * size : 2], out[:, 1 : 2 * size : 2] = back[0], back[1]
        return x_BLD + weight * out


def _expert_mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("edp", "ep"))


def _reduce_experts(job: Job, model: nn.Module, mesh: DeviceMesh) -> Callable[[], None]:
    def reduce() -> None:
        for name, param in model.named_parameters():
            if "expert." in name and param.grad is not None:
                mean = param.grad.clone()
                dist.all_reduce(mean, group=mesh.get_group("edp"))
                mean /= dist.get_world_size()
                if not job.is_bad("expert not reduced"):
                    param.grad.copy_(mean)

    return reduce


def ep_ddp(job: Job) -> str:
    """Experts among data-parallel ranks: DDP reduces all else, the script each expert among its replicas."""
    mesh = _expert_mesh()
    model = plain(lambda: Experts(mesh.get_group("ep"), mesh.get_local_rank("ep")))
    own = [name for name, _ in model.named_parameters() if "expert." in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
    wrapped = DistributedDataParallel(model)
    reduce = _reduce_experts(job, model, mesh)
    expert = model.layers["0"].expert[0].weight
    return train(job, wrapped, dist.get_world_size(), dist.get_rank(), norm=expert, reduce=reduce)


def ep_hand(job: Job) -> str:
    """The same with all gradients averaged by hand."""
    mesh = _expert_mesh()
    model = plain(lambda: Experts(mesh.get_group("ep"), mesh.get_local_rank("ep")))
    experts = _reduce_experts(job, model, mesh)

    def reduce() -> None:
        experts()
        for name, param in model.named_parameters():
            if "expert." not in name:
                dist.all_reduce(param.grad)
                param.grad /= dist.get_world_size()  # type: ignore[operator]

    expert = model.layers["0"].expert[0].weight
    return train(job, model, dist.get_world_size(), dist.get_rank(), norm=expert, reduce=reduce)


def ep_fsdp2(job: Job) -> str:
    """Experts with FSDP2, which cuts them among their replicas, all else among all ranks."""
    mesh = _expert_mesh()
    all_ranks = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    model = plain(lambda: Experts(mesh.get_group("ep"), mesh.get_local_rank("ep")))
    for layer in model.layers.values():
        fully_shard(layer.expert, mesh=mesh["edp"])
        fully_shard(layer, mesh=all_ranks)
    fully_shard(model, mesh=all_ranks)
    expert = model.layers["0"].expert[0].weight
    return train(job, model, dist.get_world_size(), dist.get_rank(), norm=expert)


def _in_pieces(job: Job, wrap: Callable[[nn.Module, DeviceMesh], nn.Module]) -> str:
    """Pairs of ranks hold halves of the same sequences; ``wrap`` averages gradients over all of the mesh."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "cp"))
    model = wrap(plain(lambda: Causal(mesh.get_group("cp"))), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr)
    half = slice(mesh.get_local_rank("cp") * L // 2, (mesh.get_local_rank("cp") + 1) * L // 2)
    for inputs, labels in job.batches(mesh["dp"].size(), mesh.get_local_rank("dp")):
        job.loss(model(inputs[:, half]), labels[:, half].contiguous()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest(model)


def cp_ddp(job: Job) -> str:
    """Context parallelism: pairs of ranks hold halves of the same sequences, and DDP averages over all."""
    return _in_pieces(job, lambda model, mesh: DistributedDataParallel(model))


def cp_fsdp2(job: Job) -> str:
    """Context parallelism with FSDP2 over both axes as one, as Accelerate and torchtitan do."""

    def wrap(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
        every = mesh["dp", "cp"]._flatten("dp_cp")
        for each in (*model.layers.values(), model):  # type: ignore[union-attr, operator]
            fully_shard(each, mesh=every)
        return model

    return _in_pieces(job, wrap)
