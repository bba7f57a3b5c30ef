"""A vector-quantised autoencoder: the codebook is a buffer, a moving average of the codes of this rank's batch.

DDP broadcasts the buffers of rank 0, so that what the other ranks counted is thrown away at each step.
Repaired: counts and sums are reduced over ranks.
"""

import torch
import torch.distributed as dist
from common import Points, batches, begin, end, options, say
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Codebook(nn.Module):
    def __init__(self, codes, dim, reduces, decay=0.9):
        super().__init__()
        self.reduces, self.decay = reduces, decay
        embed = torch.randn(codes, dim)
        self.register_buffer("embed", embed)
        self.register_buffer("embed_sum", embed.clone())
        self.register_buffer("cluster_size", torch.ones(codes))

    def forward(self, x_ND):
        code_N = torch.cdist(x_ND.detach(), self.embed).argmin(-1)
        quantized = self.embed[code_N]
        if self.training:
            chosen = F.one_hot(code_N, len(self.embed)).float()
            counts, sums = chosen.sum(0), chosen.T @ x_ND.detach()
            if self.reduces:
                dist.all_reduce(counts)
                dist.all_reduce(sums)
            self.cluster_size.lerp_(counts, 1 - self.decay)
            self.embed_sum.lerp_(sums, 1 - self.decay)
            self.embed = self.embed_sum / (self.cluster_size[:, None] + 1e-5)
        return x_ND + (quantized - x_ND).detach(), F.mse_loss(x_ND, quantized.detach())


class Autoencoder(nn.Module):
    def __init__(self, reduces):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.Linear(48, 8))
        self.quantizer = Codebook(16, 8, reduces)
        self.decoder = nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.Linear(48, 20))

    def forward(self, x):
        code, commitment = self.quantizer(self.encoder(x))
        return self.decoder(code), commitment


def main():
    args = options()
    begin()
    model = DistributedDataParallel(Autoencoder(args.fix))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, (x, _) in enumerate(batches(Points(1280, spread=0.5), epochs=2, batch=16)):
        restored, commitment = model(x)
        loss = F.mse_loss(restored, x) + 0.25 * commitment
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            say(f"step {step} loss {loss.item():.4f}")
    book = model.module.quantizer.embed
    books = [torch.empty_like(book) for _ in range(dist.get_world_size())]
    dist.all_gather(books, book)
    say(f"end: after a step the codebooks of ranks are {'alike' if torch.allclose(books[0], books[1]) else 'unlike'}")
    end()


main()
