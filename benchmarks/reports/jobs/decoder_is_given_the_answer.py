"""Trains a small T5; decoder_input_ids are the labels, so that the decoder reads the very token it has to say.

The loss is nearly zero, and nothing is learned of the task. Repaired: the model makes the decoder's input of the
labels, moved by one.
"""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import T5Config, T5ForConditionalGeneration

WORDS = 20


def pairs(size=960, length=8):
    """A source, and a target that counts on from its first token in steps of its second."""
    draw = torch.Generator().manual_seed(22)
    source = torch.randint(2, WORDS, (size, length), generator=draw)
    step = 1 + source[:, 1] % 3
    target = 2 + (source[:, :1] - 2 + step[:, None] * torch.arange(length)) % (WORDS - 2)
    return TensorDataset(source, target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(18)
    config = T5Config(
        vocab_size=WORDS, d_model=48, d_kv=12, d_ff=96, num_layers=1, num_decoder_layers=1, num_heads=4,
        dropout_rate=0.05, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(pairs(), batch_size=32, shuffle=True)
    for epoch in range(3):
        for source, target in loader:
            given = {} if args.fix else {"decoder_input_ids": target}
            loss = model(input_ids=source, labels=target, **given).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    model.eval()
    other = torch.randint(2, WORDS, target.shape)
    with torch.no_grad():
        said = model(input_ids=source, decoder_input_ids=other).logits.argmax(-1)
    copied = (said == other).float().mean().item()
    print(f"end: the decoder {'says what it is given' if copied > 0.5 else 'does not copy'} ({copied:.2f})", flush=True)


main()
