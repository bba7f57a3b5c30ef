"""A local Hugging Face model directory as a Run: its weights, with config.json in the manifest. No network is used."""

from __future__ import annotations

import os

from trueline.schema.errors import InputError
from trueline.schema.text.reading import reading, shortened
from trueline.store.importers import safetensors, torch_files
from trueline.store.importers.checkpoint_weights import Checkpoint, Weight, WeightOptions, write_checkpoint
from trueline.store.importers.json_files import read_object
from trueline.store.importers.target import require_free

CONFIG = "config.json"
_BIN = "pytorch_model.bin"
_WEIGHTS = "model.safetensors"


def import_hf(source: str, target: str, options: WeightOptions) -> None:
    """Write the weights of the model directory ``source`` as a Run at ``target``.

    Raises ``InputError`` where it is none or damaged, or ``target`` cannot be written, and then leaves nothing there.
    """
    require_free(target)
    if not os.path.isdir(source):
        raise InputError(
            f"'{source}' is no directory here, and nothing is downloaded. Pass a model directory with config.json."
        )
    path = os.path.join(source, CONFIG)
    if not os.path.isfile(path):
        raise InputError(f"'{source}' has no config.json. Pass a model directory, or use `trueline import checkpoint`.")
    with reading(f"'{shortened(source)}'", "Copy or download it again; nothing was imported."):
        weights, notes = _weights(source)
        facts = {"format": "hf", "path": os.path.abspath(source), "config": read_object(path)}
        write_checkpoint(Checkpoint(weights, facts, notes), target, options)


def _weights(source: str) -> tuple[list[Weight], tuple[str, ...]]:
    """Safetensors go first, as in transformers; a directory may have both."""
    if os.path.isfile(os.path.join(source, _WEIGHTS)):
        return safetensors.read_file(os.path.join(source, _WEIGHTS)), ()
    if safetensors.has_shards(source):
        return safetensors.read_folder(source), ()
    index = os.path.join(source, f"{_BIN}.index.json")
    paths = {os.path.join(source, _BIN): list[str]()}
    if os.path.isfile(index):
        paths = safetensors.shards_of(source, index)
    if not all(map(os.path.isfile, paths)):
        raise InputError(f"'{source}' has a config.json but neither {_WEIGHTS} nor {_BIN}, whole or in shards.")
    weights: list[Weight] = []
    notes: list[str] = []
    for path, names in paths.items():
        state = torch_files.state_weights(torch_files.read_file(path))
        safetensors.require_names(path, names, {weight.name for weight in state.weights})
        weights += state.weights
        notes += state.notes
    return weights, tuple(notes)
