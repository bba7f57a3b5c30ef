"""What a row of the column ``batch_features`` holds, for who writes it and who reads it."""

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
