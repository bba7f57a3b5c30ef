"""The lines of the script that train: each once, in the user's own file, and not looked at for ever."""

import inspect

import torch
from torch import nn
from torch.utils.data import DataLoader

from trueline.capture.model import patches
from trueline.capture.step import call_sites as sites


def line_of(text):
    """``file:line`` of this file as it is told, by the text of the line."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def number(told):
    return int(told.rpartition(":")[2])


def own_file(monkeypatch):
    """Files of tests are the user's own here, also where the sources of the project are below them."""
    monkeypatch.setattr(sites, "is_users_file", lambda file: file == __file__)
    return sites.CallSites()


def test_each_line_is_told_once_by_kind(monkeypatch):
    found = own_file(monkeypatch)
    found.listen(*sites.KINDS)
    try:
        loader = DataLoader(torch.randn(4, 3))  # made here
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in loader:
            model(x).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            found.note("step")
            optimizer.zero_grad()
        model.eval()
    finally:
        found.ignore(*sites.KINDS)
    assert {kind: [number(line) for line in lines] for kind, lines in found.lines.items()} == {
        "DataLoader": [line_of("loader = DataLoader")],
        "optimizer": [line_of("optimizer = torch.optim.SGD(model")],
        "backward": [line_of("model(x).sum().backward()")],
        "clip_grad_norm_": [line_of("nn.utils.clip_grad_norm_")],
        "step": [line_of('found.note("step")')],
        "zero_grad": [line_of("optimizer.zero_grad()")],
        "eval": [line_of("model.eval()")],
    }


def test_calls_from_known_lines_are_let_go_and_functions_of_torch_come_back(monkeypatch):
    original = torch.optim.Optimizer.zero_grad
    found = own_file(monkeypatch)
    found.listen("zero_grad")
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    for _ in range(sites.PATIENCE + 1):
        optimizer.zero_grad()
    assert not patches.zero_grads[0]._before
    assert torch.optim.Optimizer.zero_grad is original
    assert len(found.lines["zero_grad"]) == 1
    found.listen("zero_grad")
    assert torch.optim.Optimizer.zero_grad is original, "it has been looked at long enough"


def test_lines_of_libraries_and_of_torch_are_not_the_users(monkeypatch):
    found = sites.CallSites()
    monkeypatch.setattr(sites, "is_users_file", lambda file: False)
    found.note("step")
    assert found.lines == {}


def test_lines_are_told_in_full_where_the_working_directory_is_gone(monkeypatch, tmp_path):
    found = own_file(monkeypatch)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    found.note("step")
    assert found.lines["step"][0].startswith(f"{__file__}:")
