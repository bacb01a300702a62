"""A plain PyTorch classifier: a loader, a loss that is clipped, AdamW. Knows nothing of any harness.

python classifier.py [--epochs 2] [--workers 0] [--weights FILE]
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    """Two hidden layers of 64, with dropout; 20 features in, 4 classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(20, 64), nn.Linear(64, 64)])
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(64, 4)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Logits [n, 4] of features [n, 20]."""
        for layer in self.layers:
            features = self.dropout(torch.relu(layer(features)))
        out: torch.Tensor = self.head(features)
        return out


def main() -> None:
    """Train, and print the mean loss of each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--weights", help="where to save the final weights")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    features = torch.randn(256, 20)
    labels = features[:, :4].argmax(1)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(features, labels), batch_size=32, shuffle=True, num_workers=arguments.workers)
    for epoch in range(arguments.epochs):
        losses = []
        for batch, wanted in loader:
            loss = cross_entropy(model(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch} mean_loss={sum(losses) / len(losses):.6f}")
    if arguments.weights:
        torch.save(model.state_dict(), arguments.weights)


if __name__ == "__main__":
    main()
