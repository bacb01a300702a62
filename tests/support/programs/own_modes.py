"""Trains within modes of its own: one adds noise to results, one counts calls and lets their number decide."""

import argparse
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Noise(TorchDispatchMode):
    """Adds noise to every floating-point result, as a simulation of analogue hardware does."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point() and func._schema.name == "aten::addmm":
            return result + 1e-3 * torch.randn(result.shape, generator=self.generator)
        torch.rand(1, generator=self.generator)
        return result


class Count(TorchFunctionMode):
    """Counts the functions that are called."""

    num_calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_calls += 1
        return func(*args, **(kwargs or {}))


parser = argparse.ArgumentParser()
parser.add_argument("--weights", required=True)
path = parser.parse_args().weights
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
with Noise(), Count() as count:
    for _ in range(3):
        loss = model(torch.full((3, 4), float(count.num_calls % 7))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
torch.save({**model.state_dict(), "num_calls": torch.tensor(count.num_calls)}, path)
