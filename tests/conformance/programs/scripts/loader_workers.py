"""A DataLoader whose worker processes augment; planted: the augmentation of one sample, in its worker."""

import torch
from outcome import IS_PLANTED, nudge, save
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    """Noise drawn in the worker."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = torch.full((6,), float(index)) / 48 + 0.1 * torch.randn(6)
        if IS_PLANTED and index == 29:
            nudge(sample)
        return sample, index % 3


def main() -> None:
    """One epoch of six batches, not shuffled: sample 29 is of batch 3."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, labels in DataLoader(Augmented(), batch_size=8, num_workers=2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    save(model.state_dict().values())


if __name__ == "__main__":
    main()
