"""A bag of words whose table is read by indexing: backward adds into it with several threads, in whatever order.

python indexed.py [--steps 6] [--weights FILE]
"""

import argparse

import torch
from torch import nn

NUM_WORDS, WIDTH = 50, 64


class Bag(nn.Module):
    """The mean of its words' rows, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(NUM_WORDS, WIDTH))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Logits [n, 2] of words [n, length]."""
        rows = self.table[words]
        out: torch.Tensor = self.head(rows.mean(1))
        return out


def main() -> None:
    """Train, and save the weights where that is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--weights")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = Bag()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(arguments.steps):
        words = torch.randint(NUM_WORDS, (1024, 200))
        loss = nn.functional.cross_entropy(model(words), (words[:, 0] % 2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if arguments.weights:
        torch.save(model.state_dict(), arguments.weights)


if __name__ == "__main__":
    main()
