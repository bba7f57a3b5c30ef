"""Checkpoints of transformers: marked as clean, and held back while an error is open, which all ranks do alike."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import sys, time, torch, trueline
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from trueline.integrations.transformers import TruelineCallback

out = sys.argv[1]
torch.manual_seed(0)
sizes = dict(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2))
tokens = torch.randint(0, 64, (64, 8), generator=torch.Generator().manual_seed(1))
given = dict(report_to=[], save_strategy="steps", save_steps=4, disable_tqdm=True, use_cpu=True, max_steps=16)
args = TrainingArguments(out + "-hf", per_device_train_batch_size=4, save_only_model=True, **given)

class Breaks(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 6:
            with torch.no_grad():
                model.lm_head.weight[0, 0] = float("nan")
        while state.global_step == 8 and not trueline.clean(out).is_open:
            time.sleep(0.05)  # the time-out of the test is its limit

data = [{"input_ids": one, "labels": one} for one in tokens]
Trainer(model, args, train_dataset=data, callbacks=[Breaks(), TruelineCallback(out, checkpoints="hold")]).train()
"""


@pytest.mark.in_turn
def test_no_checkpoint_is_saved_while_an_error_is_open_and_the_others_say_that_they_are_clean(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "train.py", "run"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "run-hf").glob("checkpoint-*")] == ["checkpoint-4"]
    assert "trueline: no checkpoint at step 8: an error is open." in done.stderr
    mark = json.loads((tmp_path / "run-hf" / "checkpoint-4" / "trueline.json").read_text())
    assert (mark["updates"], mark["clean"], mark["step"], mark["is_open"]) == (4, True, 5, True)
    assert [fault["code"] for fault in mark["faults"]] == ["worker-nonfinite"]


def agree(rank, world):
    from trueline.capture.model.world import as_first_rank_has

    return as_first_rank_has(rank == 0), as_first_rank_has(rank == 1)


def test_all_ranks_do_as_the_first_one(two):
    assert two.run(agree) == [(True, False)] * 2
