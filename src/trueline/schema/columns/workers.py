"""The columns of the ``workers`` table: one row per (step, rank). Store, capture, analysis and docs all read this list.

``None`` means not measured, never zero. A step may be written in two pieces, what the rank knows by itself and, a step
later, what the other ranks' sums added; the reader merges them.

Letters: P parameters (``RankEnv.params``), B buffers (``RankEnv.buffers``), G groups (``RankEnv.groups``),
k sketch length (``RankEnv.sketch_length``), N workers, S samples consumed in the step by this rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ColumnType = Literal[
    "int64",
    "int32",
    "uint64",
    "float64",
    "float32",
    "string",
    "list<int32>",
    "list<int64>",
    "list<uint64>",
    "list<float64>",
    "list<float32>",
]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow type, unit, and meaning."""

    name: str
    type: ColumnType
    unit: str
    meaning: str


WORKER_COLUMNS: tuple[Column, ...] = (
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
    Column("num_micro", "int32", "", "Forward passes whose gradients the step descends (micro-batches)."),
    Column(
        "eval_modules",
        "int32",
        "modules",
        "Modules of the model in evaluation mode in the forward pass, on sampled steps.",
    ),
    Column(
        "evaluates",
        "int32",
        "",
        "1 where the whole model is in evaluation mode in that pass, and has dropout or batch normalisation; else 0.",
    ),
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
    Column(
        "schedule_calls",
        "list<int64>",
        "calls",
        "Of each scheduler of this optimizer that was seen, how often it was stepped between the last forward pass and "
        "this update; 0 of one that does not count its steps.",
    ),
    Column(
        "schedule_epochs",
        "list<int64>",
        "",
        "Of each of these, its `last_epoch` at this update; empty where one was made that has not been stepped yet.",
    ),
    Column(
        "schedule_rates",
        "list<float64>",
        "",
        "Where it is one scheduler, the learning rate of each parameter group as that has set it last.",
    ),
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
    Column(
        "rng_drawn",
        "list<uint64>",
        "",
        "On sampled steps, and where `torch.manual_seed` is called, digests of the states that the step drew random "
        "numbers from (0: of which it drew none, or unseen): of torch's CPU generator and the device's when the first "
        "forward pass began, and the same right after that call, unless another state was set since.",
    ),
    Column(
        "own_draws",
        "string",
        "",
        "On some sampled steps, JSON of `OwnDraw`: operation, shape and line of each draw of random numbers from a "
        "generator of the program's own, a digest of its state before, whether it has the rows of the batch.",
    ),
    Column(
        "evaluations",
        "string",
        "",
        "On some sampled steps, JSON of `UntrainedPass`: of forward passes since the last such row, in evaluation mode "
        "or before training, whether they draw random numbers and where, and what they change.",
    ),
    Column(
        "evaluation_values",
        "list<float64>",
        "",
        "Of each weight with a spectral norm that these passes name, in their order: what it is divided by, and its "
        "norm, at least.",
    ),
    Column("grad_norm", "float64", "grad", "L2 norm of this worker's gradient before reduction."),
    Column("grad_nonfinite", "float64", "values", "1.0 if this worker's gradient before reduction holds NaN or inf."),
    Column(
        "param_grad_norms", "list<float64>", "grad", "[P] L2 norm per parameter, local; -1 where no gradient was seen."
    ),
    Column("group_grad_norms", "list<float64>", "grad", "[G] L2 norm per group, local, before reduction."),
    Column(
        "group_seen", "list<float64>", "frac", "[G] fraction of the group's gradient elements seen before reduction."
    ),
    Column(
        "used_param_norms",
        "list<float64>",
        "grad",
        "[P] L2 norm of the gradient the optimizer received; -1 where none.",
    ),
    Column("reduced_norm", "float64", "grad", "L2 norm of the reduced mean gradient, before clipping."),
    Column("group_reduced_norms", "list<float64>", "grad", "[G] the same per group."),
    Column("sketch", "list<float32>", "grad", "[G*k] sketch of the local gradient, on scheduled steps."),
    Column("cosine_others", "float64", "cosine", "Cosine to the mean of the other workers' gradients (sketched)."),
    Column("cosine_reduced", "float64", "cosine", "Cosine to the mean over all workers (sketched)."),
    Column("cosine_pairs", "float64", "cosine", "This worker's mean cosine to each other worker (sketched)."),
    Column("cosine_mean", "float64", "cosine", "Mean pairwise cosine over all workers; the same on every rank."),
    Column("cosine_se", "float64", "cosine", "Standard error that sketching gives `cosine_mean`."),
    Column("group_cosine_others", "list<float64>", "cosine", "[G] cosine to the mean of the others, per group."),
    Column(
        "group_entered_factor",
        "list<float64>",
        "",
        "[G] least-squares factor c of entered = c * local: what this worker gave into a reduction by hand, and what "
        "backward had left.",
    ),
    Column(
        "group_entered_residual",
        "list<float64>",
        "rel",
        "[G] |sketch(entered) - c * sketch(local)| over the norm of the local one: 0 where that is all.",
    ),
    Column(
        "group_reduce_own_factor",
        "list<float64>",
        "",
        "[G] where the result is not the mean, by what this worker's gradient would have to be multiplied for it to be "
        "(0: it did not count).",
    ),
    Column(
        "group_reduce_own_residual", "list<float64>", "rel", "[G] the residual left where that is taken into account."
    ),
    Column(
        "group_reduce_residual",
        "list<float64>",
        "rel",
        "[G] |sketch(reduced) - mean of sketches(local)| over the mean local norm.",
    ),
    Column("group_reduce_floor", "list<float64>", "rel", "[G] how large rounding alone can make that residual."),
    Column("group_reduce_factor", "list<float64>", "", "[G] least-squares factor c of reduced = c * mean(local)."),
    Column(
        "group_reduce_shape_residual", "list<float64>", "rel", "[G] the residual left after that factor is taken out."
    ),
    Column(
        "group_used_residual",
        "list<float64>",
        "rel",
        "[G] |sketch(used) - mean over ranks of sketches(used)| over the mean used norm; replicas must agree.",
    ),
    Column("group_used_floor", "list<float64>", "rel", "[G] how large rounding alone can make that residual."),
    Column(
        "group_used_factor", "list<float64>", "", "[G] least-squares factor c of used = c * reduced (clipping: < 1)."
    ),
    Column(
        "group_used_shape_residual",
        "list<float64>",
        "rel",
        "[G] |sketch(used) - c * sketch(reduced)| over its norm: 0 where the optimizer received it scaled.",
    ),
    Column(
        "unreduced_params",
        "list<int64>",
        "",
        "Positions in `RankEnv.params` of those for which the framework held a gradient at the update that it had not "
        "reduced; None where it never does.",
    ),
    Column(
        "kept_gradients",
        "list<int64>",
        "",
        "Positions in `RankEnv.params` of those whose gradient was still as the update before had left it when the "
        "backward passes of this step began, and was added to; None where no gradients were looked at.",
    ),
    Column(
        "changed_between",
        "list<float64>",
        "",
        "On sampled steps of several backward passes: how many gaps between these were looked at; then of each "
        "gradient that was changed in one its position in `RankEnv.params`, the pass before, the factor (NaN: not one) "
        "and whether no element grew or changed its sign.",
    ),
    Column(
        "group_used_local",
        "list<float64>",
        "rel",
        "[G] |sketch(used) - c * own sketch(local)| over its norm, c fitted: 0 where the local one was used.",
    ),
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
        "buffer_digests",
        "list<uint64>",
        "",
        "[B] digest of each buffer before the first forward pass of this step in training mode.",
    ),
    Column(
        "initial_values",
        "list<float64>",
        "",
        "Of the first step that is watched, for each parameter `InitialValues` before the update: elements looked at, "
        "those not finite, those below 2^-126 and not zero, mean, standard deviation, kurtosis, largest magnitude.",
    ),
    Column(
        "clip_facts",
        "string",
        "",
        "On sampled steps, JSON of each call that clips by a norm: what it was given, and which elements `clip_values` "
        "are.",
    ),
    Column(
        "clip_values",
        "list<float64>",
        "",
        "For each of these calls: the norm that it clips by (NaN where ranks hold parts of that), the squared norms of "
        "this rank's shards and of what it holds whole (NaN where not computed), the loss scale, then sampled elements "
        "of gradients before and after.",
    ),
    Column(
        "update_facts",
        "string",
        "",
        "On steps whose update is sampled, JSON of what the optimizer declares, and of which elements `update_values` "
        "are.",
    ),
    Column(
        "update_values",
        "list<float64>",
        "",
        "Sampled elements of parameters, gradients and optimizer states before, then of parameters and states after "
        "the update.",
    ),
    Column(
        "token_weights",
        "list<float64>",
        "",
        "On some sampled steps, for each backward pass `TokenWeights`: why nothing is known, tokens, least and "
        "greatest weight of one in the loss, loss scale taken out, rounding, reduction, scalings.",
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
        "input_facts",
        "string",
        "",
        "On some sampled steps, JSON of the tensors that `input_values` are of: name, whether it is a target of the "
        "loss, dtype, shape, classes.",
    ),
    Column(
        "input_values",
        "list<int64>",
        "",
        "Of each of these a digest in all passes of the step, whether all its elements are one number, the bits of "
        "that as float64, and whether they look like standard normal noise.",
    ),
    Column(
        "other_models",
        "string",
        "",
        "On some sampled steps, JSON of `OtherModel`: models beside or inside the watched one that were called without "
        "gradients and dropped values.",
    ),
    Column("other_weights", "list<int64>", "", "Of each of these a digest of some of its parameters."),
    Column(
        "loss_operations",
        "int64",
        "",
        "On some sampled steps, a digest of the operations that the loss of the first backward pass is computed by.",
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
        "grads_factor",
        "float64",
        "",
        "By what the gradients that backward left were multiplied before the optimizer received them (clipping: < 1), "
        "loss scale taken out, at a few elements; None if unseen or by no single number.",
    ),
    Column(
        "loss_scale",
        "float64",
        "",
        "What a GradScaler of torch multiplied the losses of this step by, where `grads_factor` was looked for and the "
        "optimizer holds the model's own parameters.",
    ),
    Column(
        "loss_scaler",
        "list<float64>",
        "",
        "Where a GradScaler of torch steps the optimizer: updates that it left out since the one before, its scale at "
        "this one, growth and backoff factor.",
    ),
    Column(
        "closing_loss_scaler",
        "list<float64>",
        "",
        "The same at the end, where it left out updates after this one, the last.",
    ),
    Column(
        "update_left_out",
        "float64",
        "updates",
        "Where a GradScaler of torch lets the kernel of a fused optimizer look whether gradients are finite: 1.0 if "
        "that left this update out.",
    ),
    Column(
        "passes_begun",
        "int32",
        "backward passes",
        "Where `token_weights` are, backward passes of the step, those among them whose gradients were then cleared.",
    ),
    Column(
        "norm_facts",
        "string",
        "",
        "On some sampled steps, JSON of the passes of batch normalisation that `norm_values` are of: what its modules "
        "declare, and which channels.",
    ),
    Column(
        "norm_values",
        "list<float64>",
        "",
        "Of each module the batches that it has counted at the end of the step; then of each pass that count, running "
        "mean and variance of some channels, their sum and sum of squares, and the first three after it.",
    ),
    Column(
        "average_facts",
        "string",
        "",
        "On some sampled steps, JSON of the averages of parameters that `average_values` are of: which elements, at "
        "which moments, and what is declared.",
    ),
    Column(
        "average_values",
        "list<float64>",
        "",
        "Of each of these averages, at each moment, of each slice the elements of the average and of what it follows.",
    ),
    Column(
        "recomputed",
        "string",
        "",
        "On some sampled steps in which modules ran again in the backward pass, JSON of `Recomputed`: how many values "
        "were compared with those of the forward pass, and which are not equal.",
    ),
    Column(
        "influence",
        "list<float64>",
        "",
        "At the step that the plan names `Influence`: why nothing is known, largest gradients of early logits to "
        "embeddings before and behind the cut, how many behind have any, of how many, the same over documents, eps.",
    ),
    Column(
        "row_influence",
        "list<float64>",
        "",
        "At that step `RowInfluence`: why nothing is known, whether the first dimension is surely of samples, largest "
        "gradients of outputs of some rows to their own inputs and to other rows, how many of these have any, of how "
        "many, the same to positions that the attention mask keeps and to others, convolutions, eps, of padding alone "
        "and by index, samples of a joined batch and those with edges, whether a number of each row is lost.",
    ),
    Column(
        "order_influence",
        "list<float64>",
        "",
        "At that step `OrderInfluence`: why nothing is known, pairs of equal tokens in a row, largest distance between "
        "the gradients of the first layer that mixes positions to them as a share of the larger, eps, whether the "
        "model is given positions, whether it has parts that are called so.",
    ),
)

PARAM_COLUMNS = frozenset(
    column.name
    for column in WORKER_COLUMNS
    if column.name.startswith(("param_", "group_", "used_param_")) or column.name in ("sketch", "closing_digests")
)
"""Those whose lists are about the parameters and groups of ``ParamLists``."""

COLUMN_BY_NAME: dict[str, Column] = {column.name: column for column in WORKER_COLUMNS}
