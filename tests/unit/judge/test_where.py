"""The line, machine and device that a finding names."""

from types import SimpleNamespace

from trueline.judge.where import machine_text, where_of
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.finding import Finding, Where

CALLS = {"": ("clip_grad_norm_", "step"), "kept": ("zero_grad",)}


ENV = {
    0: RankEnv(rank=0, hostname="node-01", device="cuda:0", call_sites={"step": ["train.py:9"]}),
    1: RankEnv(
        rank=1, hostname="node-02", device="cuda:5", call_sites={"step": ["a/b.py:7"], "zero_grad": ["a/b.py:3"]}
    ),
}
RUN = SimpleNamespace(env=ENV)
"""Two ranks on two machines, whose scripts call from these lines."""


def finding(**more):
    return Finding("clip-differs", "warning", "x", **more)


def test_the_line_is_that_of_the_kind_of_call_on_the_rank_that_is_named():
    assert where_of(finding(ranks=(1,)), RUN, CALLS) == Where("a/b.py", 7, "node-02", 1, "cuda:5")
    assert where_of(finding(ranks=(1,), evidence={"kind": "kept"}), RUN, CALLS).line == 3
    assert where_of(finding(ranks=(0, 1)), RUN, CALLS) == Where("train.py", 9)
    assert where_of(finding(ranks=(0,)), RUN, {}) == Where(None, None, "node-01", 0, "cuda:0")


def test_a_recorded_stack_is_nearer_than_the_call():
    stack = ["/x/site-packages/lib/model.py:4 forward", "net.py:12 forward", "train.py:9 main"]
    assert where_of(finding(ranks=(1,), evidence={"stack": stack}), RUN, CALLS).code_line == "net.py:12"


def test_a_machine_is_named_where_there_are_several():
    machines = {rank: (env.hostname, env.device) for rank, env in ENV.items()}
    assert machine_text((1,), machines) == "on node-02, device 5"
    assert machine_text((0, 1), machines) == ""
    assert machine_text((1,), {1: ("node-02", "cuda:5")}) == ""
    assert machine_text((1,), machines | {1: ("node-02", "cpu")}) == "on node-02"
