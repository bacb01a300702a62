"""The programs: trainers of other people's packages, each with a cause that can be planted in it.

The scripts lie in scripts/; the environments' packages in NAME.txt beside this file.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "scripts"
PYTHON = "{bin}/python"
TORCHRUN = "{bin}/torchrun --standalone --nproc-per-node 2"
ACCELERATE = "{bin}/accelerate launch --cpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"


class Environment(StrEnum):
    """Packages that are installed together: those of NAME.txt."""

    LIBRARIES = "libraries"
    REINFORCEMENT = "reinforcement"
    LANGUAGE = "language"
    MORE = "more"


@dataclass(frozen=True)
class Place:
    """The first value that a planted cause changes."""

    step: int
    phase: str
    name: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.phase} {self.name}"


@dataclass(frozen=True)
class Program:
    """One program and what must be seen of it."""

    name: str
    uses: str
    """What of torch, or of its packages, it uses."""
    package: str
    """Distribution whose version is shown; empty for torch alone."""
    arguments: str
    """Script, without its suffix, and its arguments."""
    num_steps: int
    """Steps of rank 0; where processes have no ranks, of the first log."""
    planted: str
    """The cause, in words."""
    place: Place
    """Where `diff` must name it."""
    environment: Environment = Environment.LIBRARIES
    launcher: str = PYTHON
    """Words before the script; `{bin}` is the environment's folder of programs."""
    num_logs: int = 1
    """Processes that record."""
    level: str = "off"
    """Level at which an honest pair must be equal."""

    def command(self, bin_directory: Path) -> list[str]:
        """The command line, in the environment with these programs."""
        script, *arguments = self.arguments.split()
        launcher = self.launcher.format(bin=bin_directory).split()
        return [*launcher, str(SCRIPTS / f"{script}.py"), *arguments]


def own(kind: str, uses: str, planted: str, place: Place, num_steps: int = 6, *, level: str = "off") -> Program:
    """A loop written by hand, over torch alone."""
    return Program(kind, uses, "", f"own_loops {kind}", num_steps, planted, place, level=level)


OWN = (
    own("accumulated", "three micro-batches a step, clipping", "targets", Place(3, "loss", "loss")),
    own("averaged", "AveragedModel", "a weight of the average", Place(3, "forward", "Perceptron.last.weight")),
    own("betas", "AdamW", "beta1 in one step", Place(3, "optimizer", "group0.betas.0")),
    own("written-weight", "AdamW", "a weight, through .data", Place(3, "forward", "first.weight")),
    own("bf16-autocast", "autocast", "a running mean", Place(3, "forward", "norm.running_mean")),
    own("fp16-scaler", "autocast and GradScaler on the CPU", "its scale", Place(3, "loss", "loss")),
    own("checkpoint-hooks", "activation checkpointing", "a gradient", Place(3, "backward", "last.bias")),
    own("checkpoint-reentrant", "checkpointing, reentrant", "a gradient", Place(3, "backward", "last.bias")),
    own("closure-adamw", "AdamW with a closure", "a gradient", Place(3, "backward", "last.weight")),
    own("closure-lbfgs", "LBFGS", "a gradient", Place(3, "backward", "last.weight")),
    own("compiled-model", "torch.compile of the model", "a gradient", Place(3, "backward", "first.bias")),
    own("compiled-step", "torch.compile of the step", "a gradient", Place(3, "backward", "first.bias")),
    own("dqn", "a target network", "copied one step early", Place(3, "forward", "Perceptron.first.weight")),
    own("foreach", "AdamW, foreach", "weight decay", Place(3, "optimizer", "group0.weight_decay")),
    own("fused", "AdamW, fused", "weight decay", Place(3, "optimizer", "group0.weight_decay")),
    own(
        *("graph-index-add", "index_add, four threads", "a feature", Place(3, "rollout", "batch.Linear.0")),
        level="deterministic",
    ),
    own("muon", "Muon and AdamW", "Muon's rate", Place(3, "optimizer", "Muon.group0.lr")),
    own("optimizer-in-backward", "a step within backward", "a gradient", Place(3, "backward", "first.weight")),
    own("vae", "a variational autoencoder", "one more draw of the generator", Place(3, "loss", "loss")),
)
OTHERS = {
    Environment.LIBRARIES: """
loader-workers | DataLoader, 2 workers | | loader_workers | 6 | a sample | 3 rollout batch.0
spawned | 2 spawned processes | | spawned | 4 | a gradient | 2 backward 2.bias
threads-in-turn | 2 threads | | threads_in_turn | 8 | the rate | 6 optimizer SGD#2.group0.lr
ddp | torchrun, DistributedDataParallel | | two_ranks | 6 | noise on rank 1 \
    | 3 rollout batch.DistributedDataParallel.0
lightning-auto | automatic, clipping, validation, checkpoints | lightning | lightning_loops auto | 10 \
    | a gradient | 4 backward net.0.weight
lightning-swa | StochasticWeightAveraging | lightning | lightning_loops swa | 30 | a batch | 5 loss loss
lightning-gan | manual, 2 optimizers | lightning | lightning_loops gan | 20 | the second's rate \
    | 7 optimizer Adam#2.group0.lr
schedule-free | AdamWScheduleFree | schedulefree | libraries schedule-free | 6 | a gradient | 3 backward 2.weight
gcn | GCN | torch_geometric | libraries graph-network | 6 | no dropout | 3 forward mode
kornia | augmentation, batch norm | kornia | libraries vision | 6 | a running mean | 3 forward 1.running_mean
diffusion | UNet2DModel | diffusers | libraries diffusion | 4 | a time step \
    | 2 rollout batch.UNet2DModel.0
ignite | supervised trainer | pytorch-ignite | libraries ignite-trainer | 6 | a weight, in a handler \
    | 3 forward 0.weight
skorch | NeuralNetClassifier | skorch | libraries skorch-classifier | 6 | a gradient, in a callback | 3 backward 0.bias
hydra | multirun, 2 jobs | hydra-core | hydra_jobs --multirun +lr=0.1,0.2 | 6 | the rate in job 2 \
    | 5 optimizer SGD#2.group0.lr
""",
    Environment.REINFORCEMENT: """
clean-ppo | PPO in CleanRL's manner | gymnasium | reinforcement clean-ppo | 32 | a reward of update 2 | 16 loss loss
sb3-ppo | PPO | stable_baselines3 | reinforcement sb3-ppo | 48 | a reward of rollout 1 | 16 loss loss
sb3-dqn | DQN | stable_baselines3 | reinforcement sb3-dqn | 38 | a weight of the target network \
    | 25 forward q_net_target.q_net.0.weight
torchrl-ppo | Collector, ReplayBuffer, ClipPPOLoss | torchrl | reinforcement torchrl-ppo | 12 \
    | an advantage of batch 1 | 4 rollout batch.ClipPPOLoss.0.advantage
tianshou-dqn | DQN | tianshou | reinforcement tianshou-dqn | 8 | a reward in the buffer | 2 loss loss
""",
    Environment.LANGUAGE: """
hf-trainer | Trainer: accumulation, evaluation, checkpoints, workers | transformers \
    | language_models trainer | 6 | a token, in a worker | 5 rollout batch.input_ids
hf-resnet | ResNet | transformers | language_models image-model | 4 | a running mean \
    | 2 forward resnet.embedder.embedder.normalization.running_mean
trl-sft | SFTTrainer | trl | language_models trl-sft | 5 | a weight between steps \
    | 3 forward model.layers.1.mlp.up_proj.weight
trl-grpo | GRPOTrainer | trl | language_models trl-grpo | 4 | a reward | 2 reward rewards
trl-dpo | DPOTrainer | trl | language_models trl-dpo | 4 | a gradient | 2 backward model.norm.weight
trl-console | the console script trl sft | trl | trl_console | 4 | a text | 2 rollout batch.input_ids
peft-lora | LoRA in SFTTrainer | peft | language_models peft-lora | 5 | a frozen weight \
    | 3 forward base_model.model.model.layers.0.mlp.down_proj.weight
ddp-sft | torchrun, SFTTrainer | trl | language_models trl-sft | 5 | a weight between steps \
    | 3 forward model.layers.1.mlp.up_proj.weight
fsdp2-sft | torchrun, fully_shard | transformers | language_models fsdp2-sft | 4 | a label of rank 1 \
    | 2 rollout batch.FSDPLlamaForCausalLM.labels
accelerate | accelerate launch, accumulation | accelerate | language_models accelerated | 8 \
    | the scheduler's rate | 3 optimizer group0.lr
trl-rloo | RLOOTrainer | trl | language_models trl-rloo | 4 | a reward | 2 reward rewards
trl-online-dpo | OnlineDPOTrainer | trl | language_models trl-online-dpo | 4 | a reward | 2 reward rewards
""",
    Environment.MORE: """
pyro-svi | SVI, AutoNormal | pyro-ppl | more pyro-svi | 6 | an observation | 3 rollout batch.AutoNormal.1
fastai | Learner, its own optimizer | fastai | more fastai-learner | 5 | a gradient, in a callback | 3 backward 2.weight
torchopt | its own Adam | torchopt | more torchopt-adam | 6 | a gradient | 3 backward 0.bias
opacus | DP-SGD | opacus | more private | 6 | one more draw before the noise | 3 backward 0.weight
gpytorch | an exact process | gpytorch | more exact-process | 6 | a length scale \
    | 3 forward model.kernel.base_kernel.raw_lengthscale
pykeen | pipeline, TransE | pykeen | more embedding | 4 | an entity's embedding \
    | 2 forward entity_representations.0._embeddings.weight
timm-ema | LAMB, ModelEmaV3 | timm | more averaged-network | 6 | a weight of the average \
    | 3 forward ResNet.conv1.0.weight
d3rlpy | TD3+BC | d3rlpy | more offline-td3 | 9 | a weight of the target policy \
    | 5 forward DeterministicPolicy._encoder._layers.0.weight
lion | Lion | lion-pytorch | more lion | 6 | the rate | 3 optimizer group0.lr
prodigy | Prodigy | prodigyopt | more prodigy | 6 | its distance | 3 optimizer group0.d
sam | SAM over AdamP | pytorch-optimizer | more sharpness-aware | 6 | the second gradient | 3 backward 2.bias
geoopt | Adam on a sphere | geoopt | more on-sphere | 6 | the point | 3 forward place
ema | EMA | ema-pytorch | more exponential-average | 6 | a weight of the average | 3 forward ema_model.0.weight
byol | BYOL | byol-pytorch | more bootstrap | 6 | a weight of the target | 3 forward target_encoder.net.0.weight
x-transformers | Decoder | x-transformers | more decoder | 6 | a token | 3 rollout batch.AutoregressiveWrapper.0
vector-quantize | VectorQuantize | vector-quantize-pytorch | more quantized | 6 \
    | a vector of the codebook, which the forward pass replaces | 3 loss loss
neural-ode | odeint_adjoint | torchdiffeq | more neural-equation | 6 | the first state | 3 loss loss
neural-sde | sdeint | torchsde | more stochastic-equation | 6 | a frozen weight | 3 forward _base_sde.diffusion.bias
spiking | Leaky | snntorch | more spiking | 6 | a leak | 3 forward 1.beta
metric-learning | ProxyAnchorLoss | pytorch-metric-learning | more metric | 6 | a frozen proxy | 3 forward proxies
botorch | scipy's L-BFGS | botorch | more fitted-by-scipy | 21 | a gradient \
    | 12 backward model.mean_module.raw_constant
normalizing-flow | NSF | zuko | more flow | 6 | a gradient | 3 backward transform.transforms.0.hyper.0.weight
segmentation | Unet, DiceLoss | segmentation-models-pytorch | more segmentation | 6 | a step in evaluation mode \
    | 3 forward mode
monai | SupervisedTrainer, UNet | monai | more medical | 6 | a pixel | 3 rollout batch.image
e3nn | FullyConnectedTensorProduct | e3nn | more equivariant | 6 | its second argument \
    | 3 rollout batch.FullyConnectedTensorProduct.1
poutyne | Model | poutyne | more poutyne-model | 6 | a gradient, in a callback | 2 backward 0.weight
tabnet | TabNetClassifier | pytorch-tabnet | more tabular | 6 | a running variance \
    | 3 forward tabnet.initial_bn.running_var
torchtuples | Model | torchtuples | more tuples | 6 | a gradient, in a callback | 3 backward 2.bias
""",
}
"""By environment: name, uses, package, arguments, steps, the planted cause, and where it must be named."""
LAUNCHERS = {"ddp": TORCHRUN, "ddp-sft": TORCHRUN, "fsdp2-sft": TORCHRUN, "accelerate": ACCELERATE}
TWO_LOGS = ("spawned", "ddp", "ddp-sft", "fsdp2-sft")


def _of_row(row: str, environment: Environment) -> Program:
    name, uses, package, arguments, num_steps, planted, place = (each.strip() for each in row.split("|"))
    step, phase, tensor = place.split()
    return Program(
        *(name, uses, package, arguments, int(num_steps), planted, Place(int(step), phase, tensor), environment),
        launcher=LAUNCHERS.get(name, PYTHON),
        num_logs=1 + (name in TWO_LOGS),
    )


PROGRAMS = (*OWN, *(_of_row(row, each) for each, rows in OTHERS.items() for row in rows.strip().splitlines()))
