"""The workers table: as Runs were written, so are they; columns of laws stand where they say."""

import pyarrow as pa
import pytest

from trueline.schema.column import Column
from trueline.schema.columns.table import column_names, compose, worker_columns
from trueline.schema.law import installed_laws
from trueline.store.rows import worker_schema

WRITTEN = (
    ("int64", "step"),
    ("int32", "rank"),
    ("int64", "time_ns"),
    ("float64", "step_s own_s"),
    ("int32", "epoch num_micro eval_modules evaluates"),
    ("int64", "passes"),
    ("float64", "loss tokens"),
    ("list<float64>", "part_losses lr"),
    ("list<int64>", "schedule_calls schedule_epochs"),
    ("list<float64>", "schedule_rates"),
    ("uint64", "optimizer_digest"),
    ("list<uint64>", "sample_digests target_digests"),
    ("uint64", "rng_python rng_numpy rng_torch rng_device"),
    ("int32", "rng_used"),
    ("list<uint64>", "rng_drawn"),
    ("string", "own_draws evaluations"),
    ("list<float64>", "evaluation_values"),
    ("float64", "grad_norm grad_nonfinite"),
    ("list<float64>", "param_grad_norms group_grad_norms group_seen used_param_norms"),
    ("float64", "reduced_norm"),
    ("list<float64>", "group_reduced_norms"),
    ("list<float32>", "sketch"),
    ("float64", "cosine_others cosine_reduced cosine_pairs cosine_mean cosine_se"),
    (
        "list<float64>",
        "group_cosine_others group_entered_factor group_entered_residual "
        "group_reduce_own_factor group_reduce_own_residual group_reduce_residual "
        "group_reduce_floor group_reduce_factor group_reduce_shape_residual "
        "group_used_residual group_used_floor group_used_factor group_used_shape_residual",
    ),
    ("list<int64>", "unreduced_params kept_gradients"),
    ("list<float64>", "changed_between group_used_local exact_cosines"),
    ("list<uint64>", "param_digests closing_digests buffer_digests"),
    ("list<float64>", "initial_values"),
    ("string", "clip_facts"),
    ("list<float64>", "clip_values"),
    ("string", "update_facts"),
    ("list<float64>", "update_values token_weights batch_features argument_features"),
    ("string", "input_facts"),
    ("list<int64>", "input_values"),
    ("string", "other_models"),
    ("list<int64>", "other_weights"),
    ("int64", "loss_operations"),
    ("list<int64>", "loss_inputs target_places"),
    ("float64", "grads_factor loss_scale"),
    ("list<float64>", "loss_scaler closing_loss_scaler"),
    ("float64", "update_left_out"),
    ("int32", "passes_begun"),
    ("string", "norm_facts"),
    ("list<float64>", "norm_values"),
    ("string", "average_facts"),
    ("list<float64>", "average_values"),
    ("string", "recomputed"),
    ("list<float64>", "influence row_influence order_influence"),
)
"""Type and names of columns in the order in which Runs have them, whose journals say by a bit which ones a row has."""

ARROW = {
    "string": pa.string(),
    **{name: getattr(pa, name)() for name in ("int64", "int32", "uint64", "float64")},
    **{f"list<{name}>": pa.list_(getattr(pa, name)()) for name in ("int32", "int64", "uint64", "float64", "float32")},
}


def test_runs_are_written_under_the_columns_that_they_always_had():
    written = [(name, ARROW[type_name]) for type_name, names in WRITTEN for name in names.split()]
    names = {name for name, _ in written}
    today = pa.schema([field for field in worker_schema() if field.name in names])
    assert today.serialize().equals(pa.schema(written).serialize())


def test_a_column_has_one_declaration():
    assert len(column_names()) == len(worker_columns())
    of_laws = [column.name for law in installed_laws() for column in law.columns]
    assert len(of_laws) == len(set(of_laws)) > 50


def columns(*names: str) -> tuple[Column, ...]:
    """``name>before`` stands behind the column ``before``."""
    return tuple(Column(name.partition(">")[0], "int64", "", "It.", name.partition(">")[2]) for name in names)


@pytest.mark.parametrize(
    ("laws", "table"),
    [
        ([columns("c")], "abc"),
        ([columns("c>a", "d")], "acdb"),
        ([columns("c>a", "d"), columns("e>c")], "acedb"),
        ([columns("e>c"), columns("c>a", "d")], "acedb"),
        ([columns("c>gone", "d"), columns("e")], "abcde"),
        ([columns("c>d", "d>c")], "abcd"),
    ],
    ids=["at the end", "where it says", "behind another's", "in any order", "behind what is not there", "in a circle"],
)
def test_columns_of_laws_stand_where_they_say(laws, table):
    assert "".join(column.name for column in compose(columns("a", "b"), laws)) == table
