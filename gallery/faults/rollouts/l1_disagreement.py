"""L1. Rollout engine and trainer disagree about the policy.

Who had it: six frameworks recorded log-probabilities from before temperature (trl#4159, NeMo-RL#902, prime-rl#697,
OpenRLHF#853, vime#64, ms-swift#8442); tool calls that the chat template clears (verl#3960); weights that do not all
reach the engine (vime#64); a gap that grows at learning rate 0, so in decoding (open-instruct#1473). Planted: each of
`testing/rollouts/loop.py` in a loop of rollouts and updates, six steps of 768 tokens. Twin: the same loop as it should
be.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from gallery.entry import family
from gallery.entry_context import EntryContext
from gallery.rollouts.loop import FAULTS, Loop
from gallery.witness import samples_differ

STEPS = 6


def train(case: str, ctx: EntryContext, faulty: bool) -> nn.Module:
    """The loop; its samples are what it hands to the recorder."""
    loop = Loop(case if faulty else "plain", size=32, length=24, seed=1)
    loop.run(STEPS, ctx.out)
    ctx.samples += loop.seen
    return loop.policy


_MUST: dict[str, tuple[str, ...]] = {
    "temperature-raw": ("recorded-logprobs-wrong",),
    "temperature-processed": ("sampling-mismatch",),
    "top-p-raw": ("recorded-logprobs-wrong",),
    "top-p-processed": ("sampling-mismatch",),
    "lag": ("policy-lag",),
    "tensor-stale": ("weights-not-synced",),
    "cache-drift": ("decode-diverges",),
    "template": ("prefill-diverges",),
    "tokenised-again": ("tokens-differ",),
    "shifted": ("tokens-differ",),
    "dropout": ("logprob-gap",),
    "dummy-weights": ("weights-not-synced",),
}
_fault = family(
    "L1",
    (),
    samples_differ,
    world_size=1,
    within=None,
    may_find=("logprob-gap", "decode-diverges", "recorded-logprobs-wrong", "sampling-mismatch", "logprob-gap-grows"),
)

ENTRIES = tuple(_fault(case, FAULTS[case], partial(train, case), must_find=must) for case, must in _MUST.items())
