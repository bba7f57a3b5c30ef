"""L1. Rollout engine and trainer disagree about the policy.

Who had it: six frameworks recorded log-probabilities from before temperature (trl#4159, NeMo-RL#902, prime-rl#697,
OpenRLHF#853, vime#64, ms-swift#8442); tool calls that the chat template clears (verl#3960); weights that do not all
reach the engine (vime#64); a gap that grows at learning rate 0, so in decoding (open-instruct#1473). Planted: each of
`gallery/rollouts/loop.py` in a loop of rollouts and updates, six steps of 768 tokens. Twin: the same loop as it should
be.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from gallery.entry import variants
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


_PLANTED: dict[str, tuple[str, str]] = {
    "temperature-raw": ("recorded-logprobs-wrong", "temperature-not-recorded"),
    "temperature-processed": ("sampling-mismatch", "temperature-not-in-trainer"),
    "top-p-raw": ("recorded-logprobs-wrong", "cut-not-recorded"),
    "top-p-processed": ("sampling-mismatch", "cut-not-in-trainer"),
    "lag": ("policy-lag", "rollouts-lag"),
    "tensor-stale": ("weights-not-synced", "weights-partly-synced"),
    "cache-drift": ("decode-diverges", "decoding-differs"),
    "template": ("prefill-diverges", "prompt-differs"),
    "tokenised-again": ("tokens-differ", "response-tokenised-again"),
    "shifted": ("tokens-differ", "logprobs-shifted"),
    "dropout": ("logprob-gap", "trainer-passes-differ"),
    "dummy-weights": ("weights-not-synced", "engine-weights-not-loaded"),
}
"""By case the code that must be found, and the cause."""
_fault = variants(
    "L1",
    (),
    samples_differ,
    world_size=1,
    within=None,
    family="rollouts",
    may_find=("logprob-gap", "decode-diverges", "recorded-logprobs-wrong", "sampling-mismatch", "logprob-gap-grows"),
)

ENTRIES = tuple(
    _fault(case, FAULTS[case], partial(train, case), must_find=(code,), causes=(cause,))
    for case, (code, cause) in _PLANTED.items()
)
