"""A checkpoint as a Run: safetensors, torch.save or DCP."""

from __future__ import annotations

import os

from trueline.schema.errors import InputError
from trueline.schema.text.reading import reading, shortened
from trueline.store.importers import dcp, safetensors, torch_files
from trueline.store.importers.checkpoint_weights import Checkpoint, WeightOptions, write_checkpoint
from trueline.store.importers.target import require_free

_EXPECTED = (
    "Expected a .safetensors file or a directory of them, a file of torch.save, or the directory of a distributed "
    "checkpoint with its .metadata."
)


def import_checkpoint(source: str, target: str, options: WeightOptions) -> None:
    """Write the tensors at ``source`` as a Run at ``target``.

    Raises ``InputError`` where ``source`` is no checkpoint or damaged, or ``target`` cannot be written, and then leaves
    nothing there.
    """
    require_free(target)
    with reading(f"'{shortened(source)}'", "Copy it again; nothing was imported."):
        write_checkpoint(_read_checkpoint(source), target, options)


def _read_checkpoint(source: str) -> Checkpoint:
    if os.path.isdir(source):
        if dcp.is_dcp(source):
            return dcp.read_dcp(source)
        if safetensors.has_shards(source):
            return Checkpoint(
                safetensors.read_folder(source), {"format": "safetensors", "path": os.path.abspath(source)}
            )
        raise InputError(f"'{source}' holds no checkpoint. {_EXPECTED}")
    if not os.path.isfile(source):
        raise InputError(f"'{source}' does not exist. {_EXPECTED}")
    if source.endswith(safetensors.INDEX_SUFFIX):
        raise InputError(f"'{source}' is an index. Pass its directory.")
    if source.endswith(safetensors.SUFFIX):
        return Checkpoint(safetensors.read_file(source), {"format": "safetensors", "path": os.path.abspath(source)})
    state = torch_files.state_weights(torch_files.read_file(source))
    return Checkpoint(state.weights, {"format": "torch", "path": os.path.abspath(source)} | state.facts, state.notes)
