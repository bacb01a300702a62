"""A training that writes a checkpoint after every third step and resumes from it, without what `--lose` names."""

import argparse
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("checkpoint", type=Path)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--lose", default="")
parser.add_argument("--steps", type=int, default=14)
parser.add_argument("--save-every", type=int, default=3)
parser.add_argument("--unseeded", action="store_true")
parser.add_argument("--prompts", action="store_true", help="train on prompts that are generated five at a time")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--pickle", action="store_true", help="write checkpoints without torch")
parser.add_argument("--evaluate", action="store_true", help="evaluate before the first step")
options = parser.parse_args()
save = (lambda state, path: path.write_bytes(pickle.dumps(state))) if options.pickle else torch.save
BATCHES_OF_EPOCH = 8


class Samples(Dataset[torch.Tensor]):
    """Augmented samples: from a generator of their own where `--lose workers` is set, else by epoch and index."""

    epoch = 0

    def __len__(self) -> int:
        return 4 * BATCHES_OF_EPOCH

    def __getitem__(self, index: int) -> torch.Tensor:
        seeded = torch.Generator().manual_seed(1000 * self.epoch + index)
        generator = None if options.lose == "workers" else seeded
        return torch.full((4,), index / 32) + 0.1 * torch.randn(4, generator=generator)


def batches(first: int) -> Iterator[torch.Tensor]:
    """Batches from a step on; each epoch has an order of its own."""
    samples = Samples()
    while True:
        samples.epoch, done = divmod(first, BATCHES_OF_EPOCH)
        order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(samples.epoch)).tolist()
        seeded = torch.Generator().manual_seed(samples.epoch)
        num_workers = 2 * (options.lose == "workers")
        for batch in DataLoader(samples, 4, sampler=order[4 * done :], num_workers=num_workers, generator=seeded):
            yield batch
            first += 1


if not options.unseeded:
    torch.manual_seed(0)
    random.seed(0)
network = torch.nn.Sequential(
    torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
)
if options.compile:
    network.compile(backend="aot_eager")
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 20)
average = {name: weight.detach().clone() for name, weight in network.named_parameters()}
prompts: list[int] = []
step = position = 0
if options.resume:
    path = options.checkpoint
    state = pickle.loads(path.read_bytes()) if options.pickle else torch.load(path, weights_only=False)
    step, position = state["step"], state["position"]
    if options.lose != "weights":
        network.load_state_dict({**network.state_dict(), **state["weights"]})
    if options.lose != "moments":
        optimizer.load_state_dict(state["optimizer"])
    if options.lose != "schedule":
        schedule.load_state_dict(state["schedule"])
        for group, lr in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
            group["lr"] = lr
    if options.lose != "average":
        average = state["average"]
    if options.lose not in ("buffers", "weights"):
        network.load_state_dict(state["network"])
    if options.lose != "prompts":
        prompts = state["prompts"]
    torch.set_rng_state(state["generator"])
    if options.lose == "generator":
        torch.manual_seed(0)
    if options.evaluate:
        network.eval()
        with torch.no_grad():
            network(torch.ones(16, 4))
        network.train()
data = batches(0 if options.lose == "position" and options.resume else step)
while step < options.steps:
    while len(prompts) < 2:
        prompts += range(position, position + 5)
        position += 5
    used, prompts = prompts[:2], prompts[2:]
    inputs = torch.tensor([[each, each % 3, 1.0, 0.0] for each in used]) if options.prompts else next(data)
    loss = ((network(inputs)[:, 0] - inputs.sum(1)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    step += 1
    with torch.no_grad():
        for name, weight in network.named_parameters():
            average[name] = 0.9 * average[name] + 0.1 * weight
    if step % options.save_every == 0:
        save(
            {
                "step": step,
                "position": position,
                "prompts": prompts,
                "weights": dict(network.named_parameters()),
                "network": network.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "average": average,
                "generator": torch.get_rng_state(),
            },
            options.checkpoint,
        )
print("weights", [weight.flatten()[0].item().hex() for weight in network.parameters()])
