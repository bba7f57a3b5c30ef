"""Of a batch of eight captions with an image each, the processor makes one row.

A flat list of images is taken for the images of a single sample.
Repaired: the list has a list of images for each sample.
"""

import torch
from command import options, say
from language import Sentences
from torch import nn
from torch.nn import functional as F


class Processor:
    """Texts and their images to tensors."""

    def __call__(self, texts, images):
        if isinstance(images, list) and not isinstance(images[0], list):
            images = [images]
        rows = [text for text, _ in zip(texts, images, strict=False)]
        return {
            "input_ids": torch.stack(rows),
            "pixel_values": torch.stack([torch.stack(group).mean(0) for group in images]),
        }


class Captioner(nn.Module):
    def __init__(self, vocab=64, width=48):
        super().__init__()
        self.vision = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh())
        self.embed, self.rnn = nn.Embedding(vocab, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, input_ids, pixel_values):
        h, _ = self.rnn(self.embed(input_ids[:, :-1]), self.vision(pixel_values).unsqueeze(0))
        return F.cross_entropy(self.head(h).flatten(0, 1), input_ids[:, 1:].flatten())


def main():
    args = options(steps=100)
    processor, texts = Processor(), list(Sentences(512, lengths=(12, 12)))
    eye = torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
    samples = [{"text": text, "image": eye[int(text[0])].view(8, 8)} for text in texts]

    def collate(batch):
        images = [[sample["image"]] if args.fix else sample["image"] for sample in batch]
        return processor([sample["text"] for sample in batch], images)

    loader = torch.utils.data.DataLoader(samples, 8, shuffle=True, drop_last=True, collate_fn=collate)
    model = Captioner()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = rows = 0
    while step < args.steps:
        for batch in loader:
            loss = model(**batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows += len(batch["input_ids"])
            say(step, loss)
            step += 1
            if step == args.steps:
                break
    print(f"{rows} rows were trained on in {step} batches of {loader.batch_size}")


main()
