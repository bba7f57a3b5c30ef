"""Configurations of five frameworks, and of two used together: options and values of their public examples.

Each is written out here in the form in which its framework takes it; SOURCES names the example that it follows.
"""

from __future__ import annotations

SOURCES = {
    "megatron.sh": "https://github.com/NVIDIA/Megatron-LM/blob/main/examples/gpt3/train_gpt3_175b_distributed.sh",
    "llamafactory.yaml": "https://github.com/hiyouga/LLaMA-Factory/blob/main/examples/train_full/llama3_full_sft.yaml",
    "torchtitan.toml": "https://github.com/pytorch/torchtitan (torchtitan/models/llama3/train_configs/llama3_8b.toml)",
    "verl.sh": "https://github.com/volcengine/verl (examples/grpo_trainer/run_qwen2-7b.sh)",
    "deepspeed.json": "https://github.com/microsoft/DeepSpeedExamples (cifar/ds_config.json)",
    "lightning.yaml": "https://github.com/Lightning-AI/litgpt/blob/main/config_hub/pretrain/tinyllama.yaml",
}

CONFIGS = {
    "megatron.sh": """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=16
MASTER_ADDR=localhost
MASTER_PORT=6000
CHECKPOINT_PATH=/checkpoints/gpt3
DATA_PATH=/data/my-gpt3_text_document
LAUNCH=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES --master_addr $MASTER_ADDR --master_port $MASTER_PORT)
MODEL=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --attention-backend auto # flash, fused, unfused or local
)
TRAINING=(
    --micro-batch-size 1
    --global-batch-size 1536
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --init-method-std 0.006
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5
    --lr-decay-style cosine
    --min-lr 6.0e-6
    --lr-warmup-fraction .001
    --lr-decay-iters 430000
    --seed 1234
)
PARALLEL="--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16"
DATA=(--data-path $DATA_PATH --vocab-file /data/gpt2-vocab.json --merge-file /data/gpt2-merges.txt --split 949,50,1)
LOGGING=(--log-interval 100 --save-interval 10000 --eval-interval 1000 --save $CHECKPOINT_PATH --tensorboard-dir /logs)
torchrun ${LAUNCH[@]} pretrain_gpt.py ${MODEL[@]} ${TRAINING[@]} $PARALLEL ${DATA[@]} ${LOGGING[@]}
""",
    "llamafactory.yaml": """model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16
output_dir: saves/llama3-8b/full/sft
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
""",
    "torchtitan.toml": """[job]
dump_folder = "./outputs"
description = "Llama 3 8B training"
[profiling]
enable_profiling = true
save_traces_folder = "profile_trace"
profile_freq = 100
[metrics]
log_freq = 10
enable_tensorboard = true
save_tb_folder = "tb"
[model]
name = "llama3"
flavor = "8B"
tokenizer_path = "./assets/tokenizer/original/tokenizer.model"
[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8
[lr_scheduler]
warmup_steps = 200
[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1000
compile = false
dataset = "c4"
seed = 7
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
pipeline_parallel_degree = 1
context_parallel_degree = 1
[checkpoint]
enable_checkpoint = false
folder = "checkpoint"
interval = 500
export_dtype = "float32"
[activation_checkpoint]
mode = "selective"
""",
    "verl.sh": """set -x
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/gsm8k/train.parquet \\
    data.val_files=$HOME/data/gsm8k/test.parquet \\
    data.train_batch_size=1024 \\
    data.val_batch_size=1312 \\
    data.max_prompt_length=512 \\
    data.max_response_length=512 \\
    actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct \\
    actor_rollout_ref.actor.optim.lr=1e-6 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.model.enable_gradient_checkpointing=True \\
    actor_rollout_ref.model.use_remove_padding=True \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.temperature=1.0 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.rollout.n=5 \\
    trainer.logger=['console','wandb'] \\
    trainer.project_name='verl_grpo_example_gsm8k' \\
    trainer.experiment_name='qwen2_7b' \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 \\
    trainer.save_freq=-1 \\
    trainer.total_epochs=15 $@
""",
    "deepspeed.json": """{
  "train_batch_size": 32,
  "train_micro_batch_size_per_gpu": 4,
  "steps_per_print": 2000,
  "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000}},
  "gradient_clipping": 1.0,
  "prescale_gradients": false,
  "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 2, "initial_scale_power": 15},
  "wall_clock_breakdown": false,
  "zero_optimization": {
    "stage": 2, "allgather_bucket_size": 50000000, "reduce_bucket_size": 50000000, "overlap_comm": true,
    "contiguous_gradients": true
  }
}
""",
    "lightning.yaml": """model_name: tiny-llama-1.1b
logger_name: tensorboard
resume: false
devices: auto
seed: 42
data: TinyLlama
precision: bf16-mixed
out_dir: out/pretrain/tiny-llama
tokenizer_dir: checkpoints/meta-llama/Llama-2-7b-hf
train:
  save_interval: 1000
  log_interval: 1
  global_batch_size: 512
  micro_batch_size: 4
  lr_warmup_steps: 2000
  max_tokens: 3000000000000
  max_seq_length: 2048
  learning_rate: 4e-4
  weight_decay: 1e-1
  beta1: 0.9
  beta2: 0.95
  max_norm: 1.0
  min_lr: 4.0e-05
eval:
  interval: 1000
  max_iters: 100
""",
}
