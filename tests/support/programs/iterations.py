"""Trainings whose iterations are not one backward and one step of one optimizer each; one after the other.

    python iterations.py [--weights FILE] [KIND ...]

A device that Python pretends has a thread of the autograd engine of its own, as every GPU has.
"""

import argparse
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend
from torch.utils.checkpoint import checkpoint

weights: dict[str, torch.Tensor] = {}
trained: list[nn.Module] = []


class DeviceModule(_DummyBackendModule):  # type: ignore[misc]
    """What torch.pretended is: activation checkpointing asks it."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Return the dtypes of autocast."""
        return [torch.float16]


def keep(kind: str, *modules: nn.Module) -> None:
    """Keep the final weights of a training; its modules live on, and their names stay taken."""
    for index, module in enumerate(modules):
        trained.append(module)
        weights.update({f"{kind}{index}.{key}": value for key, value in module.state_dict().items()})


def inputs() -> torch.Tensor:
    """A batch, by the random numbers of this moment."""
    return torch.randn(4, 3)


def alone() -> None:
    """One optimizer, two steps."""
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(inputs()).sum().backward()
        optimizer.step()
    keep("alone", model)


def joined() -> None:
    """Two optimizers apply the gradients of one backward, and once only the first: three iterations."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.AdamW(model[1].parameters())]
    for iteration in range(3):
        model.zero_grad()
        model(inputs()).sum().backward()
        for optimizer in optimizers[: 1 if iteration == 1 else 2]:
            optimizer.step()
    keep("joined", model)


def adversaries() -> None:
    """Two optimizers with a backward each; that of the generator leaves gradients in the discriminator too."""
    generator, discriminator = nn.Linear(3, 3), nn.Linear(3, 1)
    makes = torch.optim.Adam(generator.parameters())
    judges = torch.optim.Adam(discriminator.parameters())
    for _ in range(2):
        judges.zero_grad()
        discriminator(generator(inputs()).detach()).sum().backward()
        judges.step()
        makes.zero_grad()
        discriminator(generator(inputs())).sum().backward()
        makes.step()
    keep("adversaries", generator, discriminator)


def overflow(scales: tuple[float, ...] = (2.0, 2.0**127, 2.0)) -> None:
    """A GradScaler leaves out the steps whose scale is too high."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.RMSprop(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=scales[0])
    for scale in (*scales[1:], 1.0):
        optimizer.zero_grad()
        scaler.scale((model(inputs()) * 4).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update(scale)
    keep("overflow", model)


def only_overflows() -> None:
    """Every step is left out."""
    overflow((2.0**127, 2.0**127))


def within_backward() -> None:
    """Each parameter has an optimizer that steps as soon as the gradient is there."""
    model = nn.Linear(3, 1)
    optimizers = {parameter: torch.optim.Adagrad([parameter]) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        model(inputs()).sum().backward()
    keep("within_backward", model)


def checkpointed() -> None:
    """Reentrant activation checkpointing calls backward within backward."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.Rprop(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        checkpoint(model, inputs().requires_grad_(), use_reentrant=True).sum().backward()
        optimizer.step()
    keep("checkpointed", model)


def pretended_device() -> None:
    """The same two, in the engine's thread of a device: steps within a backward that lies within a backward."""
    inner, outer = nn.Linear(3, 3), nn.Linear(3, 3)
    within = torch.optim.Adamax(inner.parameters())
    after = torch.optim.ASGD(outer.parameters())
    threads = set()

    def on_device(tensor: torch.Tensor) -> Any:
        there: Any = torch._C._acc.create_empty_tensor(tuple(tensor.shape), tensor.dtype)
        there.host = tensor
        return there

    class ToDevice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> Any:
            ctx.save_for_backward(tensor)
            return on_device(inner(tensor.detach()).detach())

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> torch.Tensor:
            threads.add(threading.get_ident())
            (saved,) = ctx.saved_tensors
            again = saved.detach().requires_grad_()
            with torch.enable_grad():
                out = inner(again)
            torch.autograd.backward(out, grads[0].host)
            assert again.grad is not None
            return again.grad

    class ToHost(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, there: Any) -> torch.Tensor:
            host: torch.Tensor = there.host.clone()
            return host

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            return on_device(grads[0])

    def step(_: torch.Tensor) -> None:
        within.step()
        within.zero_grad()

    inner.bias.register_post_accumulate_grad_hook(step)
    inner.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    for _ in range(2):
        after.zero_grad()
        ToHost.apply(ToDevice.apply(outer(inputs()))).sum().backward()  # type: ignore[no-untyped-call]
        after.step()
    assert threads and threading.get_ident() not in threads, "the engine has no thread for the device"
    keep("pretended_device", inner, outer)


class Wrapping(torch.optim.Optimizer):
    """Calls its closure, then the step of another optimizer of the same parameters."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Callable[[], Any]) -> None:  # type: ignore[override]
        """Step."""
        closure()
        self.inner.step()


def nested() -> None:
    """An optimizer within another, which is given a closure."""
    model = nn.Linear(3, 1)
    optimizer = Wrapping(torch.optim.Adadelta(model.parameters()))

    def compute_gradients() -> None:
        model.zero_grad()
        model(inputs()).sum().backward()

    for _ in range(2):
        optimizer.step(compute_gradients)
    keep("nested", model)


def in_threads() -> None:
    """Two threads, the second after the first; and the main one again."""
    for _ in range(2):
        thread = threading.Thread(target=alone)
        thread.start()
        thread.join()
    alone()


KINDS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        *(alone, joined, adversaries, overflow, within_backward, checkpointed, pretended_device, nested, in_threads),
    )
}


def main() -> None:
    """Train all of these, or those that are named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--weights")
    arguments = parser.parse_args()
    # Before the engine starts its threads.
    _setup_privateuseone_for_python_backend("pretended", backend_module=DeviceModule())  # type: ignore[no-untyped-call]
    torch.manual_seed(3)
    torch.set_num_threads(1)
    for kind in arguments.kinds:
        {**KINDS, "only_overflows": only_overflows}[kind]()
    if arguments.weights:
        torch.save(weights, arguments.weights)


if __name__ == "__main__":
    main()
