"""range-saturation: products that are about to overflow, and gradients that sink into the subnormal numbers."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import trueline
from trueline.laws.overflow import range_saturation
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


class Product(nn.Module):
    """One linear whose output has a largest value that is known."""

    def __init__(self, value: float, dtype: torch.dtype, mask=lambda x: x):
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False, dtype=dtype)
        self.linear.weight.data.copy_(torch.tensor([[value, 0.0], [0.0, 1.0]]))
        self.mask = mask

    def forward(self, x):
        return self.mask(self.linear(x))


def recorded(path: Path, model: nn.Module, *, dtype=torch.float16, steps=2, scale=1e-4, **plan) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = trueline.watch(model, optimizer, out=str(path / "run"), plan={"preset": "mix", **plan})
    for _ in range(steps):
        with watch.step():
            (model(torch.ones(1, 2, dtype=dtype)).float() * scale).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    return Run(path / "run")


def warnings(run: Run):
    return [finding for finding in range_saturation.check(run) if finding.severity == "warning"]


LARGEST = {
    torch.float16: 65_504.0,
    torch.bfloat16: torch.finfo(torch.bfloat16).max,
    torch.float32: 3.4028234663852886e38,
}


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_a_product_above_half_of_the_largest_number_is_named_and_one_at_half_is_not(tmp_path, dtype):
    assert torch.finfo(dtype).max == LARGEST[dtype]
    above = LARGEST[dtype] * 0.75
    model = Product(above / 4, dtype)  # the weight has room, its product with 4 has not
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"preset": "mix"})
    with watch.step():
        (model(torch.full((1, 2), 4.0, dtype=dtype)).double() * 0).sum().backward()
        optimizer.step()
    watch.close()
    (finding,) = warnings(Run(tmp_path / "run"))
    assert finding.sites[0] == "0.0/r0/fwd/linear.linear#0:out0"
    assert finding.measured == pytest.approx(math.log2(1 / 0.75), rel=2e-2)  # bfloat16 has eight bits
    assert finding.expected == 1.0


@pytest.mark.parametrize(("value", "found"), [(32_752.0, 0), (32_768.0 + 16, 1), (65_504.0, 1)])
def test_the_line_is_half_of_65_504(tmp_path, value, found):
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(1, 1, bias=False, dtype=torch.float16)
            self.linear.weight.data.fill_(value / 16)

        def forward(self, x):
            return self.linear(x[:, :1] * 16)

    assert len(warnings(recorded(tmp_path, Doubled()))) == found


def test_masks_and_what_comes_from_large_inputs_are_left_alone(tmp_path):
    lowest = torch.finfo(torch.float16).min
    mask = lambda x: torch.softmax(x + torch.tensor([lowest, 0.0], dtype=torch.float16), -1)  # noqa: E731
    assert warnings(recorded(tmp_path, Product(1.0, torch.float16, mask))) == []
    (tmp_path / "b").mkdir()
    assert warnings(recorded(tmp_path / "b", Product(40_000.0, torch.float16))) == []


def test_gradients_below_the_smallest_normal_number_are_an_info_and_larger_ones_are_not(tmp_path):
    (finding,) = range_saturation.check(recorded(tmp_path, Product(1.0, torch.float16), scale=1e-6))
    assert (finding.severity, finding.sites[0]) == ("info", "0.0/r0/bwd/linear.weight#0:grad")
    # Four elements of 1e-6 to float16's spacing of 2^-24: s sqrt(4) / 2 against u sqrt(4) 17 * 2^-24.
    assert finding.measured == pytest.approx((2.0**-24 / 2) / (2.0**-11 * 17 * 2.0**-24))

    (tmp_path / "b").mkdir()
    assert range_saturation.check(recorded(tmp_path / "b", Product(1.0, torch.float16), scale=1e-3)) == []


def test_an_overflow_is_left_to_overflow_origin(tmp_path):
    assert warnings(recorded(tmp_path, Product(math.inf, torch.float16))) == []


def test_nothing_recorded_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="no step was recorded"):
        range_saturation.check(recorded(tmp_path, Product(1.0, torch.float16), preset="workers"))
    (tmp_path / "b").mkdir()
    with pytest.raises(CannotTell, match="no statistics"):
        range_saturation.check(recorded(tmp_path / "b", Product(1.0, torch.float16), depth="structure"))
