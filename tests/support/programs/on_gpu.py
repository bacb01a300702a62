"""A small training on a GPU, with mixed precision, gradients that are clipped, and dropout.

python on_gpu.py [--steps 8] [--weights FILE]
"""

import argparse

import torch
from torch import nn


def main() -> None:
    """Train, and save the weights where that is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--weights")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    layers = [nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 256)]
    model = nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(arguments.steps):
        features = torch.randn(64, 256, device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = (model(features) - features).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    if arguments.weights:
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, arguments.weights)


if __name__ == "__main__":
    main()
