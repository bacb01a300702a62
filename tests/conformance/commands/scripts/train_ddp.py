"""DistributedDataParallel on two ranks of gloo: torchrun --nproc-per-node 2 train_ddp.py."""

import argparse
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--bucket-mb", type=float, default=25)
parser.add_argument("--bucket-view", default="off")
parser.add_argument("--find-unused", default="off")
args = parser.parse_args()

distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(args.seed)
inputs = torch.randn(96, 10)
labels = (inputs @ torch.randn(10, 4)).argmax(1)
dataset = TensorDataset(inputs, labels)
sampler = DistributedSampler(dataset, seed=args.seed)
loader = DataLoader(dataset, 8, sampler=sampler, num_workers=args.workers)
net = nn.Sequential(nn.Linear(10, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
model = DistributedDataParallel(
    net,
    bucket_cap_mb=args.bucket_mb,
    gradient_as_bucket_view=args.bucket_view == "on",
    find_unused_parameters=args.find_unused == "on",
)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
path, step = Path("checkpoint.pt"), 0
if args.resume:
    state = torch.load(path)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    step = state["step"]

for epoch in range(step // len(loader), 2):
    sampler.set_epoch(epoch)
    for position, (batch, targets) in enumerate(loader):
        if epoch * len(loader) + position < step:
            continue  # trained before the checkpoint
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
            if step % 2 == 0:
                state = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "scheduler": scheduler.state_dict(), "step": step}, path)
distributed.destroy_process_group()
