"""Short trainings that use torch.compile, one after the other, each in another way; their final weights are saved.

    python compiled_variants.py --backend eager --weights out.pt

Of the last ones, the whole step of the optimizer becomes one piece of compiled code.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

NUM_STEPS = 3


class Descent(torch.optim.Optimizer):
    """Gradient descent with an average of the weights, as users write optimizers; no break of the graph."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "k": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> None:  # type: ignore[override]
        """Move z against the gradient, and the weight towards z."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        for group in self.param_groups:
            group["k"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                if "z" not in state:
                    state["z"] = parameter.clone()
                state["z"].sub_(parameter.grad, alpha=group["lr"])
                parameter.lerp_(state["z"], 1 / group["k"])


class Training:
    """A small model, and ways to train it."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer], backend: str) -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.inputs, self.targets = torch.randn(16, 8), torch.randn(16, 4)
        self.optimizer = make(self.model.parameters())
        self.compiled = partial(torch.compile, backend=backend)

    def compute_gradients(self, model: Callable[..., torch.Tensor] | None = None) -> torch.Tensor:
        """Forward and backward."""
        self.model.zero_grad()
        loss = nn.functional.mse_loss((model or self.model)(self.inputs), self.targets)
        loss.backward()
        return loss

    def in_a_function(self) -> None:
        """A compiled function calls the step."""

        def step() -> None:
            self.optimizer.step()

        step = self.compiled(step)
        for _ in range(NUM_STEPS):
            self.compute_gradients()
            step()

    def assigned(self, **options: Any) -> None:
        """The step itself is compiled, and takes its own place."""
        self.optimizer.step = self.compiled(self.optimizer.step, **options)  # type: ignore[method-assign]
        for _ in range(NUM_STEPS):
            self.compute_gradients()
            self.optimizer.step()

    def whole(self) -> None:
        """Forward, backward, clipping and step."""

        def train() -> None:
            self.compute_gradients()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
            self.optimizer.step()

        train = self.compiled(train)
        for _ in range(NUM_STEPS):
            train()

    def scaled(self) -> None:
        """The same with a GradScaler."""
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

        def train() -> None:
            self.model.zero_grad()
            loss = nn.functional.mse_loss(self.model(self.inputs), self.targets)
            scaler.scale(loss).backward()
            scaler.step(self.optimizer)
            scaler.update()

        train = self.compiled(train)
        for _ in range(NUM_STEPS):
            train()

    def with_closure(self) -> None:
        """A compiled function gives the step a closure."""
        step = self.compiled(lambda: self.optimizer.step(self.compute_gradients))  # type: ignore[arg-type]
        for _ in range(NUM_STEPS):
            step()

    def of_a_module_with_hooks(self) -> None:
        """A module whose forward and backward have hooks is compiled, the step is not."""
        self.model[0].register_forward_hook(lambda _, __, output: output * 1.01)
        self.model[2].register_full_backward_hook(lambda *_: None)
        model = self.compiled(self.model)
        for _ in range(NUM_STEPS):
            self.compute_gradients(model)
            self.optimizer.step()

    def of_backward(self, step: Callable[[], object] | None = None) -> None:
        """Compiled autograd."""
        for _ in range(NUM_STEPS):
            with torch._dynamo.compiled_autograd._enable(self.compiled()):  # type: ignore[no-untyped-call]
                self.compute_gradients()
            (step or self.optimizer.step)()

    def steps_within_backward(self) -> None:
        """Compiled autograd, within which optimizers step."""
        optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in self.model.parameters()}

        def step(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()  # type: ignore[index]
            parameter.grad = None

        for each in self.model.parameters():
            each.register_post_accumulate_grad_hook(step)
        self.of_backward(lambda: None)


def main() -> None:
    """Train in every way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--weights", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    adamw: Any = torch.optim.AdamW
    ways: list[tuple[Any, Callable[[Training], None]]] = [
        *((partial(adamw, **{way: True}), Training.in_a_function) for way in ("foreach", "fused")),
        (partial(torch.optim.SGD, lr=0.1, momentum=0.9), Training.assigned),
        (adamw, Training.whole),
        (adamw, Training.scaled),
        (adamw, Training.with_closure),
        (adamw, Training.of_a_module_with_hooks),
        (adamw, Training.of_backward),
        (adamw, Training.steps_within_backward),
        (partial(adamw, capturable=True), Training.in_a_function),
        # From here on, no hook is called.
        (lambda found: torch.optim.Muon([each for each in found if each.dim() == 2]), Training.in_a_function),
        (Descent, lambda training: training.assigned(fullgraph=True)),
        (Descent, Training.with_closure),
    ]
    weights = {}
    for index, (make, way) in enumerate(ways):
        training = Training(make, arguments.backend)
        way(training)
        weights.update({f"{index}.{key}": value for key, value in training.model.state_dict().items()})
    torch.save(weights, arguments.weights)


if __name__ == "__main__":
    main()
