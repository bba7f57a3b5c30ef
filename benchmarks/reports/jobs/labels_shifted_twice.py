"""Trains a small GPT-2; the dataset moves the labels by one token, and the model does it again.

It learns which token comes after the next one. Repaired: the labels are the inputs.
"""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

WORDS = 32


def texts(fix, size=640, length=25):
    draw = torch.Generator().manual_seed(21)
    follows = torch.randperm(WORDS, generator=draw)
    ids = torch.randint(0, WORDS, (size, 1), generator=draw)
    for _ in range(length - 1):
        new = torch.randint(0, WORDS, (size,), generator=draw)
        surprise = torch.rand(size, generator=draw) < 0.1
        ids = torch.cat([ids, torch.where(surprise, new, follows[ids[:, -1]])[:, None]], dim=1)
    x = ids[:, :-1].contiguous()
    return TensorDataset(x, x if fix else ids[:, 1:].contiguous())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(17)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=32, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(texts(args.fix), batch_size=32, shuffle=True)
    for epoch in range(4):
        for ids, labels in loader:
            loss = model(input_ids=ids, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    model.eval()
    with torch.no_grad():
        guess = model(input_ids=ids).logits.argmax(-1)
    right = (guess[:, :-1] == ids[:, 1:]).float().mean().item()
    print(f"end: the next token is {'hardly ever' if right < 0.3 else 'often'} right ({right:.2f})", flush=True)


main()
