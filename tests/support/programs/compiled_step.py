"""A training whose optimizer's step is compiled by torch.compile.

    python compiled_step.py function --backend inductor --weights out.pt

| kind | compiled |
|---|---|
| `function` | a function that calls the step |
| `closure` | a step that is given a closure |
| `train` | the whole training step: forward, backward, clipping, the optimizer |
| `both` | the steps of two optimizers; the second is not torch's, and is compiled with fullgraph=True |
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

NUM_STEPS = 10  # more than Dynamo compiles one function for


class Descent(torch.optim.Optimizer):
    """Gradient descent, without the break of the graph that torch's own have."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter against its gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])


def main() -> None:
    """Train a perceptron for ten steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["function", "closure", "train", "both"])
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--weights")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    inputs, targets = torch.randn(16, 8), torch.randn(16, 4)

    def compute_gradients() -> torch.Tensor:
        model.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    def compiled(function: Callable[[], Any], **options: Any) -> Callable[[], Any]:
        return torch.compile(function, backend=arguments.backend, **options)

    adam, descent = torch.optim.AdamW(model[0].parameters(), lr=1e-2), Descent(model[2].parameters())

    def train() -> None:
        compute_gradients()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        adam.step()

    def step_adam() -> None:
        adam.step()

    steps: dict[str, list[Callable[[], Any]]] = {
        "function": [compute_gradients, compiled(step_adam)],
        "closure": [compiled(lambda: adam.step(compute_gradients))],
        "train": [compiled(train)],
        "both": [compute_gradients, compiled(adam.step), compiled(descent.step, fullgraph=True)],
    }
    for _ in range(NUM_STEPS):
        for step in steps[arguments.kind]:
            step()
    if arguments.weights:
        torch.save(model.state_dict(), arguments.weights)


if __name__ == "__main__":
    main()
