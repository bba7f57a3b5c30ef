"""A training job that knows nothing of Trueline: `trial_job.py KIND [faulty]`, on one rank or, by RANK, on two."""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

KIND, FAULTY = sys.argv[1], sys.argv[2:] == ["faulty"]
WORDS, LENGTH, PAD = 30, 12, 0
SEVERAL = "RANK" in os.environ


def points():
    inputs = torch.randn(128, 16)
    return TensorDataset(inputs, (inputs @ torch.randn(16)).sin())


def sentences():
    lengths = torch.randint(4, LENGTH - 1, (128, 1))
    mask = (torch.arange(LENGTH) < lengths).long()
    return [
        {"input_ids": ids, "attention_mask": kept, "labels": torch.where(kept == 1, ids, -100)}
        for ids, kept in zip(torch.randint(1, WORDS, (128, LENGTH)) * mask, mask, strict=True)
    ]


class Sigmoid(torch.autograd.Function):
    """With a backward of its own, which lacks a term where it is faulty."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(y := x.sigmoid())
        return y

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (y if FAULTY else y * (1 - y))


class Regression(nn.Module):
    """With dropout and batch normalisation, neither of which is a fault."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
        self.over_time = nn.LSTM(4, 8, batch_first=not (KIND == "recurrence" and FAULTY))

    def forward(self, x):
        y = self.layers(x)
        if KIND == "reshaped":
            pieces = x.view(len(x), 4, 4)
            swapped = pieces.reshape(4, len(x), 4).transpose(0, 1) if FAULTY else pieces
            return y + swapped.sum((1, 2))[:, None] * y.sigmoid()
        if KIND == "recurrence":
            return y + self.over_time(x.view(len(x), 4, 4))[0].mean((1, 2))[:, None]
        if KIND == "softmax":
            return y * torch.softmax(x, dim=0 if FAULTY else 1).sum(1, keepdim=True)
        if KIND == "own-backward":
            return y + self.over_time(Sigmoid.apply(self.layers[0](x)).view(len(x), 8, 4))[0].mean((1, 2))[:, None]
        if KIND == "noise":
            return y + 0.1 * torch.randn_like(y)
        return y


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = (
            nn.Embedding(WORDS, 16),
            nn.GRU(16, 16, batch_first=True),
            nn.Linear(16, WORDS),
        )

    def forward(self, input_ids, attention_mask):
        run = partial(checkpoint, self._states, use_reentrant=False) if KIND == "checkpointed" else self._states
        hidden = run(self.embed(input_ids))
        if KIND == "pooled":
            kept = torch.ones_like(attention_mask) if FAULTY else attention_mask
            hidden = hidden + ((hidden * kept[..., None]).sum(1) / kept.sum(1)[:, None])[:, None]
        return self.head(hidden)

    def _states(self, x):
        return self.mix(x)[0]


def point_loss(model, inputs, targets):
    predicted = model(inputs)
    if KIND == "broadcast" and FAULTY:
        return ((predicted - targets) ** 2).mean()
    each = (predicted.squeeze(1) - targets) ** 2
    if KIND == "contrastive":
        logits = functional.normalize(predicted + inputs, dim=1) @ functional.normalize(inputs, dim=1).T
        return functional.cross_entropy(logits, torch.arange(len(inputs)))
    if KIND == "unseeded":
        return each.mean() * (1 + int.from_bytes(os.urandom(4)) / 2**32)
    if KIND == "weighted":
        weights = torch.where(targets > 0, 3.0, 1.0)
        return (each * weights).sum() / weights.sum()
    if KIND == "sum" and FAULTY:
        return each.sum()
    if KIND == "last-row" and FAULTY:
        return each[:-1].mean()
    return each.mean()


def sentence_loss(model, input_ids, attention_mask, labels):
    logits = model(input_ids, attention_mask)[:, :-1]
    targets = labels[:, 1:]
    if KIND in ("padding-counts", "checkpointed") and FAULTY:
        targets = torch.where(targets == -100, PAD, targets)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


if SEVERAL:
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['STORE']}", rank=int(os.environ["RANK"]), world_size=2
    )
torch.manual_seed(3)
of_words = KIND in ("padding-counts", "pooled", "checkpointed", "accumulated")
dataset = sentences() if of_words else points()
loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset) if SEVERAL else None)
if KIND == "by-hand":
    loader = zip(*(column.split(8) for column in dataset.tensors), strict=True)
model = Decoder() if of_words else Regression()
if KIND == "sum" and SEVERAL:
    torch.distributed.fsdp.fully_shard(model)
elif SEVERAL:
    model = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
updates = torch.optim.AdamW(model.parameters(), lr=1e-3)
for number, batch in enumerate([] if KIND == "no-update" else loader):
    micro_batches = 2 if KIND == "accumulated" else 1
    loss = sentence_loss(model, **batch) if of_words else point_loss(model, *batch)
    (loss / micro_batches).backward()
    if (number + 1) % micro_batches == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        updates.step()
        updates.zero_grad()
with open("ended", "w") as file:
    file.write("a model that was trained")
