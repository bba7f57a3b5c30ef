"""Configurations of axolotl, TRL, OpenRLHF, slime, NeMo-RL and Accelerate in the words that they share."""

import pytest
from tests.unit.same_job.test_diff import names, written

from trueline.same_job.diff import diff
from trueline.same_job.settings import detect_framework, gathered
from trueline.store.job_files import config_files

AXOLOTL = """base_model: org/model-7b
adapter: {adapter}
sequence_len: 4096
sample_packing: true
micro_batch_size: {micro}
gradient_accumulation_steps: 4
num_epochs: 2
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 2e-4
datasets:
  - path: org/{data}
    type: chat_template
  - path: org/second
    type: chat_template
output_dir: ./out/{adapter}
"""
LLAMA_FACTORY = """model_name_or_path: elsewhere/model-7b
finetuning_type: {adapter}
cutoff_len: 4096
packing: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
num_train_epochs: 2
optim: adamw_torch
lr_scheduler_type: cosine
learning_rate: 2e-4
dataset: first,second
bf16: true
"""


def axolotl(tmp_path, name, adapter="full", micro=2, data="first"):
    return written(tmp_path, name, AXOLOTL.format(adapter=adapter, micro=micro, data=data))


def test_an_adapter_is_one_line_and_what_it_is_made_of_is_none(tmp_path):
    with_rank = axolotl(tmp_path, "lora.yaml", adapter="qlora")
    with_rank.write_text(with_rank.read_text() + "lora_r: 16\nlora_alpha: 32\nload_in_4bit: true\n")
    result = diff(axolotl(tmp_path, "full.yaml"), with_rank)
    assert names(result) == ["adapters", "quantisation"]


def test_the_rank_of_an_adapter_that_both_have_is_named(tmp_path):
    sides = [axolotl(tmp_path, f"{rank}.yaml", adapter="lora") for rank in (8, 16)]
    for rank, side in zip((8, 16), sides, strict=True):
        side.write_text(side.read_text() + f"lora_r: {rank}\n")
    assert names(diff(*sides)) == ["lora-rank"]


def test_a_mixture_of_data_sets_is_one_line(tmp_path):
    (difference,) = diff(axolotl(tmp_path, "a.yaml"), axolotl(tmp_path, "b.yaml", data="other")).differences
    assert (difference.name, difference.run, difference.ref) == (
        "dataset",
        "org/first, org/second",
        "org/other, org/second",
    )


def test_model_and_data_sets_compare_across_frameworks(tmp_path):
    other = written(tmp_path, "b.yaml", LLAMA_FACTORY.format(adapter="full"))
    same = diff(axolotl(tmp_path, "a.yaml"), other)
    assert not {"model", "dataset", "adapters", "sequence-length", "learning-rate"} & set(names(same))
    other.write_text(other.read_text().replace("first,second", "first,third"))
    assert diff(axolotl(tmp_path, "a.yaml"), other).differences[0].name == "dataset"


def test_samples_per_rank_count_where_the_number_of_ranks_is_not_known(tmp_path):
    first, *rest = diff(axolotl(tmp_path, "a.yaml"), axolotl(tmp_path, "b.yaml", micro=4)).differences
    assert (first.name, first.run, first.ref, first.severity) == ("global-batch", "8", "16", "warning")
    assert {difference.severity for difference in rest} == {"info"}


def test_the_factor_of_a_batch_that_differs_is_the_line_to_look_at(tmp_path):
    sides = [axolotl(tmp_path, f"{count}.yaml") for count in (4, 8)]
    sides[1].write_text(sides[1].read_text().replace("accumulation_steps: 4", "accumulation_steps: 8"))
    first = diff(*sides).differences[0]
    assert (first.run_where, first.ref_where) == tuple(f"{count}.yaml: gradient_accumulation_steps" for count in (4, 8))


def test_modules_that_an_adapter_saves_are_trained_too(tmp_path):
    sides = [axolotl(tmp_path, f"{name}.yaml", adapter="lora") for name in ("a", "b")]
    sides[1].write_text(sides[1].read_text() + "lora_modules_to_save: [embed_tokens]\nsave_steps: 5\n")
    assert names(diff(*sides)) == ["lora_modules_to_save"]


def test_weights_of_data_sets_by_name_are_a_mixture():
    options = {"dataset_mixer.org.data_a": 1.0, "dataset_mixer.org.data_b": 0.5, "beta": 0.1}
    assert gathered(options) == {
        "beta": 0.1,
        "dataset_mixer": ["org/data_a", "org/data_b"],
        "dataset_mixer_weights": [1.0, 0.5],
    }


def test_lists_of_other_things_stay_as_they_are():
    options = {"scheduler.0.name": "linear", "scheduler.1.milestones": [5], "betas.0": 0.9}
    assert gathered(options) == options


NEMO = """policy:
  model_name: org/model
  tokenizer: {name: "${policy.model_name}"}
  train_global_batch_size: 512
  max_total_sequence_length: 512
  optimizer: {kwargs: {lr: 5.0e-6}}
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16}
loss_fn: {ratio_clip_min: 0.2, ratio_clip_max: 0.2}
"""


def test_a_recipe_inherits_and_names_what_it_changes(tmp_path):
    base = written(tmp_path, "grpo.yaml", NEMO)
    recipe = "defaults: ../grpo.yaml\npolicy: {model_name: org/larger}\nloss_fn: {ratio_clip_max: 0.28}\n"
    result = diff(base, written(tmp_path, "recipes/larger.yaml", recipe))
    assert set(names(result)) == {"model", "tokenizer", "clip-ratio-high"}
    assert [difference.ref for difference in result.differences if difference.name == "tokenizer"] == ["org/larger"]


def test_what_is_inherited_from_a_file_that_is_not_there_is_not_compared(tmp_path):
    recipe = (
        "defaults: ../absent.yaml\npolicy: {model_name: org/model, max_total_sequence_length: '${oc.env:LENGTH}'}\n"
    )
    result = diff(written(tmp_path, "grpo.yaml", NEMO), written(tmp_path, "recipes/larger.yaml", recipe))
    assert "sequence-length" not in names(result)
    assert (
        "larger.yaml inherits from ../absent.yaml, which is not there: what that sets is not compared." in result.notes
    )
    assert "Not known without a shell or another file, and not compared: sequence length." in result.notes


def test_files_that_inherit_from_one_another_are_read_once(tmp_path, monkeypatch):
    all_names = [f"{number}.yaml" for number in range(12)]
    for name in all_names:
        written(tmp_path, name, f"defaults: [{', '.join(all_names)}, _self_]\nlr_{name[:-5]}: {name[:-5]}\n")
    texts = []
    read = config_files.text_of
    monkeypatch.setattr(config_files, "text_of", lambda path: texts.append(path.name) or read(path))
    assert config_files.read_config(tmp_path / "0.yaml") == {f"lr_{number}": number for number in range(12)}
    assert sorted(texts) == sorted(all_names)


def test_values_that_name_one_another_end(tmp_path):
    circle = written(tmp_path, "a.yaml", 'policy: {model_name: "${policy.other}", other: "${policy.model_name}"}\n')
    assert diff(circle, circle).differences == ()


ZERO = '{"train_batch_size": 64, "zero_optimization": {"stage": %d, "sub_group_size": %d, "stage3_max_reuse": %d}}'


def test_bookkeeping_of_sharding_is_rounding(tmp_path):
    result = diff(written(tmp_path, "a.json", ZERO % (2, 10, 10)), written(tmp_path, "b.json", ZERO % (3, 20, 30)))
    assert len(result.differences) == 3
    assert (result.exit_code, result.telling) == (0, ())


def test_options_of_unknown_effect_come_last_and_do_not_lead_the_verdict(tmp_path):
    sides = [axolotl(tmp_path, f"{rate}.yaml") for rate in ("1e-4", "2e-4")]
    for side, rate in zip(sides, ("1e-4", "3e-4"), strict=True):
        side.write_text(
            side.read_text().replace("2e-4", rate) + f"attn_magic: {rate}x\nuse_kernels: {rate == '1e-4'}\n"
        )
    result = diff(*sides)
    assert names(result) == ["learning-rate", "special-kernels", "attn_magic"]
    assert result.headline.startswith(
        "1 difference that can explain other numbers, and 1 option of unknown effect; 1 more"
    )
    for side in sides:
        side.write_text(side.read_text().replace("1e-4\nd", "3e-4\nd"))
    alone = diff(*sides)
    assert alone.headline.startswith(
        "Nothing that is known to explain other numbers; 1 option of unknown effect differs"
    )
    assert alone.exit_code == 1


@pytest.mark.parametrize(
    ("options", "framework"),
    [
        ({"actor.model_name_or_path": 1, "rollout.batch_size": 2, "ds.zero_stage": 3}, "openrlhf"),
        ({"hf_checkpoint": 1, "rm_type": 2, "lr": 3, "seq_length": 4}, "slime"),
        ({"policy.model_name": 1, "grpo.num_prompts_per_step": 2}, "nemo-rl"),
        ({"base_model": 1, "sequence_len": 2, "learning_rate": 3}, "axolotl"),
        ({"model_name_or_path": 1, "learning_rate": 2, "lora_r": 3}, "hf"),
        ({"model_name_or_path": 1, "cutoff_len": 2, "template": 3}, "llamafactory"),
    ],
)
def test_a_framework_is_known_by_its_own_words(options, framework):
    assert detect_framework(options) == framework


def test_what_stands_below_a_switch_that_is_off_does_nothing(tmp_path):
    text = (
        "policy:\n  model_name: a\n  dtensor_cfg: {lora_cfg: {enabled: %s, dim: %d}}\ngrpo: {num_prompts_per_step: 8}\n"
    )
    off = [written(tmp_path, f"{dim}.yaml", text % ("false", dim)) for dim in (8, 16)]
    assert diff(*off).differences == ()
    (adapters,) = diff(off[0], written(tmp_path, "on.yaml", text % ("true", 16))).differences
    assert (adapters.name, adapters.run, adapters.ref, adapters.note) == ("adapters", "full", "lora", "LoRA: rank 16")


def test_a_section_that_is_set_to_nothing_is_not_inherited(tmp_path):
    base = written(tmp_path, "grpo.yaml", NEMO)
    recipe = "defaults: ../grpo.yaml\npolicy: {optimizer: null, megatron_cfg: {optimizer: {lr: 1.0e-6}}}\n"
    (rate,) = diff(base, written(tmp_path, "recipes/megatron.yaml", recipe)).differences
    assert (rate.name, rate.run, rate.ref) == ("learning-rate", "5e-06", "1e-06")
