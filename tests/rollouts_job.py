"""Rollouts and updates with a disagreement planted: `rollouts_job.py KIND --lr X --max-new-tokens N --use-cache W`."""

import argparse
import copy
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))  # it is run as a script, which finds no gallery
from gallery.rollouts.policy import Policy, Sampling, generate

import trueline

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=["stale", "cache"])
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--max-new-tokens", type=int, default=16)
parser.add_argument("--use-cache", default="true")
args = parser.parse_args()
torch.manual_seed(0)
random = torch.Generator().manual_seed(1)
policy = Policy(vocabulary=64, width=32, layers=2, heads=2)
optimizer = torch.optim.Adam(policy.parameters(), lr=args.lr)
engine = copy.deepcopy(policy)
for step in range(8):
    if args.kind != "stale":
        engine.load_state_dict(policy.state_dict())
    prompt = torch.randint(64, (16, 6), generator=random)
    drift = 0.05 if args.kind == "cache" and args.use_cache == "true" else 0.0
    sampled = generate(
        engine, prompt, length=args.max_new_tokens, sampling=Sampling(), generator=random, cache_drift=drift
    )
    logits = policy(torch.cat([prompt, sampled.ids], 1))[:, prompt.shape[1] - 1 : -1]
    told = trueline.rl.of_logits(logits, sampled.ids)
    trueline.rl.record(step, prompt, sampled.ids, None, sampled.logp, told.logp, sampling={"dtype": "float32"})
    logp = logits.log_softmax(-1).gather(-1, sampled.ids[..., None])
    wanted = (sampled.ids % 2 == 0).float()[..., None]
    (-wanted * logp).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
