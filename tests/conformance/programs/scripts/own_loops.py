"""Training loops written by hand, one for each way of using torch's optimizers.

python own_loops.py KIND
"""

import sys
from collections.abc import Callable

import torch
from outcome import IS_PLANTED, is_time, nudge, save
from torch import nn
from torch.utils.checkpoint import checkpoint

NUM_STEPS, PLANTED = 6, 3


class Perceptron(nn.Module):
    """Two layers and a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(inputs))))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets of each step."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 8, generator=generator), torch.randn(16, 4, generator=generator)) for _ in range(NUM_STEPS)
    ]


def with_closure(make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    """An optimizer that is given a closure; planted: a gradient within the closure."""
    model = Perceptron()
    optimizer = make(model)
    for step, (inputs, targets) in enumerate(batches()):

        def loss_of(step: int = step, inputs: torch.Tensor = inputs, targets: torch.Tensor = targets) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            if is_time(step, PLANTED):
                nudge(model.last.weight.grad)
            return loss

        optimizer.step(loss_of)
    save(model.state_dict().values())


def closure_adamw() -> None:
    """AdamW with a closure."""
    with_closure(lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2))


def closure_lbfgs() -> None:
    """LBFGS."""
    with_closure(lambda model: torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3))


def plain(
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer],
    before_forward: Callable[[int, nn.Module, torch.optim.Optimizer], None] = lambda *_: None,
    before_step: Callable[[int, nn.Module, torch.optim.Optimizer], None] = lambda *_: None,
    wrap: Callable[[nn.Module], Callable[[torch.Tensor], torch.Tensor]] = lambda model: model,
) -> None:
    """A loop of forward, backward and step."""
    model = Perceptron()
    optimizer = optimizer_of(model)
    forward = wrap(model)
    for step, (inputs, targets) in enumerate(batches()):
        before_forward(step, model, optimizer)
        optimizer.zero_grad()
        nn.functional.mse_loss(forward(inputs), targets).backward()
        before_step(step, model, optimizer)
        optimizer.step()
    save(model.state_dict().values())


def adamw(model: nn.Module, **options: bool) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, **options)


def decay(step: int, _: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Plant: another weight decay."""
    if is_time(step, PLANTED):
        optimizer.param_groups[0]["weight_decay"] = 0.5


def fused() -> None:
    """AdamW in one kernel; planted: weight decay."""
    plain(lambda model: adamw(model, fused=True), before_step=decay)


def foreach() -> None:
    """AdamW over lists; planted: weight decay."""
    plain(lambda model: adamw(model, foreach=True), before_step=decay)


def betas() -> None:
    """AdamW; planted: another beta1 in one step."""

    def plant(step: int, _: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["betas"] = (0.8 if is_time(step, PLANTED) else 0.9, 0.999)

    plain(adamw, before_step=plant)


def written_weight() -> None:
    """AdamW; planted: a weight is written past autograd and the optimizer."""

    def plant(step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
        if is_time(step, PLANTED):
            nudge(model.first.weight.data)

    plain(adamw, before_forward=plant)


def compiled_model() -> None:
    """torch.compile of the model; planted: a gradient."""

    def plant(step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
        if is_time(step, PLANTED):
            nudge(model.first.bias.grad)

    plain(adamw, before_step=plant, wrap=torch.compile)


def compiled_step() -> None:
    """torch.compile of optimizer.step; planted: a gradient."""
    model = Perceptron()
    optimizer = adamw(model)

    @torch.compile
    def apply() -> None:
        optimizer.step()

    for step, (inputs, targets) in enumerate(batches()):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        if is_time(step, PLANTED):
            nudge(model.first.bias.grad)
        apply()
    save(model.state_dict().values())


def muon() -> None:
    """Muon for matrices, AdamW for the rest: two steps an iteration; planted: Muon's learning rate."""
    model = Perceptron()
    matrices = [each for each in model.parameters() if each.ndim == 2]
    others = [each for each in model.parameters() if each.ndim != 2]
    optimizers = [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(others, lr=1e-2)]
    for step, (inputs, targets) in enumerate(batches()):
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizers[0].param_groups[0]["lr"] = 2e-2 if is_time(step, PLANTED) else 1e-2
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    save(model.state_dict().values())


def bf16_autocast() -> None:
    """bfloat16 by autocast; planted: a running mean."""

    def wrap(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def forward(inputs: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return model(inputs).float()

        return forward

    def plant(step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
        if is_time(step, PLANTED):
            nudge(model.norm.running_mean)

    plain(adamw, before_forward=plant, wrap=wrap)


def fp16_scaler() -> None:
    """float16 by autocast with a gradient scaler; planted: its scale."""
    model = Perceptron()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step, (inputs, targets) in enumerate(batches()):
        if is_time(step, PLANTED):
            scaler.update(900.0)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(inputs).float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    save(model.state_dict().values())


def checkpointed(use_reentrant: bool) -> None:
    """Activations are computed anew in backward; planted: a gradient, by a hook of autograd."""
    calls = 0

    def plant(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return gradient * (2.0 if is_time(calls - 1, PLANTED) else 1.0)

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        model.last.bias.register_hook(plant)
        return adamw(model)

    def wrap(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda inputs: checkpoint(model, inputs.requires_grad_(), use_reentrant=use_reentrant)

    plain(optimizer_of, wrap=wrap)


def checkpoint_reentrant() -> None:
    """Activation checkpointing, the older kind."""
    checkpointed(use_reentrant=True)


def checkpoint_hooks() -> None:
    """Activation checkpointing, by hooks of saved tensors."""
    checkpointed(use_reentrant=False)


def optimizer_in_backward() -> None:
    """An optimizer for each parameter, stepped within backward; planted: the gradient of one parameter."""
    model = Perceptron()
    optimizers = {each: torch.optim.AdamW([each], lr=1e-2) for each in model.parameters()}
    steps = dict.fromkeys(optimizers, 0)

    def step(parameter: torch.Tensor) -> None:
        if parameter is model.first.weight and is_time(steps[parameter], PLANTED):
            nudge(parameter.grad)
        steps[parameter] += 1
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    for inputs, targets in batches():
        nn.functional.mse_loss(model(inputs), targets).backward()
    save(model.state_dict().values())


def averaged() -> None:
    """An exponential moving average of the weights; planted: a weight of the average."""
    model = Perceptron()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = adamw(model)
    for step, (inputs, targets) in enumerate(batches()):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        if is_time(step, PLANTED):
            nudge(average.module.last.weight)
        optimizer.step()
        average.update_parameters(model)
    save(model.state_dict().values(), average.state_dict().values())


def accumulated() -> None:
    """Three micro-batches a step, clipped; planted: the second micro-batch's targets."""
    model = Perceptron()
    optimizer = adamw(model)
    for step, (inputs, targets) in enumerate(batches()):
        optimizer.zero_grad()
        for part in range(3):
            wanted = targets * (1.1 if part == 1 and is_time(step, PLANTED) else 1.0)
            (nn.functional.mse_loss(model(inputs[part::3]), wanted[part::3]) / 3).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    save(model.state_dict().values())


def vae() -> None:
    """A variational autoencoder; planted: one more draw of the generator in a step."""
    encoder, decoder = nn.Linear(8, 6), nn.Linear(3, 8)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-2)
    for step, (inputs, _) in enumerate(batches()):
        mean, log_variance = encoder(inputs).chunk(2, dim=1)
        if is_time(step, PLANTED):
            torch.rand(1)
        latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
        loss = nn.functional.mse_loss(decoder(latent), inputs) + 0.1 * divergence
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save(encoder.state_dict().values(), decoder.state_dict().values())


def dqn() -> None:
    """Deep Q-learning with a target network; planted: the target is copied one step early."""
    online, target = Perceptron(), Perceptron()
    target.load_state_dict(online.state_dict())
    optimizer = adamw(online)
    for step, (states, rewards) in enumerate(batches()):
        if step == 4 or is_time(step, PLANTED):
            target.load_state_dict(online.state_dict())
        with torch.no_grad():
            wanted = rewards[:, 0] + 0.9 * target(states.flip(0)).max(1).values
        optimizer.zero_grad()
        nn.functional.smooth_l1_loss(online(states).max(1).values, wanted).backward()
        optimizer.step()
    save(online.state_dict().values(), target.state_dict().values())


def graph_index_add() -> None:
    """Messages of a graph summed by index_add, which several threads of the CPU do in no order; planted: a feature."""
    torch.set_num_threads(4)
    num_nodes, num_edges = 500, 100_000
    generator = torch.Generator().manual_seed(2)
    edges = torch.randint(num_nodes, (2, num_edges), generator=generator)
    features = torch.randn(num_nodes, 32, generator=generator)
    layer = nn.Linear(32, 32)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for step in range(NUM_STEPS):
        if is_time(step, PLANTED):
            nudge(features)
        messages = layer(features)[edges[0]]
        summed = torch.zeros(num_nodes, 32).index_add(0, edges[1], messages)
        optimizer.zero_grad()
        summed.square().mean().backward()
        optimizer.step()
    save(layer.state_dict().values())


KINDS: dict[str, Callable[[], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        accumulated,
        averaged,
        betas,
        bf16_autocast,
        checkpoint_hooks,
        checkpoint_reentrant,
        closure_adamw,
        closure_lbfgs,
        compiled_model,
        compiled_step,
        dqn,
        foreach,
        fp16_scaler,
        fused,
        graph_index_add,
        muon,
        optimizer_in_backward,
        vae,
        written_weight,
    )
}

if __name__ == "__main__":
    torch.manual_seed(0)
    KINDS[sys.argv[1]]()
    print(f"trained; planted: {IS_PLANTED}")
