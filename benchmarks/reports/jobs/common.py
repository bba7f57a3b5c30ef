"""What the jobs share: arguments, ranks, made-up data, a picture classifier and a small GPT.

Every job takes --fix (the repaired twin), and --resume where it is started twice.
"""

import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def options(**defaults):
    """The parsed command line: --fix, --resume, and an option of the type of each of ``defaults``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("--resume", action="store_true")
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    return parser.parse_args()


def begin(seed=0):
    """Join the group where there are ranks, and seed torch."""
    torch.set_num_threads(1)
    if WORLD > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(seed)


def end():
    if WORLD > 1:
        dist.destroy_process_group()


def say(*words):
    if RANK == 0:
        print(*words, flush=True)


class Points(Dataset):
    """Points [D] of C overlapping clouds, and their class."""

    def __init__(self, size=1024, dim=20, classes=5, seed=0, spread=1.0):
        centres_CD = torch.randn(classes, dim, generator=torch.Generator().manual_seed(17))
        draw = torch.Generator().manual_seed(100 + seed)
        self.label_N = torch.randint(0, classes, (size,), generator=draw)
        self.x_ND = centres_CD[self.label_N] + spread * torch.randn(size, dim, generator=draw)

    def __len__(self):
        return len(self.label_N)

    def __getitem__(self, place):
        return self.x_ND[place], int(self.label_N[place])


class Pictures(Dataset):
    """Pictures [C, 12, 12] of ten smooth templates under noise, and which template it was."""

    def __init__(self, size=640, channels=1, seed=0, noise=0.5, transform=None):
        rough = torch.randn(10, channels, 4, 4, generator=torch.Generator().manual_seed(23))
        templates = F.interpolate(rough, size=(12, 12), mode="bilinear")
        draw = torch.Generator().manual_seed(200 + seed)
        self.label_N = torch.randint(0, 10, (size,), generator=draw)
        self.pictures = templates[self.label_N] + noise * torch.randn(size, channels, 12, 12, generator=draw)
        self.transform = transform

    def __len__(self):
        return len(self.label_N)

    def __getitem__(self, place):
        picture = self.pictures[place]
        return picture if self.transform is None else self.transform(picture), int(self.label_N[place])


class Sentences(Dataset):
    """Rows [L + 1] of token ids, each drawn from four followers of the one before."""

    def __init__(self, size=512, length=24, vocab=48, seed=0, first=0):
        followers = torch.randint(first, vocab, (vocab, 4), generator=torch.Generator().manual_seed(31))
        draw = torch.Generator().manual_seed(300 + seed)
        rows_NL = torch.empty(size, length + 1, dtype=torch.long)
        rows_NL[:, 0] = torch.randint(first, vocab, (size,), generator=draw)
        for place in range(1, length + 1):
            chosen = torch.randint(0, 4, (size,), generator=draw)
            rows_NL[:, place] = followers[rows_NL[:, place - 1], chosen]
        self.rows_NL = rows_NL

    def __len__(self):
        return len(self.rows_NL)

    def __getitem__(self, place):
        return self.rows_NL[place]


def batches(data, epochs, batch=16, seed=5, **keys):
    """Batches of ``epochs`` shuffled epochs, of this rank's part where there are ranks."""
    if WORLD > 1:
        sampler = DistributedSampler(data, seed=seed)
        loader = DataLoader(data, batch_size=batch, sampler=sampler, drop_last=True, **keys)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            yield from loader
        return
    draw = torch.Generator().manual_seed(seed)
    loader = DataLoader(data, batch_size=batch, shuffle=True, generator=draw, drop_last=True, **keys)
    for _ in range(epochs):
        yield from loader


class Convolutions(nn.Module):
    """A small residual classifier of pictures: ``stem``, ``layer1``, ``layer2``, ``fc``."""

    def __init__(self, channels=1, width=12, classes=10, momentum=0.1):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width, momentum=momentum), nn.ReLU()
        )
        self.layer1 = self._block(width, momentum)
        self.layer2 = self._block(width, momentum)
        self.fc = nn.Linear(width * 9, classes)

    @staticmethod
    def _block(width, momentum):
        return nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width, momentum=momentum), nn.ReLU()
        )

    def features(self, x):
        x = F.max_pool2d(self.stem(x), 2)
        x = x + self.layer1(x)
        x = F.max_pool2d(x + self.layer2(x), 2)
        return x.flatten(1)

    def forward(self, x):
        return self.fc(self.features(x))


class Attention(nn.Module):
    """Causal self-attention of [B, L, D]."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def split(self, x_BLD):
        rows, length, dim = x_BLD.shape
        return x_BLD.view(rows, length, self.heads, dim // self.heads).transpose(1, 2)

    def forward(self, x_BLD):
        q, k, v = map(self.split, self.qkv(x_BLD).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(x_BLD.shape))


class Block(nn.Module):
    def __init__(self, dim, heads, attention=Attention):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(dim), attention(dim, heads)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x_BLD):
        x_BLD = x_BLD + self.attn(self.ln_1(x_BLD))
        return x_BLD + self.mlp(self.ln_2(x_BLD))


class GPT(nn.Module):
    """A decoder of two blocks; ``forward(ids_BL)`` returns logits [B, L, V]."""

    def __init__(self, vocab=48, length=24, dim=32, heads=2, layers=2, attention=Attention, positions=True):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.wpe = nn.Embedding(length, dim) if positions else None
        self.h = nn.ModuleList(Block(dim, heads, attention) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02 * math.sqrt(32 / dim) * 2)

    def forward(self, ids_BL):
        x_BLD = self.wte(ids_BL)
        if self.wpe is not None:
            x_BLD = x_BLD + self.wpe(torch.arange(ids_BL.shape[1]))
        for block in self.h:
            x_BLD = block(x_BLD)
        return self.lm_head(self.ln_f(x_BLD))


def next_token_loss(logits_BLV, targets_BL):
    return F.cross_entropy(logits_BLV.flatten(0, 1), targets_BL.flatten())
