"""Two jobs are compared in what both tell; what follows from settings counts, and not how it is written."""

import json
from dataclasses import replace

import pytest
from tests.unit.healthy_run import healthy_rows, rank_env, write_run

import trueline
from trueline.same_job.derived import derive, first_differing_rates
from trueline.same_job.diff import diff
from trueline.same_job.settings import detect_framework, read_settings
from trueline.same_job.vocabulary import vocabulary, weights
from trueline.schema.errors import CannotTell, InputError
from trueline.schema.files.job_facts import JobFacts


def written(tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(result):
    return [difference.name for difference in result.differences]


MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain.py --lr 1e-4 --lr-warmup-fraction 0.1 --lr-decay-style cosine --min-lr 0 "
    "--train-iters 1000 --micro-batch-size 4 --global-batch-size 64 --seq-length 2048 --weight-decay 0 --bf16 "
    "--adam-beta2 0.999 --seed 42"
)
TRAINER = """learning_rate: 1e-4
warmup_ratio: 0.1
lr_scheduler_type: cosine
max_steps: 1000
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
bf16: true
seed: 42
optim: adamw_torch
"""


def test_a_megatron_job_and_a_trainer_job_that_are_the_same(tmp_path):
    result = diff(written(tmp_path, "a.sh", MEGATRON), written(tmp_path, "b.yaml", TRAINER))
    assert names(result) == []
    assert result.compared["settings"] >= 8


def test_a_fraction_of_one_framework_is_compared_with_steps_of_another(tmp_path):
    trainer = TRAINER.replace("warmup_ratio: 0.1", "warmup_steps: 50")
    result = diff(written(tmp_path, "a.sh", MEGATRON), written(tmp_path, "b.yaml", trainer))
    (only,) = [difference for difference in result.differences if difference.topic == "optimizer"]
    assert (only.name, only.run, only.ref) == ("warmup-steps", "100", "50")
    assert only.run_where == "a.sh: lr_warmup_fraction"


def test_the_same_global_batch_by_other_micro_batches_is_rounding(tmp_path):
    base = "--train-iters 10 --global-batch-size 64 --lr 1e-4 "
    sides = [written(tmp_path, f"{n}.sh", f"python train.py {base}--micro-batch-size {n}") for n in (2, 4)]
    result = diff(*sides)
    assert names(result) == ["micro-batch"]
    assert result.exit_code == 0


def test_curves_part_where_nothing_stated_differs():
    options = {"lr": 1e-3, "lr_decay_style": "cosine", "lr_warmup_iters": 10, "min_lr": 0.0}
    derived, ref_derived = (derive(read_settings({"a": {**options, "train_iters": steps}})) for steps in (100, 200))
    step, rate, ref = first_differing_rates(derived, ref_derived)
    assert step > 10
    assert rate < ref
    assert first_differing_rates(derived, derived) is None


def test_the_rate_is_that_of_torch():
    """Peak after warm-up, half way down a cosine in the middle, the lowest rate at its end."""
    options = {"lr": 1e-3, "lr_decay_style": "cosine", "lr_warmup_iters": 10, "min_lr": 1e-4, "train_iters": 110}
    rate = derive(read_settings({"a": options})).rate
    assert [rate(step) for step in (5, 10, 60, 110)] == pytest.approx([5e-4, 1e-3, 5.5e-4, 1e-4])


def test_order_of_options_paths_and_spelling_are_silent(tmp_path):
    run = written(
        tmp_path, "a/config.json", json.dumps({"lr": 1e-4, "data_path": "/data/x.bin", "seed": 1, "bf16": True})
    )
    ref = written(
        tmp_path, "b/config.json", json.dumps({"bf16": "true", "seed": "1", "data_path": "/mnt/x.bin", "lr": "0.0001"})
    )
    assert names(diff(run, ref)) == []


def test_an_option_nobody_knows_is_named_as_it_is(tmp_path):
    sides = [written(tmp_path, f"{n}.json", json.dumps({"lr": 1e-4, "frobnicate": n})) for n in (1, 2)]
    result = diff(*sides)
    assert names(result) == ["frobnicate"]
    assert "not in the vocabulary" in result.differences[0].note
    assert result.exit_code == 1


def test_secrets_are_shown_nowhere(tmp_path):
    sides = [
        written(tmp_path, f"{n}.yaml", f"lr: 0.1\nhub_token: hf_{str(n) * 30}\napi_key: k{n}abc9def7\n") for n in (1, 2)
    ]
    text = json.dumps(diff(*sides).to_json())
    assert "hf_1111" not in text
    assert "k1abc9" not in text


def test_nothing_in_common_is_no_answer(tmp_path):
    config = written(tmp_path, "a.json", json.dumps({"lr": 1e-4}))
    tokenizer = written(tmp_path, "tok/tokenizer_config.json", json.dumps({"padding_side": "left"}))
    with pytest.raises(CannotTell, match="nothing in common"):
        diff(config, tokenizer)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "is no JSON"),
        ("a.yaml", "a: [1", "is no YAML"),
        ("a.toml", "a = ", "is no TOML"),
        ("a.json", "[1]", "holds a list"),
        ("a.txt", "lr=1", "of a kind that is not known"),
        ("a.zip", "PK", "cannot be read"),
    ],
)
def test_what_is_no_job_is_refused_in_one_sentence(tmp_path, name, text, said):
    path = written(tmp_path, name, text)
    with pytest.raises(InputError, match=said) as raised:
        diff(path, path)
    assert "\n" not in str(raised.value)


def test_an_environment_alone_does_not_tell_that_jobs_are_the_same(tmp_path):
    env = written(tmp_path, "env.json", json.dumps({"environ": {"NCCL_ALGO": "Ring"}, "versions": {"torch": "2.6"}}))
    result = diff(env, env)
    assert (result.differences, result.exit_code) == ((), 3)
    assert "settings could not be compared" in result.headline


def test_tokenizers_are_compared_by_content(tmp_path):
    for name, vocabulary_, side in (("a", {"x": 0, "y": 1}, "left"), ("b", {"x": 0, "z": 1}, "right")):
        document = {"model": {"vocab": vocabulary_}, "added_tokens": [{"content": "<s>", "id": 2, "special": True}]}
        written(tmp_path, f"{name}/tokenizer.json", json.dumps(document))
        written(tmp_path, f"{name}/tokenizer_config.json", json.dumps({"padding_side": side}))
    assert set(names(diff(tmp_path / "a", tmp_path / "b"))) == {"tokenizer.vocabulary", "tokenizer.padding_side"}
    assert names(diff(tmp_path / "a", tmp_path / "a")) == []


def test_every_framework_is_known_by_its_own_words():
    assert detect_framework({"tensor_model_parallel_size": 1, "lr": 1e-4, "train_iters": 10}) == "megatron"
    assert detect_framework({"learning_rate": 1e-4, "warmup_ratio": 0.1, "bf16": True}) == "hf"
    assert detect_framework({"optimizer.lr": 1e-4, "training.steps": 10}) == "torchtitan"
    assert detect_framework({"my_own": 1}) == "plain"


def test_every_term_has_what_the_vocabulary_promises():
    assert len(vocabulary().terms) > 100
    for term in vocabulary().terms.values():
        assert term.code in {"config-differs", "rng-differs", "dataset-differs"}
        assert 0 <= term.likely <= 100
        assert term.starts in {"start", "update", "rounding"}
        assert any(
            term.slug == rule.term.slug for rules in vocabulary().rules.values() for r in rules.values() for rule in r
        )
    assert {"options", "variables", "packages", "flags", "devices", "build"} <= set(weights())


def test_two_runs_of_one_job_do_not_differ(tmp_path):
    runs = [write_run(tmp_path / name, healthy_rows(2, 4)) for name in ("a", "b")]
    result = trueline.diff(*(run.path for run in runs))
    assert result.differences == ()
    assert result.began == "never"


def changed_run(tmp_path, change):
    """A Run whose rows ``change`` has changed, and its losses with them, and one without."""
    rows = healthy_rows(2, 4)
    for row in rows.values():
        row["sample_digests"] = [1, 2, 3]
        row["target_digests"] = [4, 5, 6]
    sides = []
    for name in ("run", "ref"):
        copied = {key: dict(row) for key, row in rows.items()}
        if name == "run":
            change(copied)
            for row in copied.values():
                row["loss"] *= 1.5
        sides.append(write_run(tmp_path / name, copied))
    return diff(*sides)


def test_other_samples_are_named(tmp_path):
    result = changed_run(tmp_path, lambda rows: rows[0, 0].update(sample_digests=[1, 2, 9]))
    assert "first-batch" in names(result)
    assert result.exit_code == 1


def test_first_batches_of_unequal_size_are_not_compared_and_a_note_says_so(tmp_path):
    result = changed_run(tmp_path, lambda rows: rows[0, 0].update(sample_digests=[1, 2], target_digests=[4, 5]))
    assert names(result) == []
    (note,) = result.notes
    assert "descends 5 samples here and 6 in REF" in note


@pytest.mark.parametrize(("digests", "expected"), [([7, 8, 9], []), ([1, 8, 9], ["first-batch"])])
def test_inputs_and_weights_that_were_cast_are_not_taken_for_other_ones(tmp_path, digests, expected):
    """Where parameters have another dtype, no equal digest is no other data; some equal ones and others are."""
    sides = []
    for name, dtype in (("run", "torch.bfloat16"), ("ref", "torch.float32")):
        rows = healthy_rows(2, 4)
        for row in rows.values():
            row["sample_digests"] = digests if name == "run" else [1, 2, 3]
            row["param_digests"] = [difference + (name == "run") for difference in row["param_digests"]]
        envs = {rank: rank_env(rank, 2) for rank in range(2)}
        for env in envs.values():
            env.param_dtypes = [dtype] * len(env.params)
        sides.append(write_run(tmp_path / name, rows, envs=envs))
    result = diff(*sides)
    assert [name for name in names(result) if name in ("first-batch", "first-weights")] == expected
    assert any("Parameters have other dtypes" in note for note in result.notes)
    assert any("may have been cast" in note for note in result.notes) == (not expected)


def test_an_option_with_the_values_of_a_known_setting_stands_behind_it(tmp_path):
    sides = []
    for name, count in (("run", 4), ("ref", 2)):
        text = f"gradient_accumulation_steps: {count}\nmy_count: {count}\nmy_depth: 7{count}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
        sides.append(tmp_path / f"{name}.yaml")
    result = diff(*sides)
    assert names(result).index("accumulation") < names(result).index("my_count")
    (behind,) = [difference for difference in result.differences if difference.name == "my_count"]
    assert behind.note == "the same values as micro-batches per update (gradient accumulation)"


def test_other_labels_of_the_same_samples_are_named(tmp_path):
    result = changed_run(tmp_path, lambda rows: rows[0, 1].update(target_digests=[4, 5, 9]))
    assert names(result) == ["labels"]


def test_the_same_samples_in_another_order_are_rounding(tmp_path):
    result = changed_run(tmp_path, lambda rows: rows[0, 0].update(sample_digests=[2, 1, 3], target_digests=[5, 4, 6]))
    assert names(result) == ["order"]
    assert result.exit_code == 0


def two_runs(tmp_path, change, *, part=0, envs=None):
    """Two Runs of which ``change`` has changed the rows of the first; losses part at step ``part``, None: nowhere."""
    sides = []
    for name in ("run", "ref"):
        rows = {key: row | {"rng_used": 0} for key, row in healthy_rows(2, 4).items()}
        if name == "run":
            for (step, _), row in rows.items():
                change(step, row)
                row["loss"] += part is not None and step >= part
        sides.append(write_run(tmp_path / name, rows, envs=None if envs is None else envs[name]))
    return diff(*sides)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rng_numpy": lambda step: 7}, []),  # seeded otherwise, and never drawn from
        ({"rng_numpy": lambda step: 7, "rng_used": lambda step: 2}, []),  # drawn from before, which changed nothing
        (
            {"rng_numpy": lambda step: 7, "rng_used": lambda step: 2, "param_digests": lambda step: [9, 9, 9, 9]},
            ["first-weights", "rng_numpy"],
        ),
        ({"rng_numpy": lambda step: 7, "param_digests": lambda step: [9, 9, 9, 9]}, ["first-weights"]),
        ({"rng_torch": lambda step: 7 + step}, ["rng_torch"]),  # it moves
    ],
)
def test_a_random_stream_is_named_where_the_job_draws_from_it(tmp_path, changes, named):
    result = two_runs(tmp_path, lambda step, row: row.update({name: of(step) for name, of in changes.items()}))
    assert names(result) == named
    assert result.exit_code == (1 if named else 3)  # the first losses differ, and nothing says why


def test_where_losses_are_the_same_nothing_explains_other_numbers(tmp_path):
    changed = {"class": "AdamW", "groups": [{"weight_decay": 0.5, "num_params": 4}]}
    envs = {name: {rank: rank_env(rank, 2) for rank in range(2)} for name in ("run", "ref")}
    envs["run"] = {rank: rank_env(rank, 2, optimizer=changed) for rank in range(2)}
    result = two_runs(tmp_path / "same", lambda step, row: row.update(rng_torch=7 + step), part=None, envs=envs)
    assert set(names(result)) == {"weight-decay", "rng_torch"}
    assert (result.telling, result.exit_code) == ((), 0)
    assert result.headline.startswith("The losses are the same at all 4 steps that both have")
    assert "can explain" not in result.headline
    assert not [
        finding for finding in trueline.check(result.run, ref=result.ref).findings if finding.severity == "warning"
    ]
    apart = two_runs(tmp_path / "apart", lambda step, row: row.update(rng_torch=7 + step), part=1, envs=envs)
    assert apart.exit_code == 1


def of_files(tmp_path, run_files, ref_files, kind="yaml"):
    return diff(written(tmp_path, f"a.{kind}", run_files), written(tmp_path, f"b.{kind}", ref_files))


def test_what_is_left_to_auto_is_no_default(tmp_path):
    asked = '{"bf16": {"enabled": %s}, "zero_optimization": {"stage": 2}}'
    result = of_files(tmp_path, asked % "true", asked % '"auto"', "json")
    assert (names(result), result.exit_code) == ([], 0)
    assert result.notes == ("Left to `auto`, and not compared: precision of computation.",)
    trainer = {"bf16": True, "learning_rate": 1e-4, "deepspeed": {"bf16": {"enabled": "auto"}}}
    assert (
        diff(
            written(tmp_path, "c/a.json", json.dumps(trainer)), written(tmp_path, "d/a.json", json.dumps(trainer))
        ).notes
        == ()
    )


def test_adapters_of_one_job_are_a_difference(tmp_path):
    full = "model_name_or_path: Qwen/Qwen2.5-7B\nlearning_rate: 1.0e-5\noptim: adamw_torch\n"
    result = of_files(tmp_path, full + "use_peft: true\nlora_r: 16\n", full)
    assert names(result)[0] == "adapters"
    assert result.headline.endswith("What is trained (adapters): lora, and full in the reference.")
    assert names(of_files(tmp_path, full + "use_peft: false\n", full)) == []


def test_model_and_data_of_frameworks_that_share_their_names_come_first(tmp_path):
    trainer = "model_name_or_path: a/Mistral-7B\nlearning_rate: 2.0e-05\ndataset_name: a/chat\nmax_seq_length: 2048\n"
    factory = "model_name_or_path: b/Qwen3-4B\nlearning_rate: 1.0e-05\ndataset: alpaca\ncutoff_len: 2048\nstage: sft\n"
    result = of_files(tmp_path, trainer, factory + "finetuning_type: full\ntemplate: qwen3\n")
    assert names(result) == ["model", "dataset", "learning-rate"]


def test_losses_and_rates_that_part_are_said_first(tmp_path):
    def halved(step, row):
        row["lr"] = [5e-4 if step >= 1 else 1e-3]

    result = two_runs(tmp_path, halved, part=2)
    losses, rates = result.headline.partition(" and the learning rates part at step 1 (0.0005, and 0.001 in the")[::2]
    assert losses.startswith("The losses part at step 2 (")
    assert rates
    assert names(result) == ["learning-rate-curve"]
    assert result.exit_code == 1


def test_losses_that_part_without_a_reason_are_no_silence(tmp_path):
    result = two_runs(tmp_path, lambda step, row: None)
    assert result.headline.startswith("The losses part at step 0 (")
    assert "Nothing that can change numbers" not in result.headline
    assert "once both are recorded with `--plan mix`" in result.headline
    recorded = replace(result, recorded=True)
    assert recorded.headline.endswith("`trueline compare` says where they part.")
    assert "once both are recorded" not in str(recorded.actions)


def test_no_sentence_says_that_a_thing_is_itself_or_has_no_subject(tmp_path):
    facts = [
        JobFacts(
            modules=[{"name": "", "kind": root}, {"name": "h.*", "kind": "Linear"}, {"name": "h.*", "kind": second}],
            tied=tied,
        )
        for root, second, tied in (("GPT", "Linear", []), ("Net", "Identity", [["embed", "head"]]))
    ]
    changed = {
        "run": {"facts": facts[0], "frozen": ["a", "b"], "buffers": ["x"]},
        "ref": {"facts": facts[1], "frozen": ["a", "c"], "buffers": []},
    }
    envs = {name: {rank: rank_env(rank, 2, **changed[name]) for rank in range(2)} for name in changed}
    result = two_runs(tmp_path, lambda step, row: row.update(sample_digests=[step + 1] * 3), envs=envs)
    lines = {difference.name: difference.line for difference in result.differences}
    assert lines["modules"] == "class of the model: GPT, and Net in the reference"
    assert lines["tied"] == "tied parameters: none, and embed = head in the reference"
    assert lines["buffers"] == "buffers that one model has alone: x, and none in the reference"
    for line in result.differences:
        assert line.run != line.ref
        assert "not not" not in line.claim
        assert "  " not in line.claim


def test_models_without_a_common_name_are_told_apart_by_their_names(tmp_path):
    envs = {
        name: {rank: rank_env(rank, 2, params=[f"{front}.{k}" for k in range(4)], groups=[]) for rank in range(2)}
        for name, front in (("run", "a"), ("ref", "b"))
    }
    (only,) = two_runs(tmp_path, lambda step, row: None, envs=envs).differences
    assert only.line == (
        "names of parameters (0 of 4 and 4 in common): a.0, a.1, a.2 and 1 more, and b.0, b.1, b.2 and 1 more in the "
        "reference"
    )


def test_a_backbone_that_is_watched_in_place_of_its_model_has_the_same_parameters(tmp_path):
    params = {"run": ["layers.0.w", "layers.1.w", "norm.w", "embed.w"]}
    params["ref"] = [f"model.{name}" for name in params["run"]]
    envs = {
        name: {rank: rank_env(rank, 2, params=names_, groups=[]) for rank in range(2)}
        for name, names_ in params.items()
    }
    result = two_runs(tmp_path, lambda step, row: None, envs=envs)
    assert names(result) == []
    assert any("without 'model.'" in note for note in result.notes)


def test_what_one_job_does_not_set_is_said_as_that(tmp_path):
    base = json.dumps({"lr": 1e-4})
    for options, ref_options, line in (
        (json.dumps({"lr": 1e-4, "frobnicate": True}), base, "frobnicate is True, and is not set in the reference"),
        (base, json.dumps({"lr": 1e-4, "frobnicate": True}), "frobnicate is not set, and is True in the reference"),
    ):
        result = diff(written(tmp_path, "a.json", options), written(tmp_path, "b.json", ref_options))
        assert result.headline.endswith(f"F{line[1:]}.")
        assert result.findings()[0].claim.count("reference") == 1


def test_a_difference_of_the_update_cannot_explain_the_first_loss(tmp_path):
    """Where losses part at the first step, the learning rate ranks below the data."""
    sides = []
    for name, rate in (("run", 2e-3), ("ref", 1e-3)):
        rows = healthy_rows(2, 4)
        for row in rows.values():
            row["loss"] += name == "run"
        optimizer = {"class": "AdamW", "groups": [{"initial_lr": rate, "num_params": 4}]}
        envs = {rank: rank_env(rank, 2, optimizer=optimizer) for rank in range(2)}
        sides.append(write_run(tmp_path / name, rows, envs=envs))
    result = diff(*sides)
    (only,) = result.differences
    assert (result.began, only.name, only.severity) == ("at the first loss", "learning-rate", "info")
    assert "cannot explain" in only.note


def test_findings_of_the_jobs_stand_beside_those_of_values(tmp_path):
    """`check --ref` and `diagnose --ref` name the configuration, or the environment, as a cause."""
    for changed, code, cause, part in (
        (
            {"versions": {"python": "3.11.9", "torch": "2.12.0"}},
            "package-differs",
            "environment-differs-between-runs",
            0,
        ),
        (
            {"optimizer": {"class": "AdamW", "groups": [{"weight_decay": 0.5, "num_params": 4}]}},
            "config-differs",
            "configuration-differs-between-runs",
            1,
        ),
    ):
        runs = [
            write_run(
                tmp_path / code / name,
                {
                    key: row | {"loss": row["loss"] + (name == "run" and key[0] >= part)}
                    for key, row in healthy_rows(2, 4).items()
                },
                envs={rank: rank_env(rank, 2, **(changed if name == "run" else {})) for rank in range(2)},
            )
            for name in ("run", "ref")
        ]
        report = trueline.check(runs[0], ref=runs[1])
        assert code in {finding.code for finding in report.findings}
        incident = next(
            row_index
            for row_index, difference in enumerate(report.incidents)
            if code in {report.findings[at].code for at in difference.findings}
        )
        assert cause in {
            difference.cause
            for difference in report.causes
            if difference.incident == incident and difference.standing != "excluded"
        }
    assert "config-differs" in trueline.check(runs[1], ref=runs[1]).checks_run


VERL = """data:
  train_batch_size: 64
  shuffle: true
trainer:
  balance_batch: {balance}
actor_rollout_ref:
  model:
    use_remove_padding: false
  actor:
    use_dynamic_bsz: false
    ppo_micro_batch_size_per_gpu: 4
    optim:
      lr: 1e-6
"""


def test_switches_under_which_rollouts_cannot_be_aligned_are_named_though_they_are_the_same(tmp_path):
    sides = [written(tmp_path, f"{n}.yaml", VERL.format(balance="true")) for n in "ab"]
    (note,) = [difference for difference in diff(*sides).notes if "one by one" in difference]
    assert note.endswith(
        "is off on both sides: data.shuffle, trainer.balance_batch (run); data.shuffle, trainer.balance_batch (ref)."
    )
    text = VERL.replace("shuffle: true", "shuffle: false").format(balance="false")
    off = [written(tmp_path, f"{n}.yaml", text) for n in "cd"]
    assert not any("one by one" in difference for difference in diff(*off).notes)


def test_a_job_of_another_kind_may_shuffle(tmp_path):
    sides = [written(tmp_path, f"{n}.json", json.dumps({"shuffle": True, "lr": 0.1, "batch_size": 4})) for n in "ab"]
    assert not any("one by one" in note for note in diff(*sides).notes)


def test_what_the_policy_wrote_explains_less_than_how_it_was_sampled(tmp_path, monkeypatch):
    sides = {"run": ([7, 8, 9], 0), "ref": ([1, 2, 3], 10)}
    for name, (digests, top_k) in sides.items():
        rows = {key: row | {"sample_digests": digests} for key, row in healthy_rows(1, 2).items()}
        facts = JobFacts(configs={"args": {"top_k": top_k, "num_generations": 8, "learning_rate": 1e-6}})
        write_run(tmp_path / name, rows, envs={0: rank_env(0, 1, facts=facts)})
    monkeypatch.setattr("trueline.store.reader.Run.kept", lambda run, table: table == "rollouts")
    differences = diff(tmp_path / "run", tmp_path / "ref")
    assert names(differences) == ["top-k", "first-batch"]
    assert differences.differences[1].says == "what was sampled for the update of step 0"
