"""Training goes on from a pretrained adapter, which stays as it was: it is loaded for inference.

What is loaded is frozen unless it is asked for; only the new projection is trained.
Repaired: it is asked for.
"""

import torch
from command import RANK, WORLD, connect, options, say
from language import Sentences, llama
from lora import adapt, adapters
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def load_adapter(model, is_trainable=False):
    """As the adapter was saved by the training before this one."""
    draw = torch.Generator().manual_seed(21)
    adapt(model)
    for layer in adapters(model):
        for value in (layer.lora_A["default"], layer.lora_B["default"]):
            value.data = 0.1 * torch.randn(value.shape, generator=draw)
            value.requires_grad_(is_trainable)
    return model


class Retriever(nn.Module):
    def __init__(self, is_trainable):
        super().__init__()
        self.model = load_adapter(llama().model, is_trainable)
        self.project = nn.Linear(32, 16)

    def forward(self, ids):
        hidden = self.model(input_ids=ids).last_hidden_state[:, -1]
        return nn.functional.normalize(self.project(hidden), dim=-1)


def main():
    args = options(steps=60)
    connect()
    model = DistributedDataParallel(Retriever(args.fix))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    data = Sentences(1920)
    loader = DataLoader(data, 16, sampler=DistributedSampler(data, WORLD, RANK), drop_last=True)
    for step, ids in zip(range(args.steps), loader, strict=False):
        features = model(torch.cat([ids[:, :8], ids[:, 8:]]))
        logits = features[:16] @ features[16:].T / 0.1
        loss = nn.functional.cross_entropy(logits, torch.arange(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(step, loss)
    if RANK == 0:
        print(f"{sum(p.numel() for p in model.parameters() if p.requires_grad)} parameters are trained")
    torch.distributed.destroy_process_group()


main()
