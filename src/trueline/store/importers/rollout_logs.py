"""Logs and dumps of reinforcement learning as the table ``rollouts``: verl, TRL, OpenRLHF, slime, NeMo-RL.

What a file is, is seen from what it holds:

- JSON lines of sequences (NeMo-RL's ``train_data_step*.jsonl``: ``generation_logprobs``, ``prev_logprobs``, over the
  whole sequence, 0 where nothing was generated);
- JSON lines, or the ``log_history`` of a ``trainer_state.json``, of means a step (verl's file logger: ``step``,
  ``data``; TRL; OpenRLHF);
- verl's ``DataProto.save_to_disk``, or a ``TensorDict`` (see ``data_proto``);
- a file of ``torch.save`` or safetensors with tensors of a batch (OpenRLHF's experiences, TRL's inputs), or with a
  list of ``samples`` (slime's ``--save-debug-train-data``; what that lacks of the engine's is in the file of the same
  name of ``--save-debug-rollout-data``, in the folder ``rollout_data`` beside it).

Nothing in a file is executed: other pickled objects are refused.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from trueline.schema.columns.rollouts import TableRows
from trueline.schema.errors import InputError
from trueline.schema.files.run_manifest import Manifest
from trueline.schema.text.reading import reading, shortened
from trueline.schema.text.words import counted
from trueline.schema.whole_sequences import cut_to_responses
from trueline.store.importers import data_proto, safetensors, torch_files
from trueline.store.importers.target import new_run, require_free

RowsOf = Callable[[int, Mapping[str, Any], Mapping[str, Any] | None], TableRows]
"""``trueline.rl.batch.rows_of``: whoever imports hands it in, as ``store`` cannot see ``rl``."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "prompt_ids": ("prompts", "prompt_ids"),
    "response_ids": ("responses", "completion_ids", "response_ids"),
    "mask": ("response_mask", "completion_mask", "action_mask", "loss_mask"),
    "logp_rollout": ("rollout_log_probs", "sampling_per_token_logps", "rollout_logprobs"),
    "logp_train": ("old_log_probs", "old_per_token_logps", "old_action_log_probs", "action_log_probs", "log_probs"),
    "entropy": ("entropys", "entropies", "entropy"),
    "varentropy": ("varentropys", "varentropy"),
    "reward": ("token_level_scores", "rewards", "reward"),
    "version_rollout": ("version_rollout", "rollout_version", "min_global_steps"),
    "version_train": ("version_train", "train_version"),
}
"""Columns by the names that verl, TRL, OpenRLHF and slime have for them, the first that is there."""

MEANS: Mapping[str, tuple[str, ...]] = {
    "mean_diff": ("rollout_corr/kl", "actor/rollout_corr/kl", "mismatch/mismatch_kl", "vllm_kl", "train/vllm_kl"),
    "mean_k3": ("rollout_corr/k3_kl", "actor/rollout_corr/k3_kl", "mismatch/mismatch_k3_kl"),
    "mean_abs_diff": (
        *("sampling/sampling_logp_difference/mean", "train_rollout_logprob_abs_diff"),
        *("train/train_rollout_logprob_abs_diff", "rollout_corr/log_ppl_abs_diff"),
    ),
}
"""Columns of means a step, by the names of frameworks: k1, k3 and |d| of d = logp_rollout - logp_train."""

_MOST_STEPS = 2**53
"""Steps from here on are refused: floats skip whole numbers there."""
_TRAINED, _SAMPLED = "train_data", "rollout_data"
"""Folders of slime's ``--dump-details``, which hold files of the same names."""
_STEP = re.compile(r"(\d+)\D*$")


def import_rollouts(source: str, target: str, rows_of: RowsOf, *, version: str) -> dict[str, int]:
    """Write what ``source``, a file or a directory of such, holds of rollouts as a Run at ``target``; how many steps
    and rows there were.

    Raises ``InputError`` where nothing of the kind is in it, or it is damaged, and then leaves nothing behind.
    """
    require_free(target)
    paths = _paths(source)
    with reading(f"'{shortened(source)}'", "Copy it again, or leave out the file; nothing was imported."):
        notes: list[str] = []
        tables = [table for path in paths for table in _tables(path, rows_of, notes)]
    if not tables:
        raise InputError(
            f"'{source}' holds nothing of rollouts: no log-probabilities of both sides "
            f"({_known_names('logp_rollout')} and {_known_names('logp_train')}, or NeMo-RL's "
            "generation_logprobs and prev_logprobs), and no means of them "
            f"({', '.join(name for names in MEANS.values() for name in names[:1])})."
        )
    facts = {"format": "rl", "path": os.path.abspath(source), "files": len(paths)}
    with new_run(target, Manifest(trueline_version=version, source=facts, notes=notes)) as run, run.rank(0) as sink:
        for table in sorted(tables, key=lambda table: table.step):
            sink.write(table)
    return {"steps": len({table.step for table in tables}), "rows": sum(table.num_rows for table in tables)}


def _known_names(column: str) -> str:
    return " or ".join(NAMES[column][:2])


def _paths(source: str) -> list[str]:
    if not os.path.exists(source):
        raise InputError(f"'{source}' does not exist. Pass a log (.jsonl, .json) or a dump (.pt, .safetensors).")
    if not os.path.isdir(source):
        return [source]
    trained = os.path.join(source, _TRAINED)  # slime's --dump-details
    folder = trained if os.path.isdir(trained) else source
    names = [name for name in os.listdir(folder) if name.endswith((".jsonl", ".json", ".pt", ".pth", ".safetensors"))]
    return [os.path.join(folder, name) for name in sorted(names, key=lambda name: (_step_in(name) or 0, name))]


def _step_in(path: str) -> int | None:
    """The last number in the name of a file."""
    match = _STEP.search(os.path.basename(path).rpartition(".")[0])
    return int(match[1]) if match else None


def _tables(path: str, rows_of: RowsOf, notes: list[str]) -> Iterator[TableRows]:
    """The tables of one file; ``notes`` takes a line on those of its lines that could not be read."""
    step = _step_in(path) or 0
    if path.endswith((".jsonl", ".json")):
        lines = _json_lines(path)
        sequences = [line for line in lines if "generation_logprobs" in line and "prev_logprobs" in line]
        if sequences:
            columns = _of_nemo_rl(sequences)
            if "logp_train" in columns:
                yield rows_of(step, columns, None)
        else:
            tables = [_means_of(line, index) for index, line in enumerate(lines)]
            lacking = [index for index, line in enumerate(lines) if tables[index] is None and _names_means(line)]
            if num_lacking := len(lacking):
                notes.append(
                    f"'{os.path.basename(path)}': {counted(num_lacking, 'line')} of {len(lines)} with means of "
                    f"rollouts {'has' if num_lacking == 1 else 'have'} no number or no step, the first is "
                    f"line {lacking[0] + 1}."
                )
            yield from filter(None, tables)
        return
    content = _read_arrays(path)
    samples = _samples_in(content)
    if samples:
        columns = _of_slime(samples, _sampled_for(path, samples))
        step = int(content.get("rollout_id", step))
    elif all(name in content for name in ("input_ids", "logprobs", "prox_logp", "loss_mask")):
        columns = _of_areal(content)
    else:
        columns = _of_batch(content)
    if "logp_rollout" in columns and "logp_train" in columns:
        yield rows_of(step, columns, None)


def _json_lines(path: str) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, or of the ``log_history`` in a JSON document. Lines that a kill cut off at
    the end are left out; others raise ``InputError``.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if not path.endswith(".jsonl"):
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InputError(f"'{path}' is not JSON: {error}. Copy it again.") from None
        entries = document.get("log_history", []) if isinstance(document, dict) else document
        return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    objects: list[dict[str, Any]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line) if line.strip() else {}
        except ValueError as error:
            if number == len(lines):
                break
            raise InputError(
                f"Line {number} of '{path}' is not JSON: {error}. Remove it, or copy the file again."
            ) from None
        if isinstance(entry, dict) and entry:
            objects.append(entry)
    return objects


def _of_nemo_rl(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Log-probabilities over prompt and response; a token counts where the engine generated it."""
    names = ("token_ids", "generation_logprobs", "prev_logprobs", "token_loss_mask")
    rewards = [_number(line.get("rewards")) for line in lines]
    # each line holds a batch of one
    sequences = (tuple(line.get(name) for name in names) for line in lines)
    return cut_to_responses(sequences) | {"reward": rewards}


def _of_areal(content: Mapping[str, Any]) -> dict[str, Any]:
    """As AReaL has a batch before advantages: ``prox_logp`` stands at the token before."""
    names = ("input_ids", "logprobs", "prox_logp", "loss_mask")
    ids, rollout, prox, mask = (np.asarray(content[name]) for name in names)
    columns = cut_to_responses(zip(ids, rollout, np.roll(prox, 1, axis=-1), mask, strict=True))
    if content.get("versions") is not None:
        versions = np.where(mask != 0, np.asarray(content["versions"]), np.iinfo(np.int64).max)
        columns["version_rollout"] = list(versions.min(axis=-1))
    return columns | {"reward": np.asarray(content["rewards"])} if "rewards" in content else columns


def _samples_in(content: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The samples of a dump of slime; of an older one, which has a list for each column, made of these."""
    samples, columns = content.get("samples"), content.get("rollout_data")
    if isinstance(columns, Mapping) and isinstance(columns.get("response_lengths"), Sequence):
        num = len(columns["response_lengths"])
        whole = {
            name: column for name, column in columns.items() if isinstance(column, Sequence) and len(column) == num
        }
        return [{name: column[index] for name, column in whole.items()} for index in range(num)]
    if isinstance(samples, Sequence) and all(isinstance(sample, Mapping) for sample in samples):
        return samples
    return ()


def _sampled_for(path: str, samples: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Of each sample that was trained on, what the engine left of it: itself, or what stands at its place in the file
    of the same name in the folder beside.
    """
    folder, name = os.path.split(path)
    sampled_path = os.path.join(os.path.dirname(folder), _SAMPLED, name)
    lacking = all(sample.get("rollout_log_probs") is None for sample in samples)
    if not lacking or os.path.basename(folder) != _TRAINED or not os.path.isfile(sampled_path):
        return samples
    sampled = _samples_in(_read_arrays(sampled_path))
    positions = [sample.get("rollout_position", position) for position, sample in enumerate(samples)]
    # a position that leads nowhere says that the files are not of one step
    all_valid = all(isinstance(position, int) and 0 <= position < len(sampled) for position in positions)
    return [sampled[position] for position in positions] if all_valid else samples


def _of_slime(samples: Sequence[Mapping[str, Any]], sampled: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of samples, as both dumps name them, with log-probabilities of the engine from ``sampled``."""
    columns: dict[str, Any] = {
        name: [] for name in ("response_ids", "prompt_ids", "mask", "logp_rollout", "logp_train", "reward")
    }
    for sample, engine in zip(samples, sampled, strict=True):
        ids = np.ravel(np.asarray(_first(sample, "tokens", default=[])))
        length = int(_first(sample, "response_length", "response_lengths", default=0))
        columns["response_ids"].append(ids[len(ids) - length :])
        columns["prompt_ids"].append(ids[: len(ids) - length])
        columns["mask"].append(_first(sample, "loss_mask", "loss_masks", default=np.ones(length, int)))
        columns["logp_rollout"].append(engine.get("rollout_log_probs"))
        columns["logp_train"].append(sample.get("log_probs"))
        columns["reward"].append(_number(_first(sample, "reward", "rewards", default=None)))
    return columns if any(sample is not None for sample in columns["logp_train"]) else {}


def _first(sample: Mapping[str, Any], *names: str, default: Any) -> Any:
    """The value under the first of ``names`` that has one, and some of it."""
    values = (sample.get(name) for name in names)
    return next((value for value in values if value is not None and np.size(value)), default)


def _of_batch(content: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a batch, by the names that frameworks have for them."""
    columns: dict[str, Any] = {}
    for column, names in NAMES.items():
        value = next((content[name] for name in names if content.get(name) is not None), None)
        if value is not None:
            columns[column] = value
    whole, prompts = content.get("attention_mask"), columns.get("prompt_ids")
    if whole is not None and prompts is not None:
        # verl pads prompts on the left
        columns["prompt_ids"] = [
            np.asarray(ids)[np.asarray(mask)[: len(ids)] != 0] for ids, mask in zip(prompts, whole, strict=True)
        ]
    elif prompts is not None:
        columns["prompt_ids"] = _without_padding(prompts)
    if "reward" in columns:
        array = np.asarray(columns["reward"])
        # frameworks put the reward of a sequence on its last token
        columns["reward"] = array.sum(axis=-1) if array.ndim > 1 else array
    return columns


def _without_padding(prompts: Any) -> Any:
    """Prompts of one width without the id that begins some of them several times, and others never, so that it pads."""
    rows = [np.asarray(ids) for ids in prompts]
    if len({ids.shape for ids in rows}) != 1 or not rows[0].size:
        return prompts
    runs = [int((ids != ids[0]).argmax()) or len(ids) for ids in rows]
    longest = int(np.argmax(runs))
    padding = rows[longest][0]
    if runs[longest] < 2 or all(ids[0] == padding for ids in rows):
        return prompts
    return [ids[run:] if ids[0] == padding else ids for ids, run in zip(rows, runs, strict=True)]


def _means_of(line: Mapping[str, Any], line_index: int) -> TableRows | None:
    """The row of one line of a log; None where it has no mean, or no step of a trainer."""
    data = _data(line)
    step = _number(line.get("step", data.get("training/global_step", line_index)))
    means = {
        column: next((value for name in names if (value := _number(data.get(name))) is not None), None)
        for column, names in MEANS.items()
    }
    if (
        step is None
        or not 0 <= step < _MOST_STEPS
        or all(value is None or math.isnan(value) for value in means.values())
    ):
        return None
    # A row of means is one with mean_diff: what a log lacks of the others is NaN.
    filled = {column: [float("nan") if value is None else value] for column, value in means.items()}
    return TableRows("rollouts", int(step), 1, filled)


def _names_means(line: Mapping[str, Any]) -> bool:
    return any(name in _data(line) for names in MEANS.values() for name in names)


def _data(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a line, which verl has one deeper."""
    return line["data"] if isinstance(line.get("data"), Mapping) else line


def _number(value: Any) -> float | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@functools.lru_cache(maxsize=1)
def _read_arrays(path: str) -> Mapping[str, Any]:
    """The tensors of a file as arrays, by name."""
    if path.endswith(safetensors.SUFFIX):
        return {weight.name: _plain(weight.load()) for weight in safetensors.read_file(path)}
    content = data_proto.read_batch(path) or torch_files.read_file(path)
    if isinstance(content, Mapping) and isinstance(content.get("batch"), Mapping):
        content = content["batch"]
    return {str(name): _plain(value) for name, value in content.items()} if isinstance(content, Mapping) else {}


def _plain(value: Any) -> Any:
    """A tensor as an array, and lists of them likewise."""
    if hasattr(value, "detach"):
        value = value.detach()
        return (value.float() if value.is_floating_point() else value).cpu().numpy()
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return {name: _plain(inner) for name, inner in value.items()} if isinstance(value, Mapping) else value
