"""Small models of Hugging Face, and one of convolutions, with batches that they are trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 512
_TRANSFORMER = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}

Batch = dict[str, Tensor]
Made = tuple[nn.Module, Callable[[], Batch]]


class UNet(nn.Module):
    """Convolutions down and up again, with group and batch normalisation, pooling and interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.down, self.batch_norm = nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32)
        self.up, self.last = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), nn.Conv2d(32, 3, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss."""
        high = functional.silu(self.norm(self.first(x)))
        low = functional.max_pool2d(functional.relu(self.batch_norm(self.down(high))), 2)
        low = functional.interpolate(low, scale_factor=2, mode="bilinear")
        return functional.mse_loss(self.last(torch.cat([self.up(low), high], 1)).float(), y.float())


def gpt2() -> Made:
    """A decoder with learned positions."""
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=96, n_layer=2, n_head=4)
    return transformers.GPT2LMHeadModel(config), lambda: _text(4, 48)


def llama() -> Made:
    """A decoder with rotary positions, grouped queries and padding."""
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **_TRANSFORMER)
    return transformers.LlamaForCausalLM(config), lambda: _text(4, 48) | {"attention_mask": _padding(4, 48)}


def bert() -> Made:
    """An encoder of masked tokens, with padding."""
    config = transformers.BertConfig(vocab_size=VOCABULARY, **_TRANSFORMER)

    def batch() -> Batch:
        made = _text(4, 48)
        made["labels"] = made["labels"].masked_fill(torch.rand(4, 48) > 0.15, -100)
        made["labels"][0, 0] = 3
        return made | {"attention_mask": _padding(4, 48)}

    return transformers.BertForMaskedLM(config), batch


def t5() -> Made:
    """An encoder and a decoder with relative positions."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=96, d_kv=24, d_ff=256, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), lambda: _text(4, 40) | {"labels": _ids(4, 24)}


def vit() -> Made:
    """An encoder of patches."""
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=10, **_TRANSFORMER)
    return transformers.ViTForImageClassification(config), lambda: {
        "pixel_values": torch.randn(8, 3, 32, 32),
        "labels": torch.randint(0, 10, (8,)),
    }


def unet() -> Made:
    """``UNet``."""
    return UNet(), lambda: {"x": torch.randn(4, 3, 32, 32), "y": torch.randn(4, 3, 32, 32)}


MODELS: Mapping[str, Callable[[], Made]] = {
    "GPT-2": gpt2,
    "Llama": llama,
    "BERT": bert,
    "T5": t5,
    "ViT": vit,
    "UNet": unet,
}


def train_one_step(made: Made, precision: str, watch: Callable[[nn.Module, Any], Any], **settings: Any) -> None:
    """One step of AdamW (or the ``make`` of ``settings``) in float32, bfloat16, or float32 under autocast."""
    model, batch = made
    given = batch()
    if precision == "bfloat16":
        model = model.bfloat16()
        given = {name: x.bfloat16() if x.is_floating_point() else x for name, x in given.items()}
    model.train()
    make = settings.pop("make", torch.optim.AdamW)
    optimizer = make(model.parameters(), **({"lr": 1e-2} | settings))
    with watch(model, optimizer):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            out = model(**given)
        (out if isinstance(out, Tensor) else out.loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _ids(*shape: int) -> Tensor:
    return torch.randint(3, VOCABULARY, shape)


def _text(*shape: int) -> Batch:
    ids = _ids(*shape)
    return {"input_ids": ids, "labels": ids}


def _padding(rows: int, length: int) -> Tensor:
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1, length - 8 :] = 0
    return mask
