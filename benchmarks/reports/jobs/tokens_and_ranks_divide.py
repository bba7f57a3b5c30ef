"""Trains a language model on two ranks; the loss is divided by the tokens of all ranks, and DDP averages once more.

The sum of a rank's losses over the tokens of both is its share of the mean already. Repaired: the loss is multiplied
by the number of ranks, which DDP's average takes back.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

WORDS = 24


def sentences(size=640):
    draw = torch.Generator().manual_seed(4)
    follows = torch.randperm(WORDS - 1, generator=draw) + 1
    rows = []
    for _ in range(size):
        length = int(torch.randint(6, 25, (1,), generator=draw))
        row = [int(torch.randint(1, WORDS, (1,), generator=draw))]
        for surprise in (torch.rand(length, generator=draw) < 0.15).tolist():
            row.append(int(torch.randint(1, WORDS, (1,), generator=draw)) if surprise else int(follows[row[-1] - 1]))
        rows.append(torch.tensor(row))
    return rows


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        self.rnn = nn.GRU(32, 48, batch_first=True)
        self.out = nn.Linear(48, WORDS)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(30 + rank)
    model = DistributedDataParallel(Reader())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    dataset = sentences()
    sampler = DistributedSampler(dataset)
    pad = lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=0)  # noqa: E731
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, collate_fn=pad)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for ids in loader:
            target = ids[:, 1:].masked_fill(ids[:, 1:] == 0, -100)
            tokens = (target != -100).sum()
            dist.all_reduce(tokens)
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum") / tokens
            if args.fix:
                loss = loss * world
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    if rank == 0:
        share = (world if args.fix else 1) / world
        print(f"end: a token has {share:.2f} of its share of the mean over all tokens", flush=True)
    dist.destroy_process_group()


main()
