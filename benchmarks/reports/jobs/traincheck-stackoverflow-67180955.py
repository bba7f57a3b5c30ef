"""All workers of a DataLoader draw the same augmentations, and draw them again in every epoch.

The data set holds a generator of numpy, and each worker begins with a copy of it.
Repaired: each worker seeds the generator by its own seed.
"""

import numpy as np
import torch
from command import options, say
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Signals(Dataset):
    def __init__(self, n=512):
        draw = torch.Generator().manual_seed(5)
        self.labels = torch.randint(0, 5, (n,), generator=draw)
        waves = torch.randn(5, 64, generator=draw)
        self.signals = waves[self.labels] + 0.3 * torch.randn(n, 64, generator=draw)
        self.random = np.random.RandomState(0)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        shift = self.random.randint(0, 64)
        noise = torch.from_numpy(self.random.normal(0, 0.5, 64)).float()
        return self.signals[i].roll(shift) + noise, self.labels[i], noise


def seed_worker(_):
    info = get_worker_info()
    info.dataset.random = np.random.RandomState(info.seed % 2**32)


def main():
    args = options(steps=96)
    loader = DataLoader(
        Signals(), 16, shuffle=True, num_workers=2, drop_last=True, worker_init_fn=seed_worker if args.fix else None
    )
    model = nn.Sequential(
        nn.Conv1d(1, 16, 9, padding=4), nn.ReLU(), nn.AdaptiveMaxPool1d(4), nn.Flatten(), nn.Linear(64, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step, drawn = 0, []
    while step < args.steps:
        for x, y, noise in loader:
            loss = nn.functional.cross_entropy(model(x.unsqueeze(1)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            drawn.append(float(noise[0, 0]))
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    print(f"{len(set(drawn))} different augmentations in {len(drawn)} batches")


main()
