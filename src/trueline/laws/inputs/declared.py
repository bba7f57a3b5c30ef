"""Inputs that a model is fed with."""

from trueline.schema.column import Column
from trueline.schema.law import Code, Law

COLUMNS: tuple[Column, ...] = (
    Column(
        "input_facts",
        "string",
        "",
        "On some sampled steps, JSON of the tensors that `input_values` are of: name, whether it is a target of the "
        "loss, dtype, shape, classes.",
        after="argument_features",
    ),
    Column(
        "input_values",
        "list<int64>",
        "",
        "Of each of these a digest in all passes of the step, whether all its elements are one number, the bits of "
        "the smallest as float64, 1 where they look like standard normal noise, plus 2 where all rows are alike, and "
        "the bits of the largest.",
    ),
    Column(
        "output_spread",
        "float64",
        "",
        "At the same steps, of the first pass: by what share of its largest magnitude a number that the model returns "
        "for each sample differs most among the samples.",
    ),
)

LAW = Law(
    columns=COLUMNS,
    probes=("probe",),
    answers={"facts": "facts.SUBJECTS"},
    checks={
        "draws-alike": Code(),
        "input-constant": Code(explains=("worker-silent", "*unlike-worker")),
        "inputs-equal": Code(),
        "one-for-all-samples": Code(),
        "outputs-alike": Code(),
    },
)
