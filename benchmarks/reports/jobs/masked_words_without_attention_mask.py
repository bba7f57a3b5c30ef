"""Masked language modelling in which every word attends to the padding: the collator returns no attention mask.

Repaired: it returns one.
"""

import torch
from command import options, say
from language import PAD, Sentences
from transformers import BertConfig, BertForMaskedLM

MASK = 7


def bert():
    return BertForMaskedLM(
        BertConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=48,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=PAD,
        )
    )


class WholeWordMask:
    def __init__(self, with_attention_mask):
        self.with_attention_mask = with_attention_mask
        self.draw = torch.Generator().manual_seed(8)

    def __call__(self, rows):
        ids = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=PAD)
        chosen = (torch.rand(ids.shape, generator=self.draw) < 0.15) & (ids != PAD)
        chosen[:, 0] = True
        batch = {"input_ids": ids.masked_fill(chosen, MASK), "labels": ids.masked_fill(~chosen, -100)}
        if self.with_attention_mask:
            batch["attention_mask"] = (ids != PAD).long()
        return batch


def main():
    args = options(steps=80)
    loader = torch.utils.data.DataLoader(
        Sentences(1024, lengths=(4, 30)), 16, shuffle=True, drop_last=True, collate_fn=WholeWordMask(args.fix)
    )
    model = bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = padding = places = 0
    while step < args.steps:
        for batch in loader:
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            padding, places = padding + int((batch["input_ids"] == PAD).sum()), places + batch["input_ids"].numel()
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    print(f"{padding / places:.0%} of the inputs is padding; the batch has {sorted(batch)}")


main()
