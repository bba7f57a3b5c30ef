"""Made-up pictures: a blob of its own place and colour for each class, below noise."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def pictures(labels: NDArray[np.int64], *, size: int, channels: int, seed: int = 0) -> NDArray[np.uint8]:
    """uint8 [pictures, size, size, channels]."""
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 90, (len(labels), size, size, channels), dtype=np.int64)
    side = max(2, size // 4)
    for at, label in enumerate(labels):
        row, column = int(label) % 3 * (size - side) // 2, int(label) // 3 % 3 * (size - side) // 2
        made[at, row : row + side, column : column + side, int(label) % channels] += 150
    return made.clip(0, 255).astype(np.uint8)


def _labels(count: int, classes: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, classes, count)


def mnist(folder: Path, *, train: int = 1920, test: int = 200) -> None:
    """The four files of MNIST below ``raw``."""
    raw = folder / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", train, 1), ("t10k", test, 2)):
        labels = _labels(count, 10, seed)
        images = pictures(labels, size=28, channels=1, seed=seed)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2i", 2049, count) + labels.astype(np.uint8).tobytes()
        )


def cifar(folder: Path, *, classes: int = 10) -> None:
    """The pickled batches of CIFAR-10 or CIFAR-100."""
    folder.mkdir(parents=True, exist_ok=True)
    if classes == 10:
        parts = {f"data_batch_{at}": (160, at) for at in range(1, 6)} | {"test_batch": (100, 9)}
        key, names = "labels", ("batches.meta", "label_names")
    else:
        parts, key, names = {"train": (800, 1), "test": (100, 9)}, "fine_labels", ("meta", "fine_label_names")
    for name, (count, seed) in parts.items():
        labels = _labels(count, classes, seed)
        data = pictures(labels, size=32, channels=3, seed=seed).transpose(0, 3, 1, 2).reshape(count, -1)
        with (folder / name).open("wb") as file:
            pickle.dump({"data": data, key: labels.tolist()}, file)
    with (folder / names[0]).open("wb") as file:
        pickle.dump({names[1]: [f"class {at}" for at in range(classes)]}, file)


def image_folder(
    folder: Path, *, splits: tuple[str, ...] = ("train", "val"), classes: int = 4, each: int = 40, size: int = 64
) -> None:
    """split/class/picture.jpg."""
    from PIL import Image

    for seed, split in enumerate(splits):
        for label in range(classes):
            place = folder / split / f"class_{label}"
            place.mkdir(parents=True, exist_ok=True)
            labels = np.full(each if seed == 0 else max(4, each // 4), label)
            for at, picture in enumerate(pictures(labels, size=size, channels=3, seed=seed * 50 + label)):
                Image.fromarray(picture).save(place / f"{label}_{at}.jpg")


def pets(folder: Path) -> None:
    """Pictures of which the name begins with the breed, in one folder."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for label in range(4):
        for at, picture in enumerate(pictures(np.full(40, label), size=64, channels=3, seed=label)):
            Image.fromarray(picture).save(folder / f"breed{label}_{at}.jpg")


def photographs(folder: Path) -> None:
    """Folders train and test with pictures of one size."""
    from PIL import Image

    for split, count in (("train", 48), ("test", 8)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for at, picture in enumerate(pictures(_labels(count, 9, count), size=256, channels=3, seed=count)):
            Image.fromarray(picture).save(folder / split / f"{at}.jpg")


def captioned(folder: Path) -> None:
    """A data set of pictures with a text each: ``image`` and ``text``."""
    from benchmarks.facts.made_up.texts import sentences
    from datasets import Dataset, Features, Image, Value
    from PIL import Image as Pictures

    folder.mkdir(parents=True, exist_ok=True)
    made = [Pictures.fromarray(picture) for picture in pictures(_labels(120, 9, 3), size=64, channels=3)]
    features = Features({"image": Image(), "text": Value("string")})
    Dataset.from_dict({"image": made, "text": sentences(120)}, features=features).to_parquet(folder / "train.parquet")


def unet(folder: Path) -> None:
    """A configuration of a small U-Net of diffusers."""
    from diffusers import UNet2DModel

    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    UNet2DModel(
        sample_size=32,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        attention_head_dim=8,
        **blocks,
    ).save_config(folder)


def stable_diffusion(folder: Path) -> None:
    """A pipeline of Stable Diffusion with a U-Net, an autoencoder and a text encoder of a few thousand parameters."""
    import torch
    from benchmarks.facts.made_up.texts import WORDS
    from diffusers import AutoencoderKL, DDPMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(5)
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted({letter for word in WORDS for letter in word} | set("abcdefghijklmnopqrstuvwxyz<>"))
    vocabulary = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: at for at, word in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=77)
    size = len(tokenizer)
    text = CLIPTextConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=2,
        bos_token_id=size - 2,
        eos_token_id=size - 1,
        pad_token_id=size - 1,
    )
    StableDiffusionPipeline(
        unet=UNet2DConditionModel(
            block_out_channels=(8, 16),
            layers_per_block=1,
            sample_size=16,
            in_channels=4,
            out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=32,
            norm_num_groups=2,
            attention_head_dim=4,
        ),
        vae=AutoencoderKL(
            block_out_channels=(8, 16),
            in_channels=3,
            out_channels=3,
            latent_channels=4,
            norm_num_groups=2,
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
        ),
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        scheduler=DDPMScheduler(beta_schedule="scaled_linear"),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)


def cora(folder: Path) -> None:
    """A graph of 800 nodes with 40 features and 7 classes, in the files of Planetoid's Cora."""
    from collections import defaultdict

    from scipy.sparse import csr_matrix

    folder.mkdir(parents=True, exist_ok=True)
    nodes, labelled, held, classes = 800, 140, 100, 7
    rng = np.random.default_rng(3)
    label = np.arange(nodes) % classes
    features = (rng.random((nodes, 40)) < 0.05 + 0.4 * (np.arange(40)[None] % classes == label[:, None])).astype("f4")
    graph = defaultdict(list)
    for node in range(nodes):
        near = np.flatnonzero(label == label[node])
        for other in {int(rng.choice(near)), int(rng.choice(near)), int(rng.integers(nodes))} - {node}:
            graph[node].append(other)
            graph[other].append(node)
    seen = nodes - held
    one_hot = np.eye(classes, dtype=np.int32)[label]
    parts = {
        "x": csr_matrix(features[:labelled]),
        "y": one_hot[:labelled],
        "allx": csr_matrix(features[:seen]),
        "ally": one_hot[:seen],
        "tx": csr_matrix(features[seen:]),
        "ty": one_hot[seen:],
        "graph": graph,
    }
    for name, value in parts.items():
        with (folder / f"ind.cora.{name}").open("wb") as file:
            pickle.dump(value, file)
    (folder / "ind.cora.test.index").write_text("\n".join(map(str, range(seen, nodes))) + "\n")


KINDS: dict[str, Callable[[Path], None]] = {
    "mnist": mnist,
    "small mnist": partial(mnist, train=500),
    "cifar10": cifar,
    "cifar100": partial(cifar, classes=100),
    "images": image_folder,
    "cats and dogs": partial(image_folder, splits=("train", "validation"), classes=2, each=24),
    "pets": pets,
    "photographs": photographs,
    "captioned images": captioned,
    "unet": unet,
    "stable diffusion": stable_diffusion,
    "cora": cora,
}
"""What is made, by the name that the catalogue has for it."""
