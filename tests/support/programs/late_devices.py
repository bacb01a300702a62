"""A program that sets CUDA_VISIBLE_DEVICES after importing torch, trains, and forks a child that trains.

Prints how often somebody else than this program and torch asked CUDA for its devices: that initialises it, after which
the variable has no effect, and the child cannot use CUDA.
"""

import collections
import importlib.util
import json
import multiprocessing
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

ASKING = ("is_available", "device_count", "_lazy_init", "init", "get_device_name", "get_device_properties")
calls: collections.Counter[str] = collections.Counter()


def spy(module: Any, name: str) -> None:
    """Count the calls of a function."""
    original = getattr(module, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        frame: Any = sys._getframe(1)
        while "/torch/" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame.f_code.co_filename != __file__:
            calls[name] += 1
        return original(*args, **kwargs)

    setattr(module, name, counted)


class Spies(MetaPathFinder, Loader):
    """Puts the spies in before the import of torch has ended, and what waits for that end begins."""

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        """Have torch.cuda loaded by this object."""
        if name != "torch.cuda":
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        self.loader, spec.loader = spec.loader, self
        return spec

    def exec_module(self, module: Any) -> None:
        """Load it, and put the spies in."""
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        for name in ASKING:
            spy(module, name)
        if hasattr(sys.modules["torch._C"], "_cuda_getDeviceCount"):  # torch without CUDA has it not
            spy(sys.modules["torch._C"], "_cuda_getDeviceCount")


sys.meta_path.insert(0, Spies())

import torch  # noqa: E402


def train() -> None:
    """Two steps."""
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for batch in torch.utils.data.DataLoader(torch.ones(4, 4), batch_size=2):
        (weight * batch * torch.rand(4)).sum().backward()
        optimizer.step()
    print(os.environ["CUDA_VISIBLE_DEVICES"], json.dumps(calls), flush=True)


if __name__ == "__main__":
    print("late", json.dumps(calls), flush=True)
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    train()
    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join()
