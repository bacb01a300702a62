"""The configuration of a run: one frozen tree, validated when it is built. No torch.

Sections `runtime`, `sampler`, `deployment` and `output` should not affect results: at level invariant every bit of a
run follows from the others (its identity) and from the numerics of its machine, which choose the kernel
strategy and the library of products (`rlcore.numerics.level`).
An unknown key is an error that names the nearest legal one.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from rlcore.config_base import Fraction, Positive, Ranks, Section, Texts, Threads
from rlcore.config_deployment import DeploymentSection
from rlcore.config_faults import as_error
from rlcore.config_task import TaskSection, check_task
from rlcore.errors import InvalidValueError

Level = Literal["off", "deterministic", "invariant"]
LEVELS: tuple[str, ...] = get_args(Level)


class ModelSection(Section):
    """A decoder made here, or a checkpoint."""

    path: str = ""
    """A directory with config.json, safetensors and tokenizer; the sizes below are then its own."""
    family: Literal["llama", "qwen2", "qwen3"] = "qwen3"
    width: Positive = 64
    num_layers: Positive = 2
    num_heads: Positive = 4
    num_kv_heads: Positive = 2
    head_width: Positive = 16
    ffn_width: Positive = 192
    is_tied: bool = True
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: str = "cpu"


class WarmStartSection(Section):
    """Supervised steps on the task's own answers before the first rollout: random weights do not learn by reward.

    Without this section a checkpoint of `model.path` has none: its weights are the user's.
    """

    num_steps: Annotated[int, Field(ge=0)] = 100
    """The most of them."""
    batch_size: Positive = 32
    learning_rate: Annotated[float, Field(gt=0)] = 3e-3
    """Falls to a tenth, in a line."""
    target_reward: Fraction | None = None
    """Ends as soon as training prompts are answered so well; None: after num_steps."""
    check_every: Positive = 20
    """Steps between two looks at it."""


class TwoStageSection(Section):
    """Search for items after each completion, which is then a reasoning and ends with a stop string."""

    num_beams: Annotated[int, Field(ge=2)]
    """Items searched per reasoning and learned from; a single one would have none to be compared with."""
    max_item_tokens: Positive
    """Most tokens of an item."""
    forced_text: str = ""
    """Text between reasoning and item; no policy chooses it, and no loss learns it."""


class SamplingSection(Section):
    """How completions are drawn while training."""

    max_tokens: Positive = 32
    temperature: Annotated[float, Field(gt=0)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Annotated[float, Field(ge=0, lt=1)] = 0.0
    stop_strings: Texts = ()
    two_stage: TwoStageSection | None = None
    """Items after each completion, by beam search; the settings above are then those of the reasoning."""


class PolicySection(Section):
    """What GRPO and PPO share."""

    clip_eps_low: Annotated[float, Field(ge=0, le=1)] = 0.2
    clip_eps_high: Annotated[float, Field(ge=0)] = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    aggregation: Literal[
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"
    ] = "token-mean"
    entropy_coef: float = 0.0


class GrpoSection(PolicySection):
    """Rewards relative to those of the same prompt; no critic."""

    name: Literal["grpo"] = "grpo"
    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce_pp_baseline", "remax"] = "grpo"
    """Against the other completions of the prompt; of remax, against its greedy one."""
    loss: Literal["ppo_clip", "gspo", "cispo", "dppo_tv", "ipo", "masked_is"] = "ppo_clip"
    """The first three clip the ratio to the policy before the step, the others drop tokens by that to the sampler."""
    mask_low: Annotated[float, Field(ge=0)] | None = None
    """Of dppo_tv and ipo: by how much a probability may have fallen; None: as the loss has it."""
    mask_high: Annotated[float, Field(ge=0)] | None = None
    """By how much it may have risen."""
    proximal_coef: Annotated[float, Field(ge=0)] | None = None
    """Of dppo_tv, ipo and masked_is: towards the sampler; None: as the loss has it."""
    kl_coef: Annotated[float, Field(ge=0)] = 0.0
    """In the loss, towards the reference policy; 0 does without one."""
    kl_estimator: Literal["k2", "k1+", "abs+", "k3", "k3+"] = "k3"


class PpoSection(PolicySection):
    """A critic, and generalised advantage estimation."""

    name: Literal["ppo"] = "ppo"
    gamma: Fraction = 1.0
    lam: Fraction = 1.0
    value_clip_eps: Annotated[float, Field(gt=0)] | None = 0.2
    critic_learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    num_critic_warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the critic alone learns."""
    whitens_advantages: bool = True
    kl_coef: Annotated[float, Field(ge=0)] = 0.0
    """In the rewards, towards the reference policy; 0 does without one."""
    kl_target: Annotated[float, Field(gt=0)] | None = None
    """Moves kl_coef so that the divergence comes near it; None leaves it fixed."""
    kl_horizon: Positive = 10_000
    """Samples over which kl_coef would move by its own size."""


class CorrectionSection(Section):
    """What is done where the trainer's log-probabilities are not the sampler's; at level invariant they are."""

    weights: Literal["none", "token", "sequence"] = "none"
    """Importance weights on the losses: of each token, or of the whole completion on each of its tokens."""
    outside: Literal["truncate", "icepop"] = "truncate"
    """Weights above `high` become `high`; or those outside of `low` to `high` become 0."""
    low: Annotated[float, Field(gt=0)] = 0.5
    high: Annotated[float, Field(gt=0)] = 2.0
    max_mean_k3: Annotated[float, Field(gt=0)] | None = None
    """Completions with a larger mean k3 to the sampler are not learned from; None: all are."""


class OptimizerSection(Section):
    """AdamW, torch's foreach implementation, and a schedule that is a function of the step."""

    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    eps: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_gradient_norm: Annotated[float, Field(gt=0)] | None = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    num_warmup_steps: Annotated[int, Field(ge=0)] = 0
    final_ratio: Fraction = 0.0


class TrainingSection(Section):
    """How much of it, and what is one sum."""

    num_steps: Positive = 100
    prompts_per_step: Positive = 8
    group_size: Positive = 8
    """Completions a prompt."""
    num_epochs: Positive = 1
    """Passes over a step's samples."""
    num_minibatches: Positive = 1
    """Optimizer steps a pass."""
    microbatch_size: Positive = 8
    """Samples whose gradients are one product: a part of what a run is, like the seed."""


class RuntimeSection(Section):
    """What may be changed without changing a bit, at level invariant."""

    arrival_seed: Annotated[int, Field(ge=0)] = 0
    """In which order requests reach the sampler; 0 is their own."""
    concurrency: Positive = 64
    """Completions that are decoded together."""
    preempt_every: Annotated[int, Field(ge=0)] = 0
    """Decoding steps after which the youngest running completion has to begin again; 0: never."""
    sampling_threads: Threads = 1
    training_threads: Threads = 1
    token_budget: Positive = 16_384
    """The most tokens, padding included, that are in one pass through the model."""
    world_size: Ranks = 1
    """Workers among whom fixed microbatches are divided, simulated in one process; see `deployment` for real ones."""


class SamplerSection(Section):
    """Who draws completions. At level invariant both samplers have the same bits."""

    name: Literal["torch", "vllm"] = "torch"
    """rlcore's own decoding loop, or the decoder served by vLLM."""
    model: Literal["own", "stock"] = "own"
    """Of vllm: rlcore's decoder, or vLLM's model of that family, at levels off and deterministic."""
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Samplers that share the requests of a step, each with its own copy of the weights and `runtime.concurrency`."""
    engine: Literal["in_process", "process"] = "in_process"
    """Of vllm: its engine in the trainer's process, or in a child process, which computes while the trainer waits."""
    tensor_parallel: Positive = 1
    """Of vllm: processes that share each product. Only 1: more than one would move bits, or gain nothing."""
    block_size: Positive = 8
    """Of vllm: tokens of a block of its cache; prompts share whole blocks."""
    num_blocks: Annotated[int, Field(ge=0)] = 0
    """Of vllm: blocks of its cache; fewer preempt completions. 0: enough for `runtime.concurrency`."""
    max_batched_tokens: Positive = 8192
    """Of vllm: tokens of one pass; longer prompts are read in chunks."""


class OutputSection(Section):
    """What is written and shown."""

    evaluate_every: Annotated[int, Field(ge=0)] = 0
    """Steps; 0: only at the end."""
    checkpoint_every: Annotated[int, Field(ge=0)] = 0
    """Steps; 0: only at the end."""
    keep_checkpoints: Positive = 2
    resume: str = ""
    """A directory of an earlier run, from whose newest complete checkpoint the run resumes."""
    resume_step: Annotated[int, Field(ge=0)] | None = None
    """Its newest whole checkpoint with which this step, or one before it, begins; None: the newest of all."""
    num_shown: Annotated[int, Field(ge=0)] = 4
    """Completions shown at each evaluation."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too; needs the extra `tensorboard`."""
    shows_progress: bool = True
    shows_mismatch: bool = False
    """Print, for each step, where the trainer's log-probabilities are not the sampler's, and the cause."""


MAX_LISTED = 100_000
"""Numbers up to here have their divisors listed in an error."""
RUNTIME_SECTIONS = ("runtime", "sampler", "deployment", "output")
"""Sections that are no part of a run's identity."""


def _default_warm_start(earlier: Mapping[str, Any]) -> WarmStartSection:
    """Return the warm start of a run whose configuration has no such section; `earlier` are the fields before it."""
    model = earlier.get("model")  # absent if it is invalid
    return WarmStartSection(num_steps=0) if model is not None and model.path else WarmStartSection()


class RunConfig(Section):
    """A whole run."""

    seed: Annotated[int, Field(ge=0)] = 0
    model: ModelSection = ModelSection()
    task: TaskSection
    warm_start: WarmStartSection = Field(default_factory=_default_warm_start)
    sampling: SamplingSection = SamplingSection()
    algorithm: GrpoSection | PpoSection = Field(discriminator="name")
    correction: CorrectionSection = CorrectionSection()
    optimizer: OptimizerSection = OptimizerSection()
    training: TrainingSection = TrainingSection()
    runtime: RuntimeSection = RuntimeSection()
    sampler: SamplerSection = SamplerSection()
    deployment: DeploymentSection = DeploymentSection()
    output: OutputSection = OutputSection()

    @model_validator(mode="after")
    def _fits(self) -> "RunConfig":
        _check_training(self.training, self.algorithm, self.sampling)
        _check_two_stage(self.sampling, self.algorithm)
        check_task(self.task)
        if isinstance(self.algorithm, GrpoSection):
            _check_loss_settings(self.algorithm)
        _check_offload(self.deployment, self.model.device, self.algorithm)
        if self.correction.low > self.correction.high:
            low, high = self.correction.low, self.correction.high
            raise InvalidValueError(f"correction.low is {low}, above correction.high", legal=f"{high} or less")
        return self

    def identity(self) -> dict[str, Any]:
        """What the bits of this run follow from."""
        return self.model_dump(mode="json", exclude=set(RUNTIME_SECTIONS))


def _check_training(section: TrainingSection, algorithm: GrpoSection | PpoSection, sampling: SamplingSection) -> None:
    num_samples = section.prompts_per_step * section.group_size
    if sampling.two_stage is not None:  # how many items there are is known after sampling
        if section.num_minibatches > num_samples:
            raise InvalidValueError(
                f"training.num_minibatches is {section.num_minibatches}, and a step has at least {num_samples} samples",
                legal=f"1 to {num_samples}, the reasonings of a step",
            )
        return
    if num_samples % section.microbatch_size:
        raise InvalidValueError(
            f"training.microbatch_size is {section.microbatch_size}, which does not divide the"
            f" {num_samples} samples of a step",
            legal=_divisors(num_samples),
        )
    num_microbatches = num_samples // section.microbatch_size
    if num_microbatches % section.num_minibatches:
        raise InvalidValueError(
            f"training.num_minibatches is {section.num_minibatches}, which does not divide the"
            f" {num_microbatches} fixed microbatches of a step",
            legal=_divisors(num_microbatches),
        )
    if section.group_size == 1 and isinstance(algorithm, GrpoSection) and algorithm.advantage != "remax":
        raise InvalidValueError(
            f"training.group_size is 1, and advantage {algorithm.advantage} compares the completions of a prompt",
            legal="2 or more; 1 with algorithm.advantage remax, or with algorithm.name ppo",
        )


def _check_two_stage(sampling: SamplingSection, algorithm: GrpoSection | PpoSection) -> None:
    """InvalidValueError for settings that have no meaning for reasonings and their items."""
    if sampling.two_stage is None:
        return
    if not sampling.stop_strings:
        raise InvalidValueError(
            "sampling.two_stage without sampling.stop_strings: no reasoning would lead to an item",
            legal="one text or more that ends a reasoning",
            remedy="sampling.stop_strings: ['</think>'], or the text that your prompts ask for",
        )
    if isinstance(algorithm, PpoSection):
        raise InvalidValueError(
            "algorithm.name is ppo, and sampling.two_stage is set: the value of a reasoning is that of several items",
            legal="grpo",
            remedy="algorithm.name: grpo, or leave sampling.two_stage out",
        )
    if algorithm.advantage == "remax":
        raise InvalidValueError(
            "algorithm.advantage is remax, and sampling.two_stage is set: a greedy completion has no items",
            legal="grpo, dr_grpo, rloo, reinforce_pp_baseline",
        )


def _check_offload(section: DeploymentSection, device: str, algorithm: GrpoSection | PpoSection) -> None:
    """InvalidValueError for models that the run does not have, and where nothing would be freed."""
    there = {"policy": True, "critic": isinstance(algorithm, PpoSection), "reference": algorithm.kl_coef > 0}
    if absent := [name for name in section.offload if not there[name]]:
        raise InvalidValueError(
            f"deployment.offload has {', '.join(absent)}, which this run does not have",
            legal=", ".join(name for name, is_there in there.items() if is_there),
        )
    if section.offload and device == "cpu" and not section.offload_directory:
        raise InvalidValueError(
            "deployment.offload from cpu to the memory of the host, which frees nothing",
            legal="models on a GPU, or a directory on a disk",
            remedy="deployment.offload_directory: PATH",
        )


def _divisors(number: int) -> str:
    if number > MAX_LISTED:
        return f"a divisor of {number:,}"
    return ", ".join(str(each) for each in range(1, number + 1) if number % each == 0)


def _check_loss_settings(section: GrpoSection) -> None:
    """InvalidValueError for a setting of another loss: it would change nothing."""
    for name, losses in (
        ("mask_low", ("dppo_tv", "ipo")),
        ("mask_high", ("dppo_tv", "ipo")),
        ("proximal_coef", ("dppo_tv", "ipo", "masked_is")),
    ):
        if getattr(section, name) is not None and section.loss not in losses:
            raise InvalidValueError(
                f"algorithm.{name} goes with loss {', '.join(losses)}, and this is {section.loss}",
                remedy=f"leave algorithm.{name} out, or set algorithm.loss",
            )


def read_config(payload: Mapping[str, Any]) -> RunConfig:
    """A configuration from plain values; raises InvalidValueError, which names every fault by its dotted key."""
    try:
        return RunConfig.model_validate(payload)
    except ValidationError as error:
        raise as_error(error, RunConfig) from None
