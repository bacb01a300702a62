"""Replicas on Gloo, to be started by torchrun, with a fault planted on one rank if that is asked for.

torchrun --nproc-per-node 2 replicas.py [--layout LAYOUT] [--steps 8] [--flip STEP:RANK:KIND:INDEX:BIT]

LAYOUT is ddp, fsdp2 or hsdp; reduced or flat, whose ranks average gradients themselves; or plain, whose ranks do not.

KIND is what is flipped: weight, moment (between steps, past torch), gradient (after its reduction), and of an
optimizer's computation: step (once), steps (whenever it is repeated); buffer and flag, of the model. INDEX counts
parameters, BIT bits of the tensor.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def flip(tensor: torch.Tensor, bit: int) -> None:
    """Change one bit of this rank's memory, as a cosmic ray would: torch does not know of it."""
    local = getattr(tensor, "_local_tensor", tensor).detach()
    memory = local.view(-1).view(torch.uint8).numpy()
    bit %= 8 * memory.size
    memory[bit // 8] ^= 1 << bit % 8


class FaultyAdamW(torch.optim.AdamW):
    """Flips a bit of what it computes in one of its steps."""

    fault: tuple[int, int, int, bool] | None = None
    """(step, parameter, bit, whether a repetition flips it too)."""
    num_steps = 0

    def step(self, closure: Any = None) -> Any:
        """Step, then flip."""
        result = super().step(closure)
        if self.fault is not None and self.num_steps == self.fault[0]:
            _, index, bit, is_persistent = self.fault
            flip(self.param_groups[0]["params"][index], bit)
            if not is_persistent:
                self.fault = None
        return result


def make_model(layout: str) -> nn.Module:
    """A small model, replicated or sharded as `layout` says; its dropout draws random numbers in each pass."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4), nn.Dropout(0.2), nn.BatchNorm1d(4, affine=False)
    )
    model.register_buffer("scale", torch.ones(3))
    model.register_buffer("last_mean", torch.zeros(6))  # of a rank's own batch
    if layout in ("plain", "reduced", "flat"):
        return model
    if layout == "ddp":
        return DistributedDataParallel(model)
    size = distributed.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    if layout == "hsdp":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model


def average_gradients(parameters: Sequence[torch.Tensor], layout: str) -> None:
    """Average gradients over all ranks, as programs without a wrapper do: one by one, or as one flat tensor."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    flat = torch.cat([each.reshape(-1) for each in gradients])
    for each in gradients if layout == "reduced" else [flat]:
        distributed.all_reduce(each, distributed.ReduceOp.SUM, None, True).wait()
        each.div_(distributed.get_world_size())
    if layout == "flat":
        for each, part in zip(gradients, flat.split([each.numel() for each in gradients]), strict=True):
            each.copy_(part.view_as(each))


def parse_flip(text: str) -> tuple[int, int, str, int, int]:
    """(step, rank, kind, index of the parameter, bit)."""
    step, rank, kind, index, bit = text.split(":")
    return int(step), int(rank), kind, int(index), int(bit)


def train(
    layout: str,
    num_steps: int,
    flip_text: str = "",
    *,
    with_closure: bool = False,
    ends_at: int | None = None,
    declare: Callable[[Sequence[torch.Tensor]], None] | None = None,
) -> tuple[int, list[torch.Tensor]]:
    """Train; return the number of steps and this rank's weights.

    Rank 1 leaves before the optimizer's step `ends_at`.
    `declare` is given the parameters.
    """
    rank = distributed.get_rank()
    at, victim, kind, index, bit = parse_flip(flip_text or "-1:-1:none:0:0")
    model = make_model(layout)
    optimizer = FaultyAdamW(model.parameters(), lr=0.01)
    parameters = list(model.parameters())
    if declare is not None:
        declare(parameters)
    if kind in ("step", "steps") and victim == rank:
        optimizer.fault = at, index, bit, kind == "steps"
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(num_steps):
        optimizer.num_steps = step
        is_hit = (step, rank) == (at, victim)
        if is_hit and kind == "weight":
            flip(parameters[index], bit)
        if is_hit and kind == "flag":
            model.get_submodule("3").eval()
        if is_hit and kind == "moment":
            flip(optimizer.state[parameters[index]]["exp_avg"], bit)
        features = torch.randn(8, 6, generator=generator)
        strikes_buffer = is_hit and kind == "buffer"
        strike = [is_hit and kind in ("gradient", "gradients"), kind == "gradients"]

        def closure(
            features: torch.Tensor = features, strike: list[bool] = strike, strikes_buffer: bool = strikes_buffer
        ) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(features).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            if layout in ("reduced", "flat"):
                average_gradients(parameters, layout)
            next(each for name, each in model.named_buffers() if name.endswith("last_mean")).copy_(features.mean(0))
            if strikes_buffer:
                flip(next(each for name, each in model.named_buffers() if name.endswith("scale")), bit)
            if strike[0]:
                flip(parameters[index].grad, bit)  # type: ignore[arg-type]
                strike[0] = strike[1]
            return loss

        if with_closure:
            optimizer.step(closure)
        else:
            closure()
            if step == ends_at and rank == 1:
                raise SystemExit(7)
            optimizer.step()
    return num_steps, [getattr(each, "_local_tensor", each).detach().clone() for each in parameters]


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layout", default="ddp")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--flip", default="")
    parser.add_argument("--closure", action="store_true")
    parser.add_argument("--ends-at", type=int)
    parser.add_argument("--weights")
    arguments = parser.parse_args()

    distributed.init_process_group("gloo")
    num_steps, weights = train(
        arguments.layout,
        arguments.steps,
        arguments.flip,
        with_closure=arguments.closure,
        ends_at=arguments.ends_at,
    )
    if arguments.weights:
        torch.save(weights, Path(f"{arguments.weights}.{distributed.get_rank()}"))
    print(f"rank {distributed.get_rank()} trained {num_steps} steps", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
