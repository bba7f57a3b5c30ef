"""Digests: equal content, equal number; anything else, another."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from trueline.tensor import digest
from trueline.tensor.digest import combine, digest_each, digest_rows, digest_tensor, unsigned


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_equal_tensors_have_equal_digests_and_one_flipped_bit_another(dtype):
    x = (torch.arange(1000) % 7).to(dtype)
    assert digest_tensor(x) == digest_tensor(x.clone())
    y = x.clone()
    y[500] = 1 if x[500] != 1 else 0
    assert digest_tensor(x) != digest_tensor(y)


def test_digests_of_each_are_those_of_one():
    x, y = torch.randn(64), torch.arange(5)
    assert digest_each([x, None, y], x.device).tolist() == [digest_tensor(x).item(), 0, digest_tensor(y).item()]


def test_digests_of_tensors_on_other_devices_are_brought_together():
    assert digest_each([torch.randn(3), torch.randn(3, device="meta")], torch.device("meta")).shape == (2,)


def test_a_permutation_is_seen():
    x = torch.randn(64)
    assert digest_tensor(x) != digest_tensor(x.flip(0))
    assert digest_rows(x[None])[0] != digest_rows(x.flip(0)[None])[0]


def test_logical_order_counts_not_memory_order():
    x = torch.randn(8, 9)
    assert digest_tensor(x.t().contiguous().t()) == digest_tensor(x)


@pytest.mark.parametrize("of", [digest_tensor, digest_rows])
def test_storages_can_still_be_resized_after_a_digest(of):
    """FSDP2 resizes those of gathered parameters."""
    x = torch.zeros(2, 10_000)
    of(x)
    x.untyped_storage().resize_(0)


def test_last_bit_of_one_float_is_seen_by_the_integer_hash():
    x = torch.randn(3, 100)
    y = x.clone()
    y.view(torch.int32)[1, 50] ^= 1
    a, b = digest_rows(x), digest_rows(y)
    assert (a == b).tolist() == [True, False, True]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(0, 6), st.integers(0, 6))
def test_padding_does_not_change_a_sample(tokens, left, right):
    plain = torch.tensor([tokens])
    padded = torch.tensor([[0] * left + tokens + [0] * right])
    mask = torch.tensor([[False] * left + [True] * len(tokens) + [False] * right])
    assert digest_rows(padded, mask)[0] == digest_rows(plain, torch.ones_like(plain, dtype=torch.bool))[0]


def test_right_padding_without_a_mask_does_not_change_a_sample():
    short = torch.tensor([[5, 6, 7, 0]])
    long = torch.tensor([[5, 6, 7, 0, 0, 0]])
    assert digest_rows(short)[0] == digest_rows(long)[0]


def test_rows_of_one_length_stay_distinct():
    rows = torch.cartesian_prod(*[torch.arange(3)] * 6)
    assert digest_rows(rows).unique().numel() == 3**6


def test_random_rows_do_not_collide():
    rows = torch.randint(0, 4, (20_000, 24), generator=torch.Generator().manual_seed(0)).unique(dim=0)
    assert digest_rows(rows).unique().numel() == rows.shape[0]


def test_long_rows_take_the_byte_hash_and_still_differ():
    x = torch.randn(4, 3, 64, 64)
    y = x.clone()
    y[2, 0, 0, 0] += 1
    assert (digest_rows(x) == digest_rows(y)).tolist() == [True, True, False, True]


def test_chunks_do_not_change_the_integer_hash(monkeypatch):
    x = torch.randn(2, 300)
    whole = digest_rows(x)
    monkeypatch.setattr(digest, "_CHUNK", 64)
    assert torch.equal(whole, digest_rows(x))


def test_empty_things_have_a_digest():
    assert digest_rows(torch.zeros(0, 4)).shape == (0,)
    assert digest_rows(torch.zeros(2, 0)).shape == (2,)
    assert digest_tensor(torch.zeros(0)) == digest_tensor(torch.zeros(0))


def test_combine_is_ordered_and_unsigned_is_uint64():
    a, b = torch.tensor([1, 2]), torch.tensor([3, 4])
    assert not torch.equal(combine(a, b), combine(b, a))
    assert unsigned(-1) == 2**64 - 1


class Largest(TorchDispatchMode):
    """The most bytes that any tensor has that is made inside."""

    def __init__(self, *inputs):
        super().__init__()
        self.known = {x.untyped_storage().data_ptr() for x in inputs}
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.known:
                self.nbytes = max(self.nbytes, x.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool])
def test_no_temporary_grows_with_what_is_hashed(dtype, monkeypatch):
    monkeypatch.setattr(digest, "_CHUNK", 64)
    x = (torch.arange(1, 4001) % 7).to(dtype).reshape(1, -1)
    with Largest(x) as largest:
        digest._by_position(x)
    assert largest.nbytes <= 64 * 8


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_few_numbers_have_the_digests_by_numpy_that_they_have_by_torch(dtype, monkeypatch):
    draws = torch.Generator().manual_seed(0)
    rows = torch.randint(-(2**62), 2**62, (5, 33), generator=draws).to(dtype)
    rows[1, 7:] = rows[1, 7].clone()
    rows[2] = 1
    by_numpy = digest_rows(rows)
    monkeypatch.setattr(digest, "_FEW", 0)
    assert digest_rows(rows).equal(by_numpy)


def test_few_numbers_that_functorch_holds_have_the_digests_of_all_others():
    rows = torch.randint(0, 9, (3, 2, 8))
    assert torch.vmap(digest_rows)(rows).equal(torch.stack([digest_rows(each) for each in rows]))


def test_the_storage_of_few_numbers_can_still_be_resized_after_a_digest():
    rows = torch.zeros(2, 8, dtype=torch.int64)
    digest_rows(rows)
    rows.untyped_storage().resize_(0)
