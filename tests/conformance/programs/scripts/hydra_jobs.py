"""hydra multirun: two jobs in one process; planted: the learning rate in the second job's last step."""

import hydra
import torch
from omegaconf import DictConfig
from outcome import is_time, save
from torch import nn


@hydra.main(version_base=None, config_path=None)
def train(config: DictConfig) -> None:
    """Train three steps with the job's learning rate."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        if config.lr > 0.1 and is_time(step, 2):
            optimizer.param_groups[0]["lr"] = 0.3
        optimizer.step()
    save(model.state_dict().values(), name=f"{config.lr} ")


if __name__ == "__main__":
    train()
