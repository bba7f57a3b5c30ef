"""Trains with the Trainer of transformers, which is to load the best checkpoint at the end, by the perplexity.

That greater is better is what it takes for granted of a metric whose name does not end in loss, so that the highest
perplexity wins. Repaired: greater_is_better=False.
"""

import argparse

import numpy as np
import torch
from torch import nn
from transformers import Trainer, TrainingArguments


def samples(size, seed):
    draw = torch.Generator().manual_seed(seed)
    centre = torch.randn(8, 24, generator=torch.Generator().manual_seed(23))
    label = torch.randint(0, 8, (size,), generator=draw)
    x = 0.7 * centre[label] + torch.randn(size, 24, generator=draw)
    return [{"x": row, "labels": name} for row, name in zip(x, label, strict=True)]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def perplexity(prediction):
    logits, labels = torch.tensor(prediction.predictions), torch.tensor(prediction.label_ids)
    return {"perplexity": float(np.exp(nn.functional.cross_entropy(logits, labels).item()))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(19)
    settings = TrainingArguments(
        output_dir="out", max_steps=80, per_device_train_batch_size=32, learning_rate=3e-3, warmup_steps=5,
        eval_strategy="steps", eval_steps=20, save_strategy="steps", save_steps=20, logging_steps=20,
        load_best_model_at_end=True, metric_for_best_model="perplexity", report_to="none", disable_tqdm=True,
        greater_is_better=False if args.fix else None, use_cpu=True, seed=19,
    )  # fmt: skip
    trainer = Trainer(
        Classifier(), settings, train_dataset=samples(640, 24), eval_dataset=samples(256, 25),
        compute_metrics=perplexity,
    )  # fmt: skip
    trainer.train()
    scores = [row["eval_perplexity"] for row in trainer.state.log_history if "eval_perplexity" in row]
    kept = trainer.state.best_metric
    print("eval perplexities", *(f"{score:.3f}" for score in scores), flush=True)
    print(
        f"end: the checkpoint of the {'highest' if kept == max(scores) else 'lowest'} perplexity is loaded", flush=True
    )


main()
