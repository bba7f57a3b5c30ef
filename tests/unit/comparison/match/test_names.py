"""Names of two runs and frameworks made one, and maps that cannot be read."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trueline.comparison.match.fused_modules import Fusion
from trueline.comparison.match.name_maps import BUILT_IN
from trueline.comparison.match.names import NameMap, plain_name, shared_names
from trueline.judge.recorded.step_values import StepValues, Value
from trueline.judge.recorded.stored_tensors import ArrayValue
from trueline.schema.errors import InputError
from trueline.schema.site import Site
from trueline.schema.stats import TensorStats


def fused(mine: StepValues, theirs: StepValues, names: NameMap) -> tuple[StepValues, StepValues]:
    return Fusion(mine, theirs, names).apply_to(mine, theirs)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("module._orig_mod.layers.0.attn", "layers.0.attn"),
        ("layers.0._checkpoint_wrapped_module.mlp._fsdp_wrapped_module.up.weight", "layers.0.mlp.up.weight"),
        ("modules.0.submodule", "modules.0.submodule"),
        ("module", "module"),
        ("", ""),
    ],
)
def test_what_wrappers_put_into_a_name_goes_away(name, plain):
    assert plain_name(name) == plain


@pytest.mark.parametrize(
    ("rules", "name", "plain"),
    [
        ("base.=", "base.layers.0", "layers.0"),
        ("base.=", "layers.base.0", "layers.base.0"),
        ("base.=", "base", "base"),
        ("decoder.=model.", "decoder.layers.1.x", "model.layers.1.x"),
        ("attn=attention", "layers.0.attn.attn_norm", "layers.0.attention.attn_norm"),
        ("attn=", "layers.0.attn.out", "layers.0.out"),
        ("h.*.attn=blocks.*.attention", "h.12.attn.out", "blocks.12.attention.out"),
        ("*_norm=norm_*", "layers.0.attn_norm.weight", "layers.0.norm_attn.weight"),
        (r"re:^h\.(\d+)=layers.\1", "h.7.mlp", "layers.7.mlp"),
        ("a=b; b.c=d", "x.a.c", "x.d"),
    ],
)
def test_a_rule_renames_whole_parts(rules, name, plain):
    assert NameMap.load(rules).plain(name) == plain


def test_a_map_is_read_from_toml_and_json(tmp_path):
    tables = {"rename": {"h": "layers"}, "merge": {"q, k": "qk"}}
    (tmp_path / "map.json").write_text(json.dumps(tables))
    (tmp_path / "map.toml").write_text('[rename]\n"h" = "layers"\n[merge]\n"q, k" = "qk"\n')
    for name in ("map.json", "map.toml"):
        found = NameMap.load(tmp_path / name)
        assert found.plain("h.0") == "layers.0"
        assert [(merge.parts, merge.whole) for merge in found.merges] == [(("q", "k"), "qk")]


def test_a_map_may_start_from_a_built_in_one(tmp_path):
    (tmp_path / "map.toml").write_text('built_in = "hf-vllm"\n[rename]\n"h" = "layers"\n')
    wholes = [merge.whole for merge in NameMap.load(tmp_path / "map.toml").merges]
    assert wholes == ["qkv_proj", "gate_up_proj", "fused_qkv_a_proj"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[renam]\n"a" = "b"', "Unknown key 'renam' in map '{}': did you mean 'rename'?"),
        ("[rename", "Map '{}' cannot be read: "),
        ("rename = 3", "'rename' in map '{}' must be a table of texts"),
        ('built_in = "hf-vlm"', "There are hf-vllm, hf-sglang, hf-megatron."),
        ('[merge]\n"q" = "qkv"', "A merge of 'q' into 'qkv' cannot be read."),
        ('[merge]\n"q, k" = {into = "qk"}', "The merge of 'q, k' in map '{}' is {{'into': 'qk'}}. Expected a name, or"),
        ('[merge]\n"q, k" = {into = "qk", head_size = 0}', "for rows that are grouped by head {{into ="),
        ('[rename]\n"re:(" = "b"', "The rename of 're:(' to 'b' cannot be read: "),
        ('[rename]\n"a" = "*"', "has more '*' on its right side"),
        ('[rename]\n"" = "x"', "has no name on its left side"),
    ],
)
def test_a_file_that_is_no_map_is_refused(tmp_path, content, said):
    path = tmp_path / "map.toml"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        NameMap.load(path)
    assert said.format(path) in str(error.value)


def test_what_is_neither_file_nor_built_in_nor_text_is_refused():
    with pytest.raises(InputError, match=r"neither a file, nor a built-in map \(hf-vllm, hf-sglang, hf-megatron\)"):
        NameMap.load("no-such-map")


@pytest.mark.parametrize(
    ("megatron", "hf"),
    [
        ("embedding.word_embeddings.weight", "model.embed_tokens.weight"),
        ("output_layer.weight", "lm_head.weight"),
        ("decoder.final_layernorm.weight", "model.norm.weight"),
        ("decoder.layers.3.input_layernorm.weight", "model.layers.3.input_layernorm.weight"),
        ("decoder.layers.3.self_attention.linear_qkv.layer_norm_weight", "model.layers.3.input_layernorm.weight"),
        ("decoder.layers.3.self_attention.linear_proj.weight", "model.layers.3.self_attn.o_proj.weight"),
        ("decoder.layers.3.pre_mlp_layernorm.weight", "model.layers.3.post_attention_layernorm.weight"),
        ("decoder.layers.3.mlp.linear_fc1.layer_norm_weight", "model.layers.3.post_attention_layernorm.weight"),
        ("decoder.layers.3.mlp.linear_fc2.weight", "model.layers.3.mlp.down_proj.weight"),
        ("module.decoder.layers.3.self_attention.linear_proj", "model.layers.3.self_attn.o_proj"),
    ],
)
def test_names_of_megatron_become_those_of_hugging_face(megatron, hf):
    """As ``mapping_registry`` of the bridges in NVIDIA-NeMo/Megatron-Bridge has them."""
    names = NameMap.load("hf-megatron")
    assert names.plain(megatron) == names.plain(hf) == hf


def value(index, name, slot="out0", *, kind="module", phase="fwd", module="LM", array=None, root=None, api=""):
    array = np.asarray(array if array is not None else [[1.0, 2.0]])
    return Value(
        index=index,
        root=index if root is None else root,
        ranks=(0,),
        site=Site(0, 0, 0, phase, name, 0, slot),
        kind=kind,
        api=api,
        module=module,
        flags=frozenset(),
        dtype="float32",
        shape=array.shape,
        stats=TensorStats(
            "float32", array.shape, array.size, sum=array.sum(), sum_sq=(array**2).sum(), fingerprint=index,
            min=array.min(), max=array.max(),
        ),
        load=lambda: ArrayValue(array),
    )  # fmt: skip


def test_a_rule_that_fits_no_name_of_either_run_is_refused_with_near_ones(tmp_path):
    mine, theirs = [value(0, "layers.0.attn.q_proj")], [value(0, "layers.0.attn.qkv_proj")]
    with pytest.raises(InputError, match=r"'attnn' in 'attnn=attention' matches no name .* Did you mean 'attn'\?"):
        shared_names(mine, theirs, NameMap.load("attnn=attention"))
    with pytest.raises(InputError, match=r"'v_proj' in 'q_proj,v_proj=qkv_proj' matches no name"):
        shared_names(mine, theirs, NameMap.load("q_proj,v_proj=qkv_proj"))
    shared_names(mine, theirs, NameMap.load("attn=attention"))
    (tmp_path / "map.toml").write_text('built_in = "hf-megatron"\n[rename]\n"attnn" = "attention"\n')
    with pytest.raises(InputError, match=r"'attnn' in map '.*map.toml' matches no name .* Did you mean 'attn'\?"):
        shared_names(mine, theirs, NameMap.load(tmp_path / "map.toml"))
    for name in BUILT_IN:
        shared_names(mine, theirs, NameMap.load(name))


def test_the_model_itself_has_one_name_whatever_its_class():
    mine = [value(0, "FSDPLM", api="my.FSDPLM", module=""), value(1, "FSDPLM.add", kind="op", module="FSDPLM")]
    theirs = [value(0, "LM", api="my.LM", module=""), value(1, "LM.add", kind="op", module="LM")]
    one, other = shared_names(mine, theirs, NameMap())
    assert (one("FSDPLM"), one("FSDPLM.add")) == (other("LM"), other("LM.add"))
    assert one("LMHead.add") == "LMHead.add"


PARTS = {name: np.arange(6.0).reshape(2, 3) + 10 * at for at, name in enumerate(("q_proj", "k_proj", "v_proj"))}


def apart(*, swapped=False):
    """A step with three projections that share their input; their weights are [3, 2] each."""
    values = []
    for name, array in reversed(PARTS.items()) if swapped else PARTS.items():
        where = f"attn.{name}"
        first = len(values)
        values.append(value(first, where, "in0", module="attn", array=[[7.0, 8.0]], root=0))
        values.append(value(first + 1, f"{where}.linear", "in1", kind="op", module=where, array=array.T))
        values.append(value(first + 2, f"{where}.linear", kind="op", module=where, array=array))
        values.append(value(first + 3, where, module="attn", array=array, root=first + 2))
        values.append(
            value(first + 4, f"attn.view_{name}", "in0", kind="op", module="attn", array=array, root=first + 2)
        )
        values.append(value(first + 5, where, "in0", module="attn", phase="bwd", array=[[1.0, 1.0]]))
        values.append(value(first + 6, f"{where}.weight", "value", kind="param", phase="param", array=array.T))
    return StepValues("run", 0, (0,), values)


WHOLE = StepValues("ref", 0, (0,), [value(0, "attn.qkv_proj"), value(1, "attn.qkv_proj.linear", kind="op")])
QKV = NameMap.load("q_proj,k_proj,v_proj=qkv_proj")


@pytest.mark.parametrize("swapped", [False, True])
def test_projections_that_the_other_run_has_as_one_are_merged_in_the_order_of_the_map(swapped):
    mine, theirs = fused(apart(swapped=swapped), WHOLE, QKV)
    assert theirs is WHOLE
    found = {(each.site.phase, each.site.name, each.site.slot): each for each in mine.values}
    side_by_side = np.concatenate(list(PARTS.values()), axis=-1)
    for name in ("attn.qkv_proj", "attn.qkv_proj.linear"):
        out = found["fwd", name, "out0"]
        assert out.shape == (2, 9)
        assert np.array_equal(out.load(), side_by_side)
        assert (out.stats.sum, out.stats.numel, out.stats.fingerprint) == (side_by_side.sum(), 18, None)
    for where in (("fwd", "attn.qkv_proj.linear", "in1"), ("param", "attn.qkv_proj.weight", "value")):
        assert np.array_equal(found[where].load(), side_by_side.T)
    assert np.array_equal(found["fwd", "attn.qkv_proj", "in0"].load(), [[7.0, 8.0]])
    assert found["fwd", "attn.qkv_proj.linear", "out0"].module == "attn.qkv_proj"
    gradient = found["bwd", "attn.qkv_proj", "in0"]
    assert (gradient.stats, gradient.load, gradient.note) == (
        None,
        None,
        "a sum over modules that the other run has as one",
    )


def test_indices_and_roots_stay_right_after_a_merge():
    mine, _ = fused(apart(), WHOLE, QKV)
    for place, each in enumerate(mine.values):
        assert each.index == place
        assert each.root <= place
        assert mine.values[each.root].root == each.root
    views = [each for each in mine.values if "view_" in each.site.name]
    assert [each.root for each in views] == [each.index for each in views]


def test_the_side_that_has_the_parts_is_merged_whichever_it_is():
    mine, theirs = fused(WHOLE, apart(), QKV)
    assert mine is WHOLE
    assert {each.site.name for each in theirs.values} >= {"attn.qkv_proj", "attn.qkv_proj.linear"}


def test_a_merge_that_was_made_fits_its_names_and_one_without_parts_is_refused():
    shared_names(fused(apart(), WHOLE, QKV)[0].values, WHOLE.values, QKV)
    with pytest.raises(InputError, match=r"'q_prj' in 'q_prj,k_prj=qkv_proj' matches no name .* Did you mean 'q_proj'"):
        fused(apart(), WHOLE, NameMap.load("q_prj,k_prj=qkv_proj"))


def test_nothing_is_merged_where_both_sides_have_the_parts():
    step = apart()
    assert fused(step, apart(), QKV)[0] is step


def test_a_merge_in_another_order_compares_statistics_only():
    whole = StepValues("ref", 0, (0,), [value(0, "attn.linear_qkv")])
    mine, _ = fused(apart(), whole, NameMap.load("hf-megatron"))
    out = next(each for each in mine.values if each.site.name == "attn.linear_qkv" and each.site.slot == "out0")
    assert out.load is None
    assert out.stats.numel == 18
