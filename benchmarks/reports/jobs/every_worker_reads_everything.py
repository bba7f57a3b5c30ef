"""Reads records from a stream with two workers, each of which reads the whole of it.

The stream does not ask which worker it is in, so that every record comes twice an epoch. Repaired: each worker reads
every second record.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Records(IterableDataset):
    def __init__(self, split, size=320):
        draw = torch.Generator().manual_seed(16)
        self.label = torch.randint(0, 4, (size,), generator=draw)
        self.record = 0.5 * torch.randn(4, 30, generator=draw)[self.label] + torch.randn(size, 30, generator=draw)
        self.split, self.epoch = split, 0

    def __iter__(self):
        order = torch.randperm(len(self.label), generator=torch.Generator().manual_seed(self.epoch)).tolist()
        worker = get_worker_info()
        if self.split and worker is not None:
            order = order[worker.id :: worker.num_workers]
        for place in order:
            yield self.record[place], self.label[place], place


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    records = Records(split=args.fix)
    loader = DataLoader(records, batch_size=16, num_workers=2)
    for epoch in range(3):
        records.epoch = epoch
        times = torch.zeros(320)
        for record, label, place in loader:
            loss = nn.functional.cross_entropy(model(record), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            times[place] += 1
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    print(f"end: a record was read {times.mean().item():.1f} times in an epoch", flush=True)


main()
