"""A training job that saves and resumes: `resume_job.py FOLDER [--resume] [--lose WHAT,…]`, by itself or by torchrun.

Of what a checkpoint holds WHAT is not loaded: weights, buffers, states, rate, schedule, samples, streams. `order`:
states are loaded for other parameters. `noise`: it does not repeat itself; `later`: not from the eighth update on.
`late`: it saves every fourth update. `all`: nothing is loaded. `none`: it makes no update once it resumes. `itself`: it
fails. `within`: the model computes its loss itself.
"""

import os
import sys
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

folder, resumes = sys.argv[1], "--resume" in sys.argv
lost = [word for option, words in pairwise(sys.argv) if option == "--lose" for word in words.split(",")]
if "itself" in lost:
    sys.exit(1)
world = int(os.environ.get("WORLD_SIZE", "1"))
if world > 1:
    dist.init_process_group("gloo")
rank = int(os.environ.get("RANK", "0"))
torch.manual_seed(1 if resumes and "weights" in lost else 0)  # what is not loaded is drawn anew
model = nn.Sequential(
    nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 12), nn.Linear(12, 4)
)


class WithLoss(nn.Module):
    """What libraries of language models return."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x, labels):
        logits = self.part(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


if "within" in lost:
    model = WithLoss(model)
net = nn.parallel.DistributedDataParallel(model) if world > 1 else model
updates = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(updates, 60)
draw = torch.Generator().manual_seed(1)
rows = TensorDataset(torch.randn(96, 6, generator=draw), torch.randint(4, (96,), generator=draw))
sampler = DistributedSampler(rows, num_replicas=world, rank=rank, seed=5)
step, path = 0, os.path.join(folder, f"last-{rank}.pt")
if resumes and "all" not in lost:
    saved = torch.load(path, weights_only=False)
    weights = {name: value for name, value in saved["model"].items() if name in dict(model.named_parameters())}
    buffers = {name: value for name, value in saved["model"].items() if name not in weights}
    model.load_state_dict(({} if "weights" in lost else weights) | ({} if "buffers" in lost else buffers), strict=False)
    if "order" in lost:
        states = saved["optimizer"]["state"]
        states[6], states[4] = {**states[6]}, {**states[4]}
        states[2], states[3] = states[3], states[2]
    if "states" not in lost:
        kept_rate = updates.param_groups[0]["lr"]
        updates.load_state_dict(saved["optimizer"])
    if "rate" in lost:
        updates.param_groups[0]["lr"] = 0.01
    elif "schedule" not in lost:
        schedule.load_state_dict(saved["schedule"])
        updates.param_groups[0]["lr"] = schedule.get_last_lr()[0]
    step = saved["step"]
start = 0 if "samples" in lost else step
per_epoch = 96 // world // 8
if resumes and not {"streams", "all"} & {*lost}:
    torch.set_rng_state(saved["streams"])
last = 0 if resumes and "none" in lost else 200
while step < last:
    epoch = start // per_epoch
    sampler.set_epoch(epoch)
    streams = torch.get_rng_state()
    batches = iter(DataLoader(rows, batch_size=8, sampler=sampler))
    torch.set_rng_state(streams)  # the loader draws a seed for workers that it does not have
    for number, (x, y) in enumerate(batches):
        if number < start % per_epoch:
            continue
        start += 1
        x = x + (torch.tensor(os.urandom(1)[0] / 1e4) if "noise" in lost or ("later" in lost and step > 7) else 0.0)
        loss = net(x, labels=y)["loss"] if "within" in lost else functional.cross_entropy(net(x), y)
        loss.backward()
        updates.step()
        updates.zero_grad()
        schedule.step()
        step += 1
        if step % (4 if "late" in lost else 1) == 0:
            state = {"model": model.state_dict(), "optimizer": updates.state_dict(), "schedule": schedule.state_dict()}
            torch.save({**state, "step": step, "streams": torch.get_rng_state()}, path)
