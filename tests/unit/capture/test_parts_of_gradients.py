"""Gradients of which each rank keeps a part, as ZeRO cuts them, add up to the whole. Without DeepSpeed itself, which
benchmarks/frameworks runs.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from trueline.capture.adapters import deepspeed
from trueline.capture.model.layout import UnlikeParams, experts, in_shards, make_layout
from trueline.capture.model.mesh import Mesh
from trueline.capture.probes.around_update.masters import copies_of
from trueline.capture.step import shared_columns
from trueline.capture.step.shared_columns import Measurement

WORLD = 3


def zero3_layout(rank):
    """Of a model whose parameters ZeRO 3 has cut: none has elements, each knows its whole shape."""
    model = nn.Sequential(nn.Linear(90, 70), nn.Linear(70, 5))
    for param in model.parameters():
        param.ds_shape, param.ds_numel = param.shape, param.numel()
        width = -(-param.numel() // WORLD)
        param.ds_tensor = torch.arange(width).float()
        param.data = torch.empty(0)
    ranks = np.arange(WORLD)
    mesh = Mesh(ranks, ("ranks",), ("shard",), rank=rank, members=tuple(ranks.tolist()), flat=True)
    return make_layout(model, patterns=("*",), max_groups=8, mesh=mesh)


def test_shards_of_zero_3_have_the_sketch_of_the_whole_gradient():
    torch.manual_seed(0)
    layouts = [zero3_layout(rank) for rank in range(WORLD)]
    whole = [(index, torch.randn(shape)) for index, shape in enumerate(layouts[0].shapes)]
    assert [tuple(g.shape) for _, g in whole] == [(70, 90), (70,), (5, 70), (5,)]
    cut = [(index, in_shards(g, WORLD)) for index, g in whole]
    all_of_it = layouts[0].sketcher.measure(cut)
    assert torch.allclose(all_of_it.norm2, torch.stack([g.double().square().sum() for _, g in whole]), rtol=1e-6)
    added = sum(
        layout.sketcher.measure([(index, g_WC[rank]) for index, g_WC in cut], shard=rank).sketch
        for rank, layout in enumerate(layouts)
    )
    assert torch.allclose(added, all_of_it.sketch, atol=1e-4)


def test_kept_gradients_of_zero_3_lose_what_is_behind_the_end_of_a_parameter():
    param = SimpleNamespace(ds_numel=7)
    kept = {0: [torch.full((3,), 2.0)]}  # three ranks hold 3, 3 and 1 elements
    optimizer = SimpleNamespace(averaged_gradients=kept, fp16_groups=[[param]])
    parts = [next(deepspeed._parts_of_zero3(optimizer, shard))[1].tolist() for shard in range(WORLD)]
    assert parts == [[2.0] * 3, [2.0] * 3, [2.0, 0.0, 0.0]]


def test_own_parts_of_zero_1_add_up_to_the_gradient():
    gradient = torch.randn(4, 5)
    total = torch.zeros(4, 5)
    for start, numel in ((0, 8), (8, 9), (17, 3)):
        mapping = SimpleNamespace(
            use_offload=False,
            param_group_index=0,
            gradient_dict={0: [gradient.flatten()[start : start + numel]]},
            lp_fragment_address=SimpleNamespace(start=start, numel=numel),
        )
        param = nn.Parameter(torch.zeros(4, 5))
        param._hp_mapping, param._index_in_param_group = mapping, 0
        total += deepspeed._own_part(param)
    assert torch.equal(total, gradient)


def test_a_copy_is_not_compared_where_the_map_to_it_leaves_the_flat_memory():
    flat = torch.arange(12.0).bfloat16()
    copies = flat.float()
    first, second = nn.Parameter(flat[8:]), nn.Parameter(flat[:8])  # dealt out in another order than the model's
    for param, start in ((first, 0), (second, 0)):
        param._hp_mapping = SimpleNamespace(
            use_offload=False,
            lp_fragment=param.detach(),
            hp_fragment=copies[start : start + param.numel()],
            lp_fragment_address=SimpleNamespace(start=0, numel=param.numel()),
            hp_fragment_address=SimpleNamespace(start=start, numel=param.numel()),
        )
    found = copies_of(torch.optim.SGD([copies]), SimpleNamespace(names=["first", "second"], params=[first, second]))
    assert [copy.name for copy in found] == ["second"]


def test_what_is_not_seen_of_a_reduction_is_no_wrong_result():
    g_NGK = np.random.default_rng(0).standard_normal((WORLD, 1, 521))
    norms = np.linalg.norm(g_NGK, axis=2)
    owns = [Measurement(local_norm=n, local=g, reduced=None, used=None) for g, n in zip(g_NGK, norms, strict=True)]
    flat = sum(shared_columns.pack(own, reduced_norm2=None, sharded=True, replicas=1) for own in owns)
    scalars = np.array([shared_columns.scalars(own, step=4) for own in owns])
    sums = shared_columns.unpack(scalars, flat, groups=1, k=521)
    given = {"reduced_norm2": None, "sharded": True, "numel": np.full(1, 9.0), "dtype": "torch.float32", "roundings": 5}
    unseen = shared_columns.columns(owns[0], sums, returned=False, **given)
    assert "group_reduce_residual" not in unseen
    assert unseen["cosine_mean"] is not None
    seen = shared_columns.columns(owns[0], sums, **given)["group_reduce_residual"]
    assert seen == pytest.approx([np.linalg.norm(g_NGK.mean(axis=0)) / norms.mean()])


def test_what_the_optimizer_receives_is_missed_only_where_it_could_be_seen():
    g_GK = np.random.default_rng(0).standard_normal((1, 521))
    own = Measurement(local_norm=np.linalg.norm(g_GK, axis=1), local=g_GK, reduced=g_GK, used=None)
    norm2 = (g_GK**2).sum(axis=1)
    sums = shared_columns.unpack(
        np.array([shared_columns.scalars(own, step=4)]),
        shared_columns.pack(own, reduced_norm2=norm2, sharded=True, replicas=1),
        groups=1,
        k=521,
    )
    given = {"reduced_norm2": norm2, "sharded": True, "numel": np.full(1, 9.0), "dtype": "torch.float32"}
    assert shared_columns.columns(own, sums, roundings=5, **given)["group_used_factor"] == [0.0]
    assert "group_used_factor" not in shared_columns.columns(own, sums, roundings=5, received=False, **given)


def test_experts_are_left_out():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.allreduce = False
    own = experts(nn.Sequential(model))
    assert own == {"0.1.weight"}
    assert make_layout(nn.Sequential(model), patterns=("*",), max_groups=8, unlike=UnlikeParams(shape=own)).names == (
        *("0.0.weight", "0.0.bias"),
        "0.1.bias",
    )


def test_shards_that_are_cut_flat_are_padded_as_a_whole():
    layout = zero3_layout(0)
    assert layout.widths == (6300, 72, 351, 6)
    rows = replace(layout, mesh=replace(layout.mesh, flat=False))
    assert rows.widths == (72 * 90, 72, 6 * 70, 6)


def record_update(rank, world, out, behind):
    import trueline

    model = nn.Linear(6, 4)
    for param in model.parameters():
        param.ds_shape, param.ds_numel, param.ds_process_group = param.shape, param.numel(), None
        param.ds_tensor = torch.empty(param.numel() + behind)
    optimizer = torch.optim.AdamW(model.parameters())
    with trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "steps": [0, 1]}):
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()


def test_an_update_of_memory_that_nothing_has_filled_is_not_recorded(one, tmp_path):
    import trueline

    phases = []
    for behind in (0, 1):
        one.run(record_update, str(tmp_path / str(behind)), behind)
        run = trueline.open_run(tmp_path / str(behind))
        phases.append(set(run.records().column("phase").to_pylist()))
    assert phases[0] - phases[1] == {"opt"}
    assert {"fwd", "bwd"} <= phases[1]
