"""Records one small training several times in forked children, each with another cause planted: torch is imported once.

python planted_runs.py DIRECTORY PLANT...
"""

import copy
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from harness.recording import process, watch
from harness.recording.automatic import active_log, start_recording
from harness.recording.run_spec import RunSpec
from harness.trace.manifest import Fingerprint, Part

WIDTH = 256
CHECKPOINT = Path(sys.argv[1]) / "checkpoint.pt"


class Rows(Dataset[torch.Tensor]):
    """Rows of numbers; noisy ones get a number that no seed decides."""

    def __init__(self, is_noisy: bool) -> None:
        self.is_noisy = is_noisy
        self.rows = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = int.from_bytes(os.urandom(2), "little") / 2**16 if self.is_noisy and index == 9 else 0.0
        return self.rows[index] + noise


class Stream(IterableDataset[torch.Tensor]):
    """The same rows as a stream, of which the first worker has a single batch."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        count = 4 if info is not None and info.id == 0 else 12
        return iter(Rows(False).rows[:count])


def loader_of(plant: str) -> DataLoader[torch.Tensor]:
    if plant == "stream":
        return DataLoader(Stream(), batch_size=4, num_workers=2)
    if plant.startswith("worker"):
        return DataLoader(Rows(True), batch_size=4, num_workers=2)
    shuffled = torch.Generator().manual_seed(6 if plant == "generator" else 5)
    return DataLoader(Rows(False), batch_size=4, shuffle=True, generator=shuffled)


def train(plant: str) -> None:
    model = torch.nn.Linear(WIDTH, 128)
    betas = (0.9, 0.99) if plant == "betas" else (0.9, 0.999)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=betas)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    watch("average", average)
    first = 2 if plant.startswith("resumed") else 0
    if first:
        restore(model, optimizer, average, is_whole=plant == "resumed")
    for step, rows in enumerate(loader_of(plant)):
        if step < first:
            continue
        if plant == "write" and step == 2:
            model.weight.data.mul_(1 + 2**-10)
        if plant == "write one" and step == 2:
            model.weight.data[60, 100] += 2**-10
        if plant == "switch" and step == 2:
            optimizer.param_groups[0]["maximize"] = True
        if plant == "moment" and step == 2:
            optimizer.state[model.weight]["exp_avg"].mul_(1.01)
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.lerp_(parameter, 0.5 if plant == "average" and step == 1 else 0.1)
        if plant == "none" and step == 1:
            torch.save((model.state_dict(), optimizer.state_dict(), average, torch.get_rng_state()), CHECKPOINT)


def restore(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, average: list[torch.Tensor], *, is_whole: bool
) -> None:
    """Resume after step 1; without the moments of the optimizer where the checkpoint is not restored whole."""
    weights, moments, averages, random_state = torch.load(CHECKPOINT)
    model.load_state_dict(weights)
    if is_whole:
        optimizer.load_state_dict(moments)
    for mean, saved in zip(average, averages, strict=True):
        mean.copy_(saved)
    torch.set_rng_state(random_state)


class Critic(torch.nn.Linear):
    """A class of its own, which names what it holds."""


def actor_critic(plant: str) -> None:
    """Two optimizers; the actor's backward leaves gradients in the critic, whose target network follows it."""
    actor, critic = torch.nn.Linear(4, 2), Critic(6, 1)
    target = copy.deepcopy(critic)
    optimizers = [torch.optim.Adam(each.parameters(), 1e-2) for each in (actor, critic)]
    for iteration in range(4):
        states, following, actions = torch.randn(8, 4), torch.randn(8, 4), torch.randn(8, 2)
        with torch.no_grad():
            if plant == "actor critic: target" and iteration == 2:
                target.weight.mul_(1.01)
            wanted = 0.9 * target(torch.cat([following, actor(following).tanh()], 1))
        optimizers[1].zero_grad()
        (critic(torch.cat([states, actions], 1)) - wanted).square().mean().backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        critic(torch.cat([states, actor(states).tanh()], 1)).mean().neg().backward()
        optimizers[0].step()
        with torch.no_grad():
            for mean, parameter in zip(target.parameters(), critic.parameters(), strict=True):
                mean.lerp_(parameter, 0.1)


def own_optimizer(plant: str) -> None:
    """An optimizer that is not torch's; two microbatches a step, which no DataLoader has made."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    rows, weights = torch.randn(64, 4), list(model.parameters())
    if plant == "own: transformed":
        model.eval()
        torch.func.vmap(model)(rows)
        torch.func.grad(lambda row: model(row).sum())(rows)
        torch.jit.trace(model, rows)  # type: ignore[no-untyped-call]
        torch.fx.symbolic_trace(model)(rows)
    for step in range(4):
        model.train(not (plant == "own: eval" and step == 2))
        if plant == "own: gradient" and step == 2:
            weights[2].register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]
        for microbatch in range(2):
            chosen = torch.randperm(64)[:8]
            if plant == "own: order" and (step, microbatch) == (2, 1):
                chosen = chosen.flip(0)
            model(rows[chosen]).square().mean().backward()
        with torch.no_grad():
            for each in weights:
                each.sub_(0.1 * each.grad if each.grad is not None else 0)
                each.grad = None


def record(directory: Path, plant: str) -> None:
    identity = {"program": "train.py", **({"--resume": "checkpoint.pt"} if plant.startswith("resumed") else {})}
    start_recording(RunSpec(directory=str(directory / plant), identity=identity, all_state=plant == "all state"))
    torch.manual_seed(0)
    LOOPS.get(plant.partition(":")[0], train)(plant)
    log = active_log()
    assert log is not None
    log.close()


def known_fingerprint(identity: Part, **_: object) -> Fingerprint:
    """Nothing of this machine, which takes half a second to read each time."""
    return Fingerprint(identity=identity)


LOOPS = {"actor critic": actor_critic, "own": own_optimizer}


def main(directory: Path, plants: list[str]) -> None:
    vars(process)["fingerprint"] = known_fingerprint
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # imports torch's compiler: once, not in each child
    for plant in plants:
        pid = os.fork()
        if pid == 0:
            record(directory, plant)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status:
            raise SystemExit(f"{plant} ended with {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
