"""Downloads of torchvision and timm are not made: files are what they are, and weights are those that were drawn."""


def _utils(module):
    import os

    module.check_integrity = lambda path, md5=None: os.path.isfile(path)


def _cifar(module):
    import os

    module.check_integrity = lambda path, md5=None: os.path.isfile(path)


def _vision(module):
    before = module.WeightsEnum.get_state_dict
    module.WeightsEnum.get_state_dict = lambda self, *given, **named: None
    del before


def _load(module):
    import torch

    before = torch.nn.Module.load_state_dict

    def load_state_dict(self, state_dict, *given, **named):
        return None if state_dict is None else before(self, state_dict, *given, **named)

    torch.nn.Module.load_state_dict = load_state_dict


def _timm(module):
    module.load_pretrained = lambda *given, **named: None


AT = {
    "torchvision.datasets.utils": _utils,
    "torchvision.datasets.cifar": _cifar,
    "torchvision.models._api": _vision,
    "torchvision": _load,
    "timm.models._builder": _timm,
}
