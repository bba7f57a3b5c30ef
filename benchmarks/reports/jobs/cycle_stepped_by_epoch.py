"""Trains with Lightning by a one-cycle schedule of all steps, which Lightning steps once an epoch.

configure_optimizers gives the scheduler without an interval. Repaired: its interval is "step".
"""

import argparse
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def samples(size=768):
    draw = torch.Generator().manual_seed(27)
    x = torch.randn(size, 12, generator=draw)
    label = (x[:, :6].sum(1) > 0).long() + 2 * (x[:, 6:].square().sum(1) > 5.5).long()
    return TensorDataset(x, label)


class Classifier(lightning.LightningModule):
    def __init__(self, each_step, steps):
        super().__init__()
        self.each_step, self.steps, self.rates = each_step, steps, []
        self.net = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def training_step(self, batch, index):
        x, label = batch
        self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        return nn.functional.cross_entropy(self.net(x), label)

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch} rate {self.rates[-1]:.5f}", flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=self.steps)
        if self.each_step:
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}
        return [optimizer], [scheduler]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    lightning.seed_everything(21, verbose=False)
    loader = DataLoader(samples(), batch_size=32, shuffle=True)
    model = Classifier(args.fix, steps=4 * len(loader))
    trainer = lightning.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, loader)
    highest = max(model.rates)
    print(f"end: the schedule {'never came to' if highest < 5e-3 else 'reached'} its peak ({highest:.5f})", flush=True)


main()
