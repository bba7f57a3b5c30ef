"""The command line of a job, its ranks, and the lines that it prints."""

import argparse
import os

import torch
import torch.distributed as dist

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


def options(steps=80, **defaults):
    """--fix, --resume, --to, --steps and further arguments by their defaults; the seeds are set."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true", help="the repaired twin")
    parser.add_argument("--resume", action="store_true", help="go on from what --to holds")
    parser.add_argument("--to", default="state.pt", help="where the state of the job is saved")
    parser.add_argument("--steps", type=int, default=steps)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return parser.parse_args()


def connect():
    """The process group of all ranks, over gloo."""
    dist.init_process_group("gloo")


def say(step, loss, every=20):
    """The loss of rank 0, now and then."""
    if RANK == 0 and step % every == 0:
        print(f"step {step} loss {float(torch.as_tensor(loss).detach()):.4f}", flush=True)
