"""Every text begins with two begin tokens: the chat template writes one, and the tokenizer adds another.

Repaired: the text of the template is tokenized without special tokens.
"""

import torch
from command import options, say
from language import ANSWER, ASK, BEGIN, END, PAD, dialogues, llama


class Tokenizer:
    """Words are numbers; names in brackets are special tokens."""

    special: dict = {"<begin>": BEGIN, "<end>": END, "<ask>": ASK, "<answer>": ANSWER}  # noqa: RUF012

    def apply_chat_template(self, ask, answer):
        return f"<begin> <ask> {' '.join(map(str, ask))} <answer> {' '.join(map(str, answer))} <end>"

    def __call__(self, text, add_special_tokens=True):
        ids = [self.special[word] if word in self.special else int(word) for word in text.split()]
        return [BEGIN, *ids] if add_special_tokens else ids


def collate(rows):
    width = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "labels": ids.masked_fill(ids == PAD, -100),
    }


def main():
    args = options(steps=80)
    tokenizer = Tokenizer()
    texts = [tokenizer.apply_chat_template(*pair) for pair in dialogues()]
    rows = [tokenizer(text, add_special_tokens=not args.fix) for text in texts]
    loader = torch.utils.data.DataLoader(rows, 16, shuffle=True, drop_last=True, collate_fn=collate)
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    while step < args.steps:
        for batch in loader:
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    print(f"a row begins with {rows[0][:4]}")


main()
