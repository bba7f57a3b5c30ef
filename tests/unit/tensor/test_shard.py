"""Which runs of memory a shard of a tensor is, and what is no shard."""

import pytest
import torch

from trueline.tensor.shard import ShardRuns
from trueline.tensor.weights import MAX_WORDS


def test_a_shard_starts_where_it_lies_in_the_whole():
    whole = torch.arange(60).view(3, 4, 5)
    for part, at in ((whole[1:], [1, 0, 0]), (whole[:, 1:3], [0, 1, 0]), (whole[1:, 2:, 3:], [1, 2, 3])):
        runs = ShardRuns(part, whole.shape, at)
        places = runs.starts(whole.device)[:, None] + torch.arange(runs.run_length)
        assert places.flatten().tolist() == part.flatten().tolist()


def test_the_largest_tensor_has_words_for_numbers_of_16_bytes():
    x = torch.zeros(1)
    assert ShardRuns(x, [MAX_WORDS // 4], [0]).num_runs == 1
    with pytest.raises(ValueError, match="more than"):
        ShardRuns(x, [MAX_WORDS // 4 + 1], [0])
