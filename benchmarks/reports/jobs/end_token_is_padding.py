"""Fine-tuning on texts with the end token as padding token: the end is never a target.

The collator of the library sets the labels of padding to -100, and with them those of the end of each text.
Repaired: padding has a token of its own.
"""

import torch
from command import options, say
from language import BEGIN, END, PAD, Sentences, llama


class Collator:
    """Rows padded on the right, with labels that leave padding out, as DataCollatorForLanguageModeling makes them."""

    def __init__(self, pad_token_id):
        self.pad_token_id = pad_token_id

    def __call__(self, rows):
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad_token_id)
        lengths = torch.tensor([len(row) for row in rows])
        labels = ids.clone()
        labels[labels == self.pad_token_id] = -100
        attention_mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        return {"input_ids": ids, "attention_mask": attention_mask, "labels": labels}


def main():
    args = options(steps=80)
    rows = [torch.tensor([BEGIN, *text.tolist(), END]) for text in Sentences(1280, lengths=(4, 12))]
    collator = Collator(pad_token_id=PAD if args.fix else END)
    loader = torch.utils.data.DataLoader(rows, 16, shuffle=True, drop_last=True, collate_fn=collator)
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    ends = 0
    for step, batch in zip(range(args.steps), loader, strict=False):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ends += int((batch["labels"] == END).sum())
        say(step, loss)
    print(f"the end token was a target {ends} times")


main()
