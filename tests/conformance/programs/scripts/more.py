"""Small trainings with one library each; each in one thread, on data made on the spot.

python more.py KIND
"""

import sys
import warnings
from collections.abc import Callable, Iterable

import numpy as np
import torch
from libraries import PLANTED, labelled, perceptron
from outcome import is_time, nudge, save
from torch import nn


def fit(
    trained: Iterable[nn.Module],
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[], torch.Tensor],
    *,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
    finish: Callable[[], object] = lambda: None,
) -> None:
    """Six steps; `before` plants ahead of a forward, `after` behind the backward, and `finish` ends every step."""
    for step in range(6):
        if is_time(step, PLANTED):
            before()
        optimizer.zero_grad()
        loss_of().backward()
        if is_time(step, PLANTED):
            after()
        optimizer.step()
        finish()
    save(*[each.state_dict().values() for each in trained])


def classified(model: nn.Module) -> Callable[[], torch.Tensor]:
    """The loss of a classifier on the same samples each time."""
    inputs, labels = labelled(16).tensors
    return lambda: nn.functional.cross_entropy(model(inputs), labels)


def pyro_svi() -> None:
    """Pyro's SVI, which makes an optimizer for each parameter; planted: an observation."""
    import pyro
    from pyro import distributions as dist
    from pyro.infer.autoguide import AutoNormal

    inputs, seen = torch.randn(32, 3), torch.randn(32)

    def model(inputs: torch.Tensor, seen: torch.Tensor) -> None:
        weights = pyro.sample("weights", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("seen", dist.Normal(inputs @ weights, scale), obs=seen)

    guide = AutoNormal(model)
    inference = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), pyro.infer.Trace_ELBO())
    for step in range(6):
        if is_time(step, PLANTED):
            nudge(seen)
        inference.step(inputs, seen)
    save(guide.state_dict().values())


def fastai_learner() -> None:
    """fastai's Learner with its own optimizer; planted: a gradient, by a callback."""
    from fastai.basics import Callback, DataLoaders, Learner

    class Plant(Callback):
        def after_backward(self) -> None:
            if is_time(self.train_iter, PLANTED):
                nudge(self.model[2].weight.grad)

    rows = list(labelled())
    loaders = DataLoaders.from_dsets(rows[:40], rows[40:], bs=8, num_workers=0)
    learner = Learner(loaders, perceptron(), loss_func=nn.CrossEntropyLoss(), cbs=[Plant()])
    with learner.no_bar(), learner.no_logging():
        learner.fit(1, 1e-2)
    save(learner.model.state_dict().values())


def torchopt_adam() -> None:
    """TorchOpt's Adam, which is not torch's; planted: a gradient."""
    import torchopt

    model = perceptron()
    optimizer = torchopt.Adam(model.parameters(), lr=1e-2)
    fit([model], optimizer, classified(model), after=lambda: nudge(model[0].bias.grad))


def private() -> None:
    """Opacus: gradients of samples, clipped, with noise; planted: one more draw of the generator before the noise."""
    from opacus import PrivacyEngine

    model = perceptron()
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(labelled(), batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for step, (inputs, labels) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        if is_time(step, PLANTED):
            torch.rand(1)
        optimizer.step()
    save(model.state_dict().values())


def exact_process() -> None:
    """GPyTorch's exact Gaussian process; planted: the length scale."""
    import gpytorch

    class Process(gpytorch.models.ExactGP):
        def __init__(self, *data: torch.Tensor) -> None:
            super().__init__(*data, gpytorch.likelihoods.GaussianLikelihood())
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, inputs: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean(inputs), self.kernel(inputs))

    inputs, targets = torch.randn(20, 2), torch.randn(20)
    model = Process(inputs, targets)
    likelihood = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scale = model.kernel.base_kernel.raw_lengthscale
    fit([model], optimizer, lambda: -likelihood(model(inputs), targets), before=lambda: nudge(scale))


def embedding() -> None:
    """PyKEEN's pipeline with TransE; planted: the embedding of an entity, between two epochs."""
    from pykeen.pipeline import pipeline
    from pykeen.training.callbacks import TrainingCallback
    from pykeen.triples import TriplesFactory

    class Plant(TrainingCallback):
        def post_epoch(self, epoch: int, **_: object) -> None:
            if is_time(epoch, 2):
                nudge(self.model.entity_representations[0]._embeddings.weight)

    triples = np.array([[f"e{head}", f"r{head % 2}", f"e{(3 * head + 1) % 10}"] for head in range(10)])
    factory = TriplesFactory.from_labeled_triples(triples)
    done = pipeline(
        training=factory,
        testing=factory,
        model="TransE",
        model_kwargs={"embedding_dim": 4},
        training_kwargs={"num_epochs": 4, "callbacks": Plant, "use_tqdm": False},
        evaluation_kwargs={"use_tqdm": False},
        random_seed=1,
        device="cpu",
    )
    save(done.model.state_dict().values())


def averaged_network() -> None:
    """A small network of timm, its LAMB and ModelEmaV3; planted: a weight of the average."""
    import timm
    from timm.utils import ModelEmaV3

    model = timm.create_model("test_resnet", pretrained=False, num_classes=3)
    average = ModelEmaV3(model, decay=0.9)
    optimizer = timm.optim.create_optimizer_v2(model, opt="lamb", lr=1e-3)
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(3, (4,))
    fit(
        [model, average],
        optimizer,
        lambda: nn.functional.cross_entropy(model(images), labels),
        before=lambda: nudge(next(average.parameters())),
        finish=lambda: average.update(model),
    )


def offline_td3() -> None:
    """d3rlpy's TD3+BC; planted: a weight of the target policy, by a callback."""
    import d3rlpy

    d3rlpy.seed(1)
    rewards, ends = np.random.randn(64, 1).astype(np.float32), np.arange(64) % 16 == 15
    rows = (np.random.randn(64, width).astype(np.float32) for width in (3, 2))
    algorithm = d3rlpy.algos.TD3PlusBCConfig(batch_size=16).create(device=False)

    def plant(_: object, __: int, step: int) -> None:
        if is_time(step, PLANTED):
            nudge(next(algorithm.impl.modules.targ_policy.parameters()))

    algorithm.fit(
        d3rlpy.dataset.MDPDataset(*rows, rewards, ends.astype(np.float32)),
        n_steps=6,
        n_steps_per_epoch=6,
        show_progress=False,
        callback=plant,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )
    save(algorithm.impl.modules.policy.state_dict().values())


def lion() -> None:
    """lion-pytorch; planted: the rate."""
    from lion_pytorch import Lion

    model = perceptron()
    optimizer = Lion(model.parameters(), lr=1e-3)
    fit([model], optimizer, classified(model), before=lambda: optimizer.param_groups[0].update(lr=2e-3))


def prodigy() -> None:
    """prodigyopt, which finds its rate; planted: its estimate of the distance."""
    from prodigyopt import Prodigy

    model = perceptron()
    optimizer = Prodigy(model.parameters())
    fit([model], optimizer, classified(model), before=lambda: optimizer.param_groups[0].update(d=2e-6))


def sharpness_aware() -> None:
    """SAM of pytorch-optimizer: two backwards a step, weights moved in between; planted: the second's gradient."""
    from pytorch_optimizer import SAM, AdamP

    model = perceptron()
    optimizer = SAM(model.parameters(), AdamP, lr=1e-2)
    loss_of = classified(model)
    for step in range(6):
        loss_of().backward()
        optimizer.first_step(zero_grad=True)
        loss_of().backward()
        if is_time(step, PLANTED):
            nudge(model[2].bias.grad)
        optimizer.second_step(zero_grad=True)
    save(model.state_dict().values())


def on_sphere() -> None:
    """geoopt's Adam on a sphere; planted: the point is moved off it."""
    import geoopt

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place = geoopt.ManifoldParameter(geoopt.Sphere().random_uniform(8), manifold=geoopt.Sphere())

    point, wanted = Point(), torch.randn(8)
    optimizer = geoopt.optim.RiemannianAdam(point.parameters(), lr=1e-2)
    fit([point], optimizer, lambda: (point.place - wanted).square().sum(), before=lambda: nudge(point.place))


def exponential_average() -> None:
    """ema-pytorch: a student near its average; planted: a weight of the average."""
    from ema_pytorch import EMA

    model = perceptron()
    average = EMA(model, beta=0.9, update_after_step=0, update_every=1)
    inputs, loss_of = torch.randn(16, 8), classified(model)
    fit(
        [model, average],
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        lambda: loss_of() + (model(inputs) - average(inputs)).square().mean(),
        before=lambda: nudge(average.ema_model[0].weight),
        finish=average.update,
    )


def bootstrap() -> None:
    """byol-pytorch: a target encoder and augmentations; planted: a weight of the target."""
    from byol_pytorch import BYOL

    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    learner = BYOL(network, image_size=8, hidden_layer=-1, projection_size=8, projection_hidden_size=16)
    optimizer, images = torch.optim.Adam(learner.parameters(), lr=1e-2), torch.rand(4, 3, 8, 8)
    fit(
        [learner],
        optimizer,
        lambda: learner(images),
        before=lambda: nudge(learner.target_encoder.net[0].weight),
        finish=learner.update_moving_average,
    )


def decoder() -> None:
    """x-transformers, a decoder; planted: a token."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8)
    model = AutoregressiveWrapper(TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=layers))
    optimizer, tokens = torch.optim.Adam(model.parameters(), lr=1e-2), torch.randint(19, (4, 12))
    fit([model], optimizer, lambda: model(tokens), before=lambda: tokens[0, 3].add_(1))


def quantized() -> None:
    """vector-quantize-pytorch in an autoencoder; planted: a vector of the codebook, which is a buffer."""
    from vector_quantize_pytorch import VectorQuantize

    model = nn.ModuleList([nn.Linear(4, 8), VectorQuantize(dim=8, codebook_size=16, decay=0.8), nn.Linear(8, 4)])
    inputs = torch.randn(2, 16, 4)

    def loss_of() -> torch.Tensor:
        codes, _, commitment = model[1](model[0](inputs))
        return (model[2](codes) - inputs).square().mean() + commitment.sum()

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit([model], optimizer, loss_of, before=lambda: nudge(model[1]._codebook.embed))


def neural_equation() -> None:
    """torchdiffeq's adjoint method, which calls autograd within backward; planted: where the equation begins."""
    from torchdiffeq import odeint_adjoint

    class Dynamics(nn.Linear):
        def forward(self, _: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            return super().forward(state).tanh()

    model, begin, times = Dynamics(3, 3), torch.randn(4, 3), torch.linspace(0, 1, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss_of = lambda: odeint_adjoint(model, begin, times, method="rk4")[-1].square().mean()  # noqa: E731
    fit([model], optimizer, loss_of, before=lambda: nudge(begin))


def stochastic_equation() -> None:
    """torchsde, with a Brownian motion of its own; planted: a weight of the diffusion that no optimizer holds."""
    from torchsde import sdeint

    class Equation(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.diffusion = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)

        def f(self, _: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            return self.drift(state).tanh()

        def g(self, _: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            return self.diffusion(state).sigmoid()

    model, begin, times = Equation(), torch.randn(4, 3), torch.linspace(0, 1, 3)
    optimizer = torch.optim.Adam(model.drift.parameters(), lr=1e-2)
    loss_of = lambda: sdeint(model, begin, times, dt=0.25)[-1].square().mean()  # noqa: E731
    fit([model], optimizer, loss_of, before=lambda: nudge(model.diffusion.bias))


def spiking() -> None:
    """snntorch's leaky neurons over time; planted: a leak, which is a buffer."""
    import snntorch
    from snntorch.utils import reset

    neurons = (snntorch.Leaky(beta=0.9, init_hidden=True, output=is_last) for is_last in (False, True))
    model = nn.Sequential(nn.Linear(8, 16), next(neurons), nn.Linear(16, 3), next(neurons))
    inputs, labels = labelled(16).tensors

    def loss_of() -> torch.Tensor:
        reset(model)
        potentials = [model(inputs)[1] for _ in range(4)]
        return nn.functional.cross_entropy(torch.stack(potentials).mean(0), labels)

    fit([model], torch.optim.Adam(model.parameters(), lr=1e-2), loss_of, before=lambda: model[1].beta.mul_(0.9))


def metric() -> None:
    """pytorch-metric-learning's proxies; planted: a proxy, which no optimizer holds."""
    from pytorch_metric_learning.losses import ProxyAnchorLoss

    model, loss = perceptron(), ProxyAnchorLoss(num_classes=3, embedding_size=3)
    inputs, labels = labelled(16).tensors
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit([model, loss], optimizer, lambda: loss(model(inputs), labels), before=lambda: nudge(loss.proxies))


def fitted_by_scipy() -> None:
    """BoTorch fits a Gaussian process by scipy's L-BFGS: no optimizer of torch; planted: a target."""
    from botorch.models import SingleTaskGP
    from botorch.optim.fit import fit_gpytorch_mll_scipy
    from gpytorch.mlls import ExactMarginalLogLikelihood

    model = SingleTaskGP(torch.rand(20, 2, dtype=torch.double), torch.randn(20, 1, dtype=torch.double))
    num_calls = 0

    def plant(*_: object) -> None:
        nonlocal num_calls
        num_calls += 1
        if is_time(num_calls, PLANTED):
            nudge(model.train_targets)

    likelihood = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll_scipy(likelihood, options={"maxiter": 6}, callback=plant)
    save(model.state_dict().values())


def flow() -> None:
    """zuko's neural spline flow; planted: a gradient."""
    import zuko

    model, inputs = zuko.flows.NSF(features=2, transforms=1, hidden_features=(16,)), torch.randn(16, 2)
    weight = next(model.parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit([model], optimizer, lambda: -model().log_prob(inputs).mean(), after=lambda: nudge(weight.grad))


def segmentation() -> None:
    """segmentation-models-pytorch's Unet and DiceLoss; planted: one step in the mode of evaluation."""
    import segmentation_models_pytorch as smp

    model = smp.Unet("resnet18", encoder_depth=3, encoder_weights=None, decoder_channels=(16, 8, 4))
    dice, images = smp.losses.DiceLoss("binary"), torch.rand(2, 3, 32, 32)
    masks = (torch.rand(2, 1, 32, 32) > 0.5).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit([model], optimizer, lambda: dice(model(images), masks), before=model.eval, finish=model.train)


def medical() -> None:
    """MONAI's trainer, transforms and UNet; planted: a pixel of a sample."""
    from monai.data import DataLoader, Dataset
    from monai.engines import SupervisedTrainer
    from monai.networks.nets import UNet
    from monai.transforms import RandFlipd

    model = UNet(spatial_dims=2, in_channels=1, out_channels=1, channels=(4, 8), strides=(2,))
    samples = [{"image": torch.rand(1, 8, 8), "label": torch.rand(1, 8, 8)} for _ in range(12)]
    if is_time(0, 0):
        nudge(samples[7]["image"])
    trainer = SupervisedTrainer(
        device=torch.device("cpu"),
        max_epochs=1,
        train_data_loader=DataLoader(Dataset(samples, RandFlipd(["image", "label"], prob=0.5)), batch_size=2),
        network=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loss_function=nn.MSELoss(),
    )
    trainer.run()
    save(model.state_dict().values())


def equivariant() -> None:
    """e3nn's tensor product; planted: its second argument."""
    from e3nn import o3

    model = o3.FullyConnectedTensorProduct("4x0e+2x1o", "0e+1o", "3x0e")
    inputs, harmonics, labels = torch.randn(16, 10), torch.randn(16, 4), torch.randint(3, (16,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss_of = lambda: nn.functional.cross_entropy(model(inputs, harmonics), labels)  # noqa: E731
    fit([model], optimizer, loss_of, before=lambda: nudge(harmonics))


def poutyne_model() -> None:
    """Poutyne's Model; planted: a gradient, by a callback."""
    from poutyne import Callback, Model

    network = perceptron()

    class Plant(Callback):
        def on_backward_end(self, batch_number: int) -> None:
            if is_time(batch_number, PLANTED):
                nudge(network[0].weight.grad)

    model = Model(network, "sgd", "cross_entropy")
    model.fit_dataset(labelled(), batch_size=8, epochs=1, callbacks=[Plant()], progress_options=None, verbose=False)
    save(network.state_dict().values())


def tabular() -> None:
    """pytorch-tabnet's classifier; planted: a running variance, by a callback."""
    from pytorch_tabnet.callbacks import Callback
    from pytorch_tabnet.tab_model import TabNetClassifier

    class Plant(Callback):
        def on_batch_begin(self, batch: int, logs: object = None) -> None:
            if is_time(batch, PLANTED):
                nudge(self.trainer.network.embedder and self.trainer.network.tabnet.initial_bn.running_var)

    classifier = TabNetClassifier(n_d=4, n_a=4, n_steps=2, verbose=0, seed=1, device_name="cpu")
    inputs, labels = labelled().tensors
    sizes = {"batch_size": 8, "virtual_batch_size": 8, "max_epochs": 1}
    classifier.fit(inputs.numpy(), labels.numpy(), callbacks=[Plant()], **sizes)
    save(classifier.network.state_dict().values())


def crf() -> None:
    """pytorch-crf over a tagger; planted: a mask of a sequence."""
    from torchcrf import CRF

    model = nn.ModuleList([nn.Linear(8, 3), CRF(3, batch_first=True)])
    inputs, tags, mask = torch.randn(4, 6, 8), torch.randint(3, (4, 6)), torch.ones(4, 6, dtype=torch.bool)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit([model], optimizer, lambda: -model[1](model[0](inputs), tags, mask), before=mask[2, 4:].zero_)


def low_rank() -> None:
    """loralib, which merges its weights in the mode of evaluation; planted: a frozen weight."""
    import loralib

    model = nn.Sequential(loralib.Linear(8, 16, r=2), nn.ReLU(), loralib.Linear(16, 3, r=2))
    loralib.mark_only_lora_as_trainable(model)
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    fit([model], optimizer, classified(model), before=lambda: nudge(model[2].weight))


def second_order() -> None:
    """BackPACK, which computes variances within backward; planted: a gradient."""
    from backpack import backpack, extend
    from backpack.extensions import Variance

    model, loss = extend(perceptron()), extend(nn.CrossEntropyLoss())
    inputs, labels = labelled(16).tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with backpack(Variance()):
        fit([model], optimizer, lambda: loss(model(inputs), labels), after=lambda: nudge(model[0].bias.grad))


def tuples() -> None:
    """torchtuples' Model, with an optimizer of its own around torch's; planted: a gradient, by a callback."""
    import torchtuples

    class Plant(torchtuples.callbacks.Callback):
        num_seen = 0

        def before_step(self) -> None:
            if is_time(self.num_seen, PLANTED):
                nudge(self.model.net[2].bias.grad)
            self.num_seen += 1

    model = torchtuples.Model(perceptron(), nn.CrossEntropyLoss(), torchtuples.optim.Adam(0.01))
    model.fit(*labelled().tensors, batch_size=8, epochs=1, callbacks=[Plant()], verbose=False)
    save(model.net.state_dict().values())


KINDS: dict[str, Callable[[], None]] = {
    name.replace("_", "-"): each
    for name, each in vars().copy().items()
    if getattr(each, "__module__", "") == __name__ and name not in ("fit", "classified")
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    np.random.seed(0)
    KINDS[sys.argv[1]]()
