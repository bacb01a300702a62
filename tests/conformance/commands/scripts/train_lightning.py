"""A classifier with Lightning's Trainer: cosine schedule, clipping, a checkpoint after every second step."""

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--resume", action="store_true")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))

    def training_step(self, batch, _):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.net(inputs), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=args.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


lightning.seed_everything(args.seed, workers=True)
inputs = torch.randn(96, 10)
labels = (inputs @ torch.randn(10, 4)).argmax(1)
loader = DataLoader(TensorDataset(inputs, labels), 16 // args.accumulate, shuffle=True, num_workers=args.workers)
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    accumulate_grad_batches=args.accumulate,
    gradient_clip_val=1.0,
    callbacks=[ModelCheckpoint("checkpoints", every_n_train_steps=2, save_last=True)],
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Classifier(), loader, ckpt_path="checkpoints/last.ckpt" if args.resume else None)
