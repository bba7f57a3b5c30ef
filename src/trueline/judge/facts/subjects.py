"""What every Run may tell, in the order in which it is shown, and what of each may be unusual; laws add more."""

from __future__ import annotations

from trueline.judge.facts import data, loss, model, precision, update
from trueline.judge.facts.fact import Mark, Subject

SUBJECTS: tuple[Subject, ...] = (
    Subject(
        "samples",
        "data",
        "samples",
        data.samples,
        (
            Mark(
                "few-of-the-data-set",
                data.reads_few,
                said_by=("samples-never-read",),
                advice=(
                    "Look at what the sampler draws, and how long an epoch is: most of the data set was never "
                    "read, or was read much more seldom than the rest."
                ),
            ),
        ),
    ),
    Subject("loader", "data", "the DataLoader", data.loader),
    Subject(
        "epoch-order",
        "data",
        "the order of epochs",
        data.epoch_order,
        (
            Mark(
                "stream-in-one-order",
                data.streams_in_one_order,
                advice=(
                    "Shuffle the stream by a buffer (`dataset.shuffle(seed=…, buffer_size=…)`) and call "
                    "`set_epoch` before each epoch."
                ),
            ),
        ),
    ),
    Subject(
        "read-twice",
        "data",
        "samples that come again within an epoch",
        data.read_twice,
        (
            Mark(
                "samples-twice-in-an-epoch",
                data.reads_many_twice,
                advice="Look for rows that the data hold twice, and for a sampler that draws with replacement.",
            ),
        ),
    ),
    Subject(
        "data-share",
        "data",
        "the share of the data that ranks read",
        data.shares,
        (
            Mark(
                "samples-never-read",
                data.leaves_many_out,
                data.unread_samples,
                advice=(
                    "Look at what limits an epoch: a sampler's length, `max_steps`, `limit_train_batches`, a "
                    "`break` in the loop."
                ),
            ),
            Mark(
                "samples-alike",
                data.has_many_alike,
                data.alike_samples,
                advice=(
                    "Look at what `__getitem__` returns for two indices: one buffer that is filled again, or an "
                    "index that is ignored."
                ),
            ),
        ),
    ),
    Subject("batch", "data", "the size of batches", data.batch),
    Subject("tokens", "data", "tokens", data.tokens),
    Subject(
        "parameters",
        "model",
        "parameters",
        model.parameters,
        (
            Mark(
                "frozen-without-adapters",
                model.is_frozen_as_drawn,
                model.frozen_parts,
                advice=(
                    "What is frozen stays as it is: load its weights before training, or train it "
                    "(`requires_grad_(True)` before the optimizer is made)."
                ),
            ),
        ),
    ),
    Subject(
        "adapters",
        "model",
        "adapters",
        model.adapters,
        (
            Mark(
                "adapter-frozen",
                lambda value: any(not counts["trained"] for counts in value.values()),
                advice=(
                    "Load the adapter with `is_trainable=True`, or make it active (`set_adapter`) before the "
                    "optimizer is made."
                ),
            ),
        ),
    ),
    Subject(
        "without-gradient",
        "model",
        "parameters without a gradient",
        model.without_gradient,
        (
            Mark(
                "parameters-without-gradient",
                lambda value: bool(value["without"]),
                advice=(
                    "Look for parts that the forward pass does not call, for `detach()` and for `torch.no_grad()` "
                    "on the way to the loss."
                ),
            ),
        ),
    ),
    Subject(
        "tied",
        "model",
        "ties",
        model.tied,
        (
            Mark(
                "numbered-layers-tied",
                model.ties_numbered_layers,
                model.numbered_ties,
                advice="Make each layer anew, or copy it by `copy.deepcopy`: `[layer] * n` is one layer n times.",
            ),
        ),
    ),
    Subject(
        "evaluation-modules",
        "model",
        "modules in evaluation mode",
        model.evaluation_modules,
        (
            Mark(
                "modules-in-evaluation-mode",
                lambda value: value["most"] > 0,
                advice="Call `model.train()` before the training loop, and again after each evaluation.",
            ),
        ),
    ),
    Subject(
        "weight-dtypes",
        "model",
        "dtypes of parameters",
        model.weight_dtypes,
        (
            Mark(
                "weights-in-16-bits",
                model.only_in_16_bits,
                advice=(
                    "Keep the weights in float32 and compute in 16 bits by `torch.autocast`: small updates are "
                    "rounded away in 16 bits."
                ),
            ),
        ),
    ),
    Subject(
        "loss",
        "loss",
        "the loss",
        loss.loss,
        (
            Mark(
                "loss-did-not-fall",
                lambda value: value.get("fell") is False and not value.get("rose"),
                advice=(
                    "Look at the learning rate and the labels, and try whether the model learns one single batch "
                    "by heart."
                ),
            ),
            Mark(
                "loss-never-moves",
                lambda value: value.get("constant") is True,
                advice=(
                    "Look at what backward is called on, and whether the optimizer holds the parameters of this model."
                ),
            ),
            # Of models that train against each other, what one gains another loses.
            Mark(
                "loss-rose",
                lambda value: value.get("rose") is True and not value.get("models"),
                advice="Lower the learning rate, and look at the sign of the loss and of each of its terms.",
            ),
            Mark(
                "loss-below-zero",
                loss.falls_below_zero,
                loss.sign_to_confirm,
                advice="Look at the sign of the loss: `optimizer.step()` makes it as small as it can be.",
            ),
        ),
    ),
    Subject("optimizer", "update", "the optimizer", update.optimizer),
    Subject(
        "learning-rate",
        "update",
        "the learning rate",
        update.learning_rate,
        (
            Mark(
                "rate-rises-again",
                update.rises_again,
                advice="Make the schedule as long as the training: its steps count calls of `scheduler.step()`.",
            ),
            Mark(
                "rate-still-rises",
                update.still_rises,
                advice="Make the warm-up shorter than the training: its steps count calls of `scheduler.step()`.",
            ),
            Mark(
                "rate-nearly-gone",
                update.nearly_gone,
                advice=(
                    "Make the schedule as long as the training: its steps count calls of `scheduler.step()`. With "
                    "a rate of next to 0 nothing is learned."
                ),
            ),
            Mark(
                "rate-tiny",
                lambda value: 0 < value["largest"] < 1e-5,
                advice=(
                    "Look whether the rate of your options is the one that the optimizer got, and by what the "
                    "schedule multiplies it."
                ),
            ),
        ),
    ),
    Subject("updates-skipped", "update", "updates that the Plan left out", update.skipped),
    Subject(
        "rate-zero",
        "update",
        "updates at rate 0",
        update.rate_zero,
        # A warm-up begins with one such update.
        (
            Mark(
                "rate-zero",
                lambda value: value["updates"] > 1,
                advice=(
                    "Make the schedule as long as the training: its steps count calls of `scheduler.step()`. At "
                    "rate 0 nothing is learned."
                ),
            ),
        ),
    ),
    Subject(
        "clipping",
        "update",
        "clipping",
        update.clipping,
        (
            Mark(
                "all-calls-clip",
                lambda value: value["calls"] > 1 and value["clipped"] == value["calls"],
                advice=(
                    "Raise the limit until few steps are clipped, or lower it on purpose: as it is, the length of "
                    "a step is the limit's and not the gradient's."
                ),
            ),
            Mark(
                "clips-to-a-hundredth",
                lambda value: (value.get("times_the_limit") or 0) >= update.HARD,
                advice=(
                    "Look whether the limit is in the units of the gradient: with a GradScaler call "
                    "`scaler.unscale_(optimizer)` before it, and divide a sum of losses first."
                ),
            ),
            Mark(
                "no-call-clips",
                lambda value: value["calls"] > 1 and not value["clipped"],
                advice=(
                    "Look whether the limit is meant to act, and whether gradients are clipped before they were "
                    "divided or unscaled."
                ),
            ),
        ),
    ),
    Subject(
        "scaler",
        "update",
        "the loss scale",
        update.scaler,
        (
            Mark(
                "scaler-leaves-out-many",
                update.leaves_out_many,
                advice=(
                    "Look where infinities come from (`trueline check` names NaN and infinities), or train in "
                    "bfloat16, which needs no GradScaler."
                ),
            ),
        ),
    ),
    Subject("autocast", "precision", "autocast", precision.autocast),
    Subject("switches", "precision", "switches of torch", precision.switches),
    Subject("seeds", "precision", "seeds", precision.seeds),
    Subject(
        "random-streams",
        "precision",
        "random streams",
        precision.streams,
        (
            Mark(
                "streams-shared",
                lambda value: any(value.values()),
                advice="Add the rank to the seed after the model is made: `torch.manual_seed(seed + rank)`.",
            ),
        ),
    ),
    Subject("starts", "starts", "starts", precision.starts),
)
