"""A script that asks for CUDA gets the CPU: ``.cuda()`` changes nothing, ``to("cuda")`` is ``to("cpu")``, NCCL is
Gloo, and DDP has no ``device_ids``. Autocast and GradScaler for CUDA are off, as torch has them where there is none.
"""

import functools


def _device(device):
    import torch

    if isinstance(device, bool) or device is None:
        return device
    if isinstance(device, int) or (isinstance(device, (str, torch.device)) and str(device).startswith("cuda")):
        return torch.device("cpu")
    return device


def _torch(torch):
    def tensor_cuda(self, *given, **named):
        return self

    def module_cuda(self, *given, **named):
        return self

    def pin_memory(self, *given, **named):
        return self

    torch.Tensor.cuda, torch.nn.Module.cuda = tensor_cuda, module_cuda
    torch.Tensor.pin_memory = pin_memory
    for owner in (torch.Tensor, torch.nn.Module):
        before = owner.to

        def to(self, *given, before=before, **named):
            given = tuple(_device(value) if not isinstance(value, bool) else value for value in given)
            if "device" in named:
                named["device"] = _device(named["device"])
            return before(self, *given, **named)

        owner.to = functools.wraps(before)(to)
    for name in ("zeros", "ones", "tensor", "randn", "rand", "full", "arange", "empty", "randint", "linspace"):
        before = getattr(torch, name)

        def make(*given, before=before, **named):
            if "device" in named:
                named["device"] = _device(named["device"])
            return before(*given, **named)

        setattr(torch, name, functools.wraps(before)(make))
    for name, answer in _CUDA.items():
        setattr(torch.cuda, name, _constant(answer))


_CUDA = {
    "set_device": None,
    "synchronize": None,
    "empty_cache": None,
    "reset_peak_memory_stats": None,
    "manual_seed": None,
    "manual_seed_all": None,
    "current_device": 0,
    "max_memory_allocated": 0,
    "memory_allocated": 0,
    "get_device_name": "none",
}
"""What functions of torch.cuda answer."""


def _constant(answer):
    """A function of its own for each name: torch.compile takes no function under two names."""

    def constant(*given, **named):
        return answer

    return constant


def _group(distributed):
    before = distributed.init_process_group

    def init_process_group(backend=None, *given, **named):
        named.pop("device_id", None)
        return before("gloo", *given, **named)

    distributed.init_process_group = init_process_group


def _ddp(module):
    before = module.DistributedDataParallel.__init__

    @functools.wraps(before)
    def __init__(self, wrapped, device_ids=None, output_device=None, *given, **named):
        before(self, wrapped, None, None, *given, **named)

    module.DistributedDataParallel.__init__ = __init__


AT = {"torch": _torch, "torch.distributed": _group, "torch.nn.parallel.distributed": _ddp}
