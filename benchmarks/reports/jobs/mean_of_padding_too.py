"""Classifies texts by the mean of a small BERT's last hidden states, those of the padding among them.

A text's vector depends on the longest text of its batch. Repaired: the mean is over the text's own tokens.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel

WORDS = 40


def texts(size=640):
    draw = torch.Generator().manual_seed(30)
    rows = []
    for label in torch.randint(0, 3, (size,), generator=draw).tolist():
        length = int(torch.randint(4, 25, (1,), generator=draw))
        ids = torch.randint(1, WORDS, (length,), generator=draw)
        topical = torch.rand(length, generator=draw) < 0.4
        rows.append((torch.where(topical, 1 + 3 * (ids % 12) + label, ids), label))
    return rows


def collate(rows):
    ids = nn.utils.rnn.pad_sequence([row for row, _ in rows], batch_first=True, padding_value=0)
    return ids, (ids != 0).long(), torch.tensor([label for _, label in rows])


class Classifier(nn.Module):
    def __init__(self, masked):
        super().__init__()
        self.masked = masked
        self.bert = BertModel(
            BertConfig(
                vocab_size=WORDS, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
                max_position_embeddings=32, pad_token_id=0,
            ),
            add_pooling_layer=False,
        )  # fmt: skip
        self.out = nn.Linear(48, 3)

    def forward(self, ids, mask):
        states = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        if not self.masked:
            return self.out(states.mean(dim=1))
        return self.out((states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(24)
    model = Classifier(masked=args.fix)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(texts(), batch_size=32, shuffle=True, collate_fn=collate)
    for epoch in range(4):
        for ids, mask, label in loader:
            loss = nn.functional.cross_entropy(model(ids, mask), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    model.eval()
    short = mask.sum(1).argmin()
    with torch.no_grad():
        alone = model(ids[short : short + 1, : mask[short].sum()], mask[short : short + 1, : mask[short].sum()])
        apart = (model(ids, mask)[short] - alone).abs().max().item()
    print(f"end: padding {'changes' if apart > 1e-3 else 'does not change'} the answer to a text", flush=True)


main()
