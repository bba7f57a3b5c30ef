"""What rows of ``batch_features`` and ``argument_features`` hold, for who writes them and who reads them."""

import zlib
from collections.abc import Sequence

FEATURES: tuple[str, ...] = (
    *("mean", "root mean square", "share of zeros", "ids, one half", "ids, another half"),
    "not finite",
)
"""Of the elements of a tensor; the last is 1 where any of all its elements is not finite. Those of ids are of whole
numbers: the share of elements in a half of all numbers that a hash chooses, so that other numbers have another
share, whatever their mean.
"""
PARTS: tuple[str, ...] = ("inputs", "labels")
"""The tensors, one after the other: what the model reads first, and the targets where they are given to it."""
NUM_FEATURES = len(FEATURES) * len(PARTS)

TARGETS: tuple[str, ...] = ("labels", "label", "label_ids", "targets", "target", "y", "decoder_input_ids")
"""Names that models give to what they are to predict."""


def is_target(name: str) -> bool:
    """Whether a model's argument of this name, as ``labels`` or ``labels[1]``, is to be predicted."""
    name = name.partition("[")[0]
    return name in TARGETS or name.endswith(("_labels", "_targets"))


def names_id(names: Sequence[str]) -> int:
    """The first number of a row of ``argument_features``: which of the lists of ``RankEnv.arguments`` it has."""
    return zlib.crc32("\n".join(names).encode())
