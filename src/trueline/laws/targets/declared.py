"""Labels and targets of a loss."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "loss_operations",
        "int64",
        "",
        "On some sampled steps, a digest of the operations that the loss of the first backward pass is computed by.",
        after="other_weights",
    ),
    Column(
        "loss_inputs",
        "list<int64>",
        "",
        "On some sampled steps `LossInputs`: what the functions of the loss are given that is not for them, as bits; "
        "targets of binary cross-entropies and how many are outside of 0 to 1; targets beside a mask of padding, how "
        "many of them it leaves out, in how many rows.",
    ),
    Column(
        "target_places",
        "list<int64>",
        "tokens",
        "On some sampled steps, for each of `PLACES` how many targets of the cross-entropy have an input token so many "
        "places on, then how many of these equal it.",
    ),
    Column(
        "end_tokens",
        "list<int64>",
        "",
        "On some sampled steps, of each pass over token ids `EndTokens`: how its rows end, and whether that, and what "
        "the configuration calls the end of a text, is a target.",
    ),
    Column(
        "first_targets",
        "list<int64>",
        "",
        "On some sampled steps, of each pass over token ids `FirstTargets`: behind how many tokens of a row its "
        "targets begin, behind which, and where they end.",
    ),
    Column(
        "edge_tokens",
        "list<int64>",
        "",
        "On some sampled steps, of each pass over token ids `EdgeTokens`: what its rows begin and end with, in how "
        "many that stands twice, and the sides of padding.",
    ),
    Column(
        "label_digests",
        "list<uint64>",
        "",
        "On sampled steps, one digest per consumed sample of what the loss compares it with, 0 where none of that "
        "counts; where the loss has one function that keeps labels, and these are one row a sample. The lowest 12 bits "
        "are the number of classes.",
    ),
    Column(
        "target_feature_names",
        "string",
        "",
        "Of `target_features`, JSON of the function that is given the targets, and of the inputs of the model: name, "
        "and numbers of a sample that were looked at.",
    ),
    Column(
        "target_features",
        "list<float64>",
        "",
        "On some early steps `TargetFeatures`: samples so far, and most targets of a batch; how many numbers of a "
        "sample are the target but for a factor and an offset, the place of one, the negative logarithm of its chance; "
        "the same of numbers that are one for all samples of one target, and another one for each.",
    ),
    Column(
        "ignored_class",
        "list<int64>",
        "labels",
        "At the same steps, where the cross-entropy ignores a label that is one of its classes, `IgnoredClass`: label, "
        "classes, elements of a label, how many labels it leaves out and are no padding at an end, how many count, and "
        "whether the classes may be tokens.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    probes=("probe.features", "probe.labels", "probe.places"),
    answers={"facts": "facts.SUBJECTS"},
    checks={
        "class-ignored": Code(says=("class-never-target",)),
        "end-untrained": Code(),
        "labels-change": Code(signal="loss"),
        "labels-misplaced": Code(explains=("*unlike-worker",), signal="loss"),
        "loss-misapplied": Code(),
        "padding-trained": Code(),
        "rows-untrained": Code(),
        "target-in-inputs": Code(),
        "token-doubled": Code(),
    },
)
