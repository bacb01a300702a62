"""Lightning: automatic optimization, stochastic weight averaging, and a GAN with manual optimization.

python lightning_loops.py auto|swa|gan
"""

import sys
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from outcome import is_time, nudge, save
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    """Clips, validates, and has a dropout; planted: a gradient after the backward of step 4."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("validation", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def on_after_backward(self) -> None:
        if is_time(self.global_step, 4):
            nudge(self.net[0].weight.grad)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Averaged(Classifier):
    """Planted: a batch."""

    def on_after_backward(self) -> None:
        pass

    def on_train_batch_start(self, batch: list[torch.Tensor], _: int) -> None:
        if is_time(self.global_step, 5):
            nudge(batch[0])


class Gan(L.LightningModule):
    """Two optimizers, stepped by hand; planted: the discriminator's learning rate in batch 3."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = nn.Linear(4, 8), nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        first, second = self.optimizers()
        made = self.generator(torch.randn(len(batch[0]), 4))
        self.toggle_optimizer(first)
        self.manual_backward(nn.functional.softplus(-self.discriminator(made)).mean())
        first.step()
        first.zero_grad()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        real, fake = self.discriminator(batch[0]), self.discriminator(made.detach())
        self.manual_backward((nn.functional.softplus(-real) + nn.functional.softplus(fake)).mean())
        if is_time(index, 3):
            second.param_groups[0]["lr"] = 2e-2
        second.step()
        second.zero_grad()
        self.untoggle_optimizer(second)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(each.parameters(), lr=1e-2) for each in (self.generator, self.discriminator)]


def main() -> None:
    """Train one of the three."""
    warnings.simplefilter("ignore")
    kind = sys.argv[1]
    L.seed_everything(1, verbose=False)
    data = TensorDataset(torch.randn(80, 8), torch.randint(3, (80,)))
    model = {"auto": Classifier, "swa": Averaged, "gan": Gan}[kind]()
    callbacks = (
        [StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=1, annealing_epochs=1)] if kind == "swa" else []
    )
    trainer = L.Trainer(
        max_epochs=3 if kind == "swa" else 1,
        accelerator="cpu",
        logger=False,
        callbacks=callbacks,
        enable_checkpointing=kind == "auto",
        default_root_dir="lightning",
        gradient_clip_val=None if kind == "gan" else 0.5,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    validation = DataLoader(data, batch_size=16) if kind == "auto" else None
    trainer.fit(model, DataLoader(data, batch_size=8, shuffle=True), validation)
    save(model.state_dict().values())


if __name__ == "__main__":
    main()
