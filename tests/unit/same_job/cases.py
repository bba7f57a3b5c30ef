"""Differences that are planted into the configurations: 40 that change numbers, 40 that cannot.

A case is the configuration, what is replaced in it by what, and the term that is to be named; '' for those that are to
stay silent.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """One planted difference."""

    config: str
    before: str
    after: str
    term: str = ""


PLANTED = (
    Case("megatron.sh", "--lr 6.0e-5", "--lr 1.2e-4", "learning-rate"),
    Case("megatron.sh", "--lr-warmup-fraction .001", "--lr-warmup-fraction .01", "warmup-steps"),
    Case("megatron.sh", "--lr-decay-iters 430000", "--lr-decay-iters 320000", "decay-steps"),
    Case("megatron.sh", "--min-lr 6.0e-6", "--min-lr 0", "min-learning-rate"),
    Case("megatron.sh", "--lr-decay-style cosine", "", "schedule"),
    Case("megatron.sh", "--fp16", "--bf16", "precision"),
    Case("megatron.sh", "--global-batch-size 1536", "--global-batch-size 768", "global-batch"),
    Case("megatron.sh", "--adam-beta2 0.95", "--adam-beta2 0.999", "beta2"),
    Case("megatron.sh", "--clip-grad 1.0", "--clip-grad 0.5", "clip-norm"),
    Case("megatron.sh", "--seq-length 2048", "--seq-length 1024", "sequence-length"),
    Case("megatron.sh", "--seed 1234", "--seed 4321", "seed"),
    Case("megatron.sh", "--fp16", "--fp16 --no-masked-softmax-fusion", "fused-softmax"),
    Case("megatron.sh", "--tensor-model-parallel-size 8", "--tensor-model-parallel-size 4", "tensor-parallel"),
    Case("megatron.sh", "my-gpt3_text_document", "my-gpt3-v2_text_document", "dataset"),
    Case("megatron.sh", "--fp16", "--fp16 --reset-attention-mask", "reset-at-documents"),
    Case("llamafactory.yaml", "learning_rate: 1.0e-5", "learning_rate: 2.0e-5", "learning-rate"),
    Case("llamafactory.yaml", "warmup_ratio: 0.1", "warmup_ratio: 0.03", "warmup-fraction"),
    Case("llamafactory.yaml", "template: llama3", "template: qwen", "template"),
    Case("llamafactory.yaml", "cutoff_len: 2048", "cutoff_len: 1024", "sequence-length"),
    Case("llamafactory.yaml", "identity,alpaca_en_demo", "identity,alpaca_zh_demo", "dataset"),
    Case("llamafactory.yaml", "finetuning_type: full", "finetuning_type: lora", "adapters"),
    Case("llamafactory.yaml", "bf16: true", "fp16: true", "precision"),
    Case("llamafactory.yaml", "bf16: true", "bf16: true\ntrain_on_prompt: true", "prompt-masked"),
    Case("llamafactory.yaml", "bf16: true", "bf16: true\nseed: 7", "seed"),
    Case("llamafactory.yaml", "gradient_accumulation_steps: 2", "gradient_accumulation_steps: 4", "accumulation"),
    Case("torchtitan.toml", "lr = 3e-4", "lr = 8e-4", "learning-rate"),
    Case("torchtitan.toml", "eps = 1e-8", "eps = 1e-6", "epsilon"),
    Case("torchtitan.toml", "warmup_steps = 200", "warmup_steps = 20", "warmup-steps"),
    Case("torchtitan.toml", "compile = false", "compile = true", "compiled"),
    Case("torchtitan.toml", 'flavor = "8B"', 'flavor = "70B"', "model-size"),
    Case("torchtitan.toml", "eps = 1e-8", "eps = 1e-8\nbeta2 = 0.999", "beta2"),
    Case("verl.sh", "actor.optim.lr=1e-6", "actor.optim.lr=5e-7", "learning-rate"),
    Case("verl.sh", "kl_loss_coef=0.001", "kl_loss_coef=0.01", "kl-loss-coefficient"),
    Case("verl.sh", "rollout.temperature=1.0", "rollout.temperature=0.7", "temperature"),
    Case("verl.sh", "rollout.n=5", "rollout.n=8", "samples-per-prompt"),
    Case("verl.sh", "ppo_mini_batch_size=256", "ppo_mini_batch_size=128", "global-batch"),
    Case("verl.sh", "use_remove_padding=True", "use_remove_padding=False", "remove-padding"),
    Case("deepspeed.json", '"betas": [0.8, 0.999]', '"betas": [0.9, 0.999]', "beta1"),
    Case("deepspeed.json", '"stage": 2', '"stage": 3', "sharding"),
    Case("lightning.yaml", "precision: bf16-mixed", "precision: 16-mixed", "precision"),
)

HARMLESS = (
    Case("megatron.sh", "MASTER_ADDR=localhost", "MASTER_ADDR=node-17.cluster"),
    Case("megatron.sh", "MASTER_PORT=6000", "MASTER_PORT=29501"),
    Case("megatron.sh", "/checkpoints/gpt3", "/scratch/other/gpt3-second-try"),
    Case("megatron.sh", "DATA_PATH=/data/my-gpt3", "DATA_PATH=/mnt/lustre/corpora/my-gpt3"),
    Case("megatron.sh", "/data/gpt2-vocab.json", "/home/b/gpt2-vocab.json"),
    Case("megatron.sh", "--log-interval 100", "--log-interval 1"),
    Case("megatron.sh", "--save-interval 10000", "--save-interval 500"),
    Case("megatron.sh", "--eval-interval 1000", "--eval-interval 200"),
    Case("megatron.sh", "--tensorboard-dir /logs", "--tensorboard-dir /tmp/tb"),
    Case("megatron.sh", "--lr 6.0e-5", "--lr 0.00006"),
    Case("megatron.sh", "--fp16", "--fp16 --num-workers 8"),
    Case("megatron.sh", "--fp16", "--fp16 --distributed-timeout-minutes 60"),
    Case("megatron.sh", "--weight-decay 0.1\n    --adam-beta1 0.9", "--adam-beta1 0.9\n    --weight-decay 0.1"),
    Case("megatron.sh", "--seed 1234", ""),  # is what Megatron does by itself
    Case("megatron.sh", "--lr-warmup-fraction .001", "--lr-warmup-iters 430"),  # the same
    Case("llamafactory.yaml", "output_dir: saves/llama3-8b/full/sft", "output_dir: /tmp/out"),
    Case("llamafactory.yaml", "logging_steps: 10", "logging_steps: 1"),
    Case("llamafactory.yaml", "save_steps: 500", "save_steps: 50"),
    Case("llamafactory.yaml", "preprocessing_num_workers: 16", "preprocessing_num_workers: 4"),
    Case("llamafactory.yaml", "plot_loss: true", "plot_loss: false"),
    Case("llamafactory.yaml", "ddp_timeout: 180000000", "ddp_timeout: 1800"),
    Case("llamafactory.yaml", "overwrite_cache: true", "overwrite_cache: false"),
    Case("llamafactory.yaml", "meta-llama/Meta-Llama-3-8B-Instruct", "/models/Meta-Llama-3-8B-Instruct"),
    Case("llamafactory.yaml", "learning_rate: 1.0e-5", "learning_rate: 0.00001"),
    Case("llamafactory.yaml", "bf16: true", "bf16: true\nreport_to: wandb\nrun_name: second"),
    Case("llamafactory.yaml", "bf16: true", "bf16: true\nfp16: false"),
    Case("llamafactory.yaml", "bf16: true", "bf16: true\nweight_decay: 0.0\nadam_beta1: 0.9"),
    Case("torchtitan.toml", 'dump_folder = "./outputs"', 'dump_folder = "/scratch/run7"'),
    Case("torchtitan.toml", "enable_profiling = true", "enable_profiling = false"),
    Case("torchtitan.toml", "log_freq = 10", "log_freq = 1"),
    Case("torchtitan.toml", 'description = "Llama 3 8B training"', 'description = "again"'),
    Case("torchtitan.toml", "interval = 500", "interval = 100"),
    Case("torchtitan.toml", "./assets/tokenizer/original/tokenizer.model", "/models/llama3/tokenizer.model"),
    Case("torchtitan.toml", "lr = 3e-4", "lr = 0.0003\nbeta2 = 0.95"),
    Case("verl.sh", "trainer.experiment_name='qwen2_7b'", "trainer.experiment_name='again'"),
    Case("verl.sh", "$HOME/data/gsm8k", "/mnt/data/gsm8k"),
    Case("verl.sh", "gpu_memory_utilization=0.6", "gpu_memory_utilization=0.4"),
    Case("deepspeed.json", '"steps_per_print": 2000', '"steps_per_print": 10'),
    Case("deepspeed.json", '"allgather_bucket_size": 50000000', '"allgather_bucket_size": 200000000'),
    Case("lightning.yaml", "out_dir: out/pretrain/tiny-llama", "out_dir: /scratch/out"),
)

ACROSS = (
    ("megatron.sh", "lr_warmup_fraction", "llamafactory.yaml", "warmup_ratio", "warmup-fraction"),
    ("megatron.sh", "adam_beta2", "lightning.yaml", "train.beta2", "beta2"),
    ("megatron.sh", "clip_grad", "torchtitan.toml", "training.max_norm", "clip-norm"),
    ("megatron.sh", "micro_batch_size", "deepspeed.json", "train_micro_batch_size_per_gpu", "micro-batch"),
    ("megatron.sh", "lr", "verl.sh", "actor_rollout_ref.actor.optim.lr", "learning-rate"),
    ("torchtitan.toml", "training.seq_len", "llamafactory.yaml", "cutoff_len", "sequence-length"),
)
"""Options of two frameworks that are one term."""
