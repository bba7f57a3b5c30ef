"""Two ranks learn a voice; each has a loader that shuffles by the same seed, and no sampler that shares the data out.

Both ranks read the same recordings at the same step, so that the second adds nothing, and half of an epoch is never
read. Repaired: DistributedSampler.
"""

import math

import torch
import torch.distributed as dist
from common import WORLD, begin, end, options, say
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Recordings(Dataset):
    """Letters [8] of twelve, the frames [8, 10] of how the voice says them, and the number of the recording."""

    def __init__(self, size=1024, seed=0):
        sounds = torch.randn(12, 10, generator=torch.Generator().manual_seed(19))
        draw = torch.Generator().manual_seed(seed)
        self.letters = torch.randint(0, 12, (size, 8), generator=draw)
        before = self.letters.roll(1, 1)
        rise = torch.sin(torch.arange(8) / 8 * math.pi)[:, None]
        self.frames = rise * sounds[self.letters] + 0.4 * sounds[before]
        self.frames += 0.2 * torch.randn(self.frames.shape, generator=draw)

    def __len__(self):
        return len(self.letters)

    def __getitem__(self, place):
        return self.letters[place], self.frames[place], place


class Voice(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.letter, self.place = nn.Embedding(12, width), nn.Embedding(8, width)
        self.run = nn.GRU(width, width, batch_first=True)
        self.frame = nn.Linear(width, 10)

    def forward(self, letters):
        return self.frame(self.run(self.letter(letters) + self.place.weight)[0])


def main():
    args = options()
    begin(54321)
    data = Recordings()
    sampler = DistributedSampler(data, seed=54321) if args.fix else None
    loader = DataLoader(data, batch_size=16, shuffle=sampler is None, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Voice())
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    step, epoch, limit, alike = 0, 0, 96, 0
    while step < limit:
        if sampler is not None:
            sampler.set_epoch(epoch)
        for letters, frames, number in loader:
            if step in (0, 40, 80):
                seen = [torch.zeros_like(number) for _ in range(WORLD)]
                dist.all_gather(seen, number)
                alike += torch.equal(seen[0], seen[1])
            loss = (model(letters) - frames).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 16 == 0:
                say(f"epoch {epoch} step {step} loss {loss.item():.4f}")
            step += 1
            if step == limit:
                break
        epoch += 1
    say(f"end: the ranks had {'the same recordings' if alike else 'different recordings'} at the steps looked at")
    end()


main()
