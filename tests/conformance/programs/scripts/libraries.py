"""Small trainings with one library each.

python libraries.py KIND
"""

import sys
import warnings
from collections.abc import Callable

import torch
from outcome import is_time, nudge, save
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PLANTED = 3


def perceptron() -> nn.Sequential:
    """The model of those whose library is not one of models."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def labelled(num_samples: int = 48) -> TensorDataset:
    """Samples of three classes."""
    return TensorDataset(torch.randn(num_samples, 8), torch.randint(3, (num_samples,)))


def schedule_free() -> None:
    """schedulefree's AdamW; planted: a gradient."""
    import schedulefree

    model = perceptron()
    optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-2, warmup_steps=2)
    optimizer.train()
    for step, (inputs, labels) in enumerate(DataLoader(labelled(), batch_size=8)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        if is_time(step, PLANTED):
            nudge(model[2].weight.grad)
        optimizer.step()
    optimizer.eval()
    save(model.state_dict().values())


def graph_network() -> None:
    """PyG's GCN on a random graph; planted: no dropout in one step."""
    from torch_geometric.nn import GCN

    model = GCN(8, 16, num_layers=2, out_channels=3, dropout=0.3)
    edges, features, labels = torch.randint(60, (2, 300)), torch.randn(60, 8), torch.randint(3, (60,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(6):
        model.train(not is_time(step, PLANTED))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features, edges), labels).backward()
        optimizer.step()
    save(model.state_dict().values())


def vision() -> None:
    """kornia's augmentation before a convolution with a batch norm; planted: a running mean."""
    from kornia.augmentation import AugmentationSequential, RandomCrop, RandomHorizontalFlip, RandomRotation

    augment = AugmentationSequential(RandomHorizontalFlip(), RandomCrop((14, 14)), RandomRotation(10.0))
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3)
    )
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.rand(24, 3, 16, 16), torch.randint(3, (24,)))
    for step, (images, labels) in enumerate(DataLoader(data, batch_size=4, shuffle=True)):
        if is_time(step, PLANTED):
            nudge(model[1].running_mean)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(augment(images)), labels).backward()
        optimizer.step()
    save(model.state_dict().values())


def diffusion() -> None:
    """diffusers: a small UNet learns noise; planted: a time step."""
    from diffusers import DDPMScheduler, UNet2DModel

    model = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
    )
    scheduler = DDPMScheduler(num_train_timesteps=50)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = torch.randn(4, 1, 8, 8)
    for step in range(4):
        noise, times = torch.randn_like(images), torch.randint(50, (4,))
        if is_time(step, 2):
            times[0] = (times[0] + 1) % 50
        optimizer.zero_grad()
        made = model(scheduler.add_noise(images, noise, times), times).sample
        nn.functional.mse_loss(made, noise).backward()
        optimizer.step()
    save(model.state_dict().values())


def ignite_trainer() -> None:
    """ignite's supervised trainer; planted: a handler writes a weight after step 2."""
    from ignite.engine import Events, create_supervised_trainer

    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_supervised_trainer(model, optimizer, nn.functional.cross_entropy)

    @trainer.on(Events.ITERATION_COMPLETED)
    def plant() -> None:
        if is_time(trainer.state.iteration, PLANTED):
            nudge(model[0].weight)

    trainer.run(DataLoader(labelled(), batch_size=8, shuffle=True), max_epochs=1)
    save(model.state_dict().values())


def skorch_classifier() -> None:
    """skorch's classifier, which steps with a closure; planted: a gradient by a callback."""
    from skorch import NeuralNetClassifier
    from skorch.callbacks import Callback

    class Plant(Callback):
        num_seen = 0

        def on_grad_computed(self, net: NeuralNetClassifier, **_: object) -> None:
            if is_time(self.num_seen, PLANTED):
                nudge(net.module_[0].bias.grad)
            self.num_seen += 1

    data = labelled()
    net = NeuralNetClassifier(
        perceptron(),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        lr=0.1,
        batch_size=8,
        max_epochs=1,
        train_split=None,
        callbacks=[Plant()],
        verbose=0,
    )
    net.fit(data.tensors[0], data.tensors[1])
    save(net.module_.state_dict().values())


KINDS: dict[str, Callable[[], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        diffusion,
        graph_network,
        ignite_trainer,
        schedule_free,
        skorch_classifier,
        vision,
    )
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    KINDS[sys.argv[1]]()
