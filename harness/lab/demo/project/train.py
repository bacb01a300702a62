"""A small classifier with a planted bug: it seeds torch, and two runs still differ from step 3 on.

python train.py prints the loss of each of its nine steps. `rlharness replay -- python train.py` runs it twice, and
names the first step, phase and tensor that differ.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NUM_EPOCHS, NUM_ROWS, BATCH_SIZE = 3, 24, 8  # three steps in each epoch


class NoisyPoints(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points of the plane, labelled by their quadrant; with noise once `has_noise` is set."""

    def __init__(self) -> None:
        self.points = torch.randn(NUM_ROWS, 2)
        self.labels = (self.points[:, 0] > 0).long() + 2 * (self.points[:, 1] > 0).long()
        self.has_noise = False
        self.generator = torch.Generator()
        # PLANTED: seed() takes a seed from the operating system, so every run adds different noise.
        # To repair it, write self.generator.manual_seed(1) instead; the replay then reports that all bits are equal.
        self.generator.seed()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        point = self.points[index]
        if self.has_noise:
            point = point + 0.05 * torch.randn(2, generator=self.generator)
        return point, self.labels[index]


def main() -> None:
    """Train for three epochs; the first one has no noise, so its steps 0 to 2 are equal in all runs."""
    torch.manual_seed(0)
    dataset = NoisyPoints()
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for epoch in range(NUM_EPOCHS):
        dataset.has_noise = epoch > 0
        for points, labels in DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True):
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} loss={loss.item():.6f}")


if __name__ == "__main__":
    main()
