"""The columns of the ``workers`` table: one row per (step, rank). Store, capture, analysis and docs all read this list.

``SHARED_COLUMNS`` are those that several laws read; each law declares its own (``schema/law.py``), those that its probe
measures or that it alone reads, and ``worker_columns`` is the whole table.

``None`` means not measured, never zero. A step may be written in two pieces, what the rank knows by itself and, a step
later, what the other ranks' sums added; the reader merges them.

Letters: P parameters (``RankEnv.params``), B buffers (``RankEnv.buffers``), G groups (``RankEnv.groups``),
k sketch length (``RankEnv.sketch_length``), N workers, S samples consumed in the step by this rank.
"""

from __future__ import annotations

from trueline.schema.column import Column

SHARED_COLUMNS: tuple[Column, ...] = (
    Column("step", "int64", "optimizer steps", "Optimizer step, from 0; counted by this rank."),
    Column("rank", "int32", "", "Global rank."),
    Column("time_ns", "int64", "ns", "Unix time at the end of the step."),
    Column("step_s", "float64", "s", "Wall time since the end of the step before."),
    Column(
        "own_s",
        "float64",
        "s",
        "CPU time of the step that Trueline used, and its own waits.",
    ),
    Column("epoch", "int32", "", "How many times the training DataLoader had been iterated before; None if unseen."),
    Column(
        "loader_batches",
        "int64",
        "batches",
        "On sampled steps, how many batches the pass over the training DataLoader has yielded so far; None if unseen.",
    ),
    Column("num_micro", "int32", "", "Forward passes whose gradients the step descends (micro-batches)."),
    Column(
        "passes",
        "int64",
        "backward passes",
        "Backward passes so far that the framework reduced, which all workers make together, or the collectives of "
        "code that reduces by hand; None if unseen.",
    ),
    Column(
        "loss",
        "float64",
        "loss",
        "This worker's loss before any averaging: given, else what backward was called on (see RankEnv.loss_source).",
    ),
    Column("tokens", "float64", "tokens", "Tokens (or samples, see RankEnv.token_source) that the loss averages over."),
    Column(
        "part_losses",
        "list<float64>",
        "loss",
        "Losses of the parts of this worker's batch: one per sample where those are seen, else one per micro-batch, if "
        "there are two or more; NaN where a sample has no token.",
    ),
    Column("lr", "list<float64>", "", "Learning rate of each optimizer parameter group."),
    Column("optimizer_digest", "uint64", "", "Digest of every optimizer hyper-parameter of the step."),
    Column("sample_digests", "list<uint64>", "", "One digest per consumed sample, in order; equal samples are equal."),
    Column("target_digests", "list<uint64>", "", "One digest per sample of its labels, where labels were seen."),
    Column("rng_python", "uint64", "", "Digest of the state of Python's `random`."),
    Column("rng_numpy", "uint64", "", "Digest of the state of NumPy's global generator."),
    Column("rng_torch", "uint64", "", "Digest of the state of torch's CPU generator."),
    Column("rng_device", "uint64", "", "Digest of the state of the device generator."),
    Column(
        "rng_used",
        "int32",
        "",
        "Bits 1, 2, 4 and 8: which of those four streams somebody drew from since it was seeded last, or may have.",
    ),
    Column("grad_norm", "float64", "grad", "L2 norm of this worker's gradient before reduction."),
    Column("grad_nonfinite", "float64", "values", "1.0 if this worker's gradient before reduction holds NaN or inf."),
    Column(
        "param_grad_norms", "list<float64>", "grad", "[P] L2 norm per parameter, local; -1 where no gradient was seen."
    ),
    Column("group_grad_norms", "list<float64>", "grad", "[G] L2 norm per group, local, before reduction."),
    Column(
        "used_param_norms",
        "list<float64>",
        "grad",
        "[P] L2 norm of the gradient the optimizer received; -1 where none.",
    ),
    Column("sketch", "list<float32>", "grad", "[G*k] sketch of the local gradient, on scheduled steps."),
    Column("cosine_others", "float64", "cosine", "Cosine to the mean of the other workers' gradients (sketched)."),
    Column("cosine_reduced", "float64", "cosine", "Cosine to the mean over all workers (sketched)."),
    Column("cosine_pairs", "float64", "cosine", "This worker's mean cosine to each other worker (sketched)."),
    Column("cosine_mean", "float64", "cosine", "Mean pairwise cosine over all workers; the same on every rank."),
    Column("cosine_se", "float64", "cosine", "Standard error that sketching gives `cosine_mean`."),
    Column("group_cosine_others", "list<float64>", "cosine", "[G] cosine to the mean of the others, per group."),
    Column("exact_cosines", "list<float64>", "cosine", "[N] exact cosine to each worker, on exact steps."),
    Column(
        "param_digests",
        "list<uint64>",
        "",
        "[P + F] digest of each parameter, then each frozen one, before the update; 0: this rank holds it no more.",
    ),
    Column(
        "closing_digests",
        "list<uint64>",
        "",
        "[P + F] the same when watching ended, after the update of this step, its last.",
    ),
    Column(
        "batch_features",
        "list<float64>",
        "",
        "On sampled steps, `FEATURES` of what the model reads first, then of its labels: a mean over micro-batches, "
        "NaN where there is none.",
    ),
    Column(
        "argument_features",
        "list<float64>",
        "",
        "On sampled steps, a number that stands for one of the lists of names in the rank's environment, then "
        "`FEATURES` of each of these arguments of the model but the first two: a mean over micro-batches.",
    ),
    Column(
        "update_left_out",
        "float64",
        "updates",
        "Where a GradScaler of torch lets the kernel of a fused optimizer look whether gradients are finite: 1.0 if "
        "that left this update out.",
    ),
)
