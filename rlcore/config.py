"""The configuration of a run: one frozen tree, validated when it is built. No torch.

Sections `runtime`, `sampler`, `deployment` and `output` should not affect results: at level invariant every bit of a
run follows from the others (its identity) and from the numerics of its machine, which choose the kernel strategy and
the library of products (`rlcore.numerics.level`). An unknown key is an error that names the nearest legal one; so is a
setting that another one leaves without effect (EFFECTIVE).
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from rlcore.errors import InvalidValueError

Level = Literal["off", "deterministic", "invariant"]
LEVELS: tuple[str, ...] = get_args(Level)
Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
TargetModule = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Threads = Annotated[int, Field(ge=1, le=1024)]
"""Threads of torch, which ends the process where the system refuses them."""
Ranks = Annotated[int, Field(ge=1, le=65_536)]
AtLeast0 = Annotated[float, Field(ge=0)]
Above0 = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Below1 = Annotated[float, Field(ge=0, lt=1)]
Texts = Annotated[tuple[str, ...], Strict(False)]
Numbers = Annotated[tuple[float, ...], Strict(False)]
"""Lists too; what is in them has to be what it says, like all else."""


class Section(BaseModel):
    """A part of a configuration."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, values: Any) -> Any:
        """Leave out keys that are null and have no None: so an override takes back what a scenario has set."""
        if not isinstance(values, Mapping):
            return values
        has_none = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        return {key: value for key, value in values.items() if value is not None or key in has_none}


AnySection = TypeVar("AnySection", bound=Section)


class LoraSection(Section):
    """Low-rank adapters beside products of each layer: they are trained, and the model's own weights are not."""

    rank: Positive = 16
    alpha: Above0 = 32.0
    """Their terms count alpha / rank times."""
    target_modules: Annotated[tuple[TargetModule, ...], Strict(False), Field(min_length=1)] = get_args(TargetModule)
    """Products that have one, by the names of Hugging Face's modules."""
    path: str = ""
    """A directory of peft with adapters of this rank, alpha and target_modules to begin from; empty: new ones, whose
    terms are 0."""


class ModelSection(Section):
    """A decoder made here, or a checkpoint."""

    path: str = ""
    """A directory with config.json, safetensors and tokenizer; family and sizes are then its own."""
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
    lora: LoraSection | None = None
    """Adapters to train in place of all weights; None: all weights are trained."""


class RewardModelSection(Section):
    """A classifier of one label whose number for prompt and completion is a reward."""

    path: str = ""
    """A directory with config.json, safetensors and tokenizer; empty: of the policy's sizes, weights drawn here."""
    backend: Literal["torch", "vllm"] = "torch"
    """rlcore's own decoder, or vLLM's model of that family in this process."""
    weight: float = 1.0
    """Of its reward in the total."""
    max_length: Positive = 512
    """Tokens of the longest prompt and completion, by the reward model's tokenizer."""


OWN = r"^[\w.]+:\w+$"
"""Name of a user's own function: module:function."""


def _one_of(key: str, names: tuple[str, ...]) -> Callable[[str], str]:
    """Return what lets a key have one of some names, or a user's own."""

    def check(value: str) -> str:
        if value not in names and not re.match(OWN, value):
            raise InvalidValueError(f"{key} is {value!r}", legal=", ".join((*names, "module:function")))
        return value

    return check


def _schema(names: tuple[str, ...]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"enum": [*names], "type": "string"}, {"pattern": OWN, "type": "string"}]})


class EnvironmentSection(Section):
    """What answers each completion of a trajectory of several turns: `rlcore.data.environments`."""

    name: Annotated[str, AfterValidator(_one_of("task.environment.name", ("tools",))), _schema(("tools",))] = "tools"
    """Calls of tools in a completion; or module:name, a class or function of your own that builds an environment."""
    arguments: dict[str, Any] = {}
    """Keyword arguments that an environment is built with: {tools: {calc: calculator}}."""
    max_turns: Positive = 4
    """Most completions of a trajectory, each of at most sampling.max_tokens."""
    max_answer_tokens: Positive = 64
    """Tokens after which an answer of the environment is cut."""
    timeout_s: Above0 = 60.0
    """What an answer may take by the clock; more ends the trajectory."""
    answers: Annotated[str, Field(pattern=r"^$|\.jsonl$")] = ""
    """A .jsonl file that keeps answers by what was asked; those that it has are not asked for again. Empty: none is
    kept. Nothing is appended to a file of another name, which a recorded run might ask for."""


class TaskSection(Section):
    """What is to be learned."""

    name: Literal["reverse_text", "arithmetic", "sorting", "recommendation", "products", "file"]
    path: str = ""
    """Of the prompts, JSON lines or parquet, for `file`: a column `prompt`, the others go to the reward functions."""
    num_prompts: Positive | None = None
    """To train on; None: of a file every row that is not held out, of another task 512."""
    num_heldout: Positive = 128
    """To evaluate on; none of them is trained on."""
    min_length: Positive = 3
    max_length: Positive = 4
    """Letters, digits or items: what a task counts stands in it."""
    rewards: Texts = ()
    """module:function, in TRL's signature; with verl: or openrlhf: before it, in theirs.

    Empty: the task's own, unless there is a reward model.
    """
    reward_weights: Numbers = ()
    """One for each of the rewards; empty: all 1."""
    reward_timeout_s: Above0 = 300.0
    """What an async reward function may take for a batch; more is an error, and never a reward."""
    reward_model: RewardModelSection | None = None
    """Its reward is added to those of `rewards`."""
    environment: EnvironmentSection | None = None
    """Answers each completion, after which the policy continues; None: a trajectory is one completion."""
    shuffles_rewards: bool = False
    """Each reward goes to another sample of the batch: a control, which must learn nothing."""


class WarmStartSection(Section):
    """Supervised steps on the task's own answers before the first rollout: random weights do not learn by reward.

    Without this section a checkpoint of `model.path` has none: its weights are the user's.
    """

    num_steps: Count = 100
    """The most of them."""
    batch_size: Positive = 32
    """Prompts of a step, divided into microbatches as samples are in training."""
    learning_rate: Above0 = 3e-3
    """Falls to a tenth, in a line."""
    target_reward: Fraction | None = None
    """Ends as soon as training prompts, as many as are held out, are answered so well; None: after num_steps."""
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
    temperature: Above0 = 1.0
    top_k: Count = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_p: Below1 = 0.0
    stop_strings: Texts = ()
    two_stage: TwoStageSection | None = None
    """Items after each completion, by beam search; the settings above are then those of the reasoning."""


class EvaluationSection(Section):
    """How held-out prompts are answered: as in training, but for these."""

    temperature: AtLeast0 | None = None
    """0 is greedy; None: as in training."""
    num_samples: Positive = 1
    """Completions of a prompt; of several, pass@k is reported for 1, 2, 4 and so on."""
    pass_reward: float = 1.0
    """Least reward of a completion that passes."""


ADVANTAGES = ("grpo", "dr_grpo", "rloo", "reinforce_pp_baseline", "remax")
LOSSES = ("ppo_clip", "gspo", "cispo", "dppo_tv", "ipo", "masked_is")


class PolicySection(Section):
    """What GRPO and PPO share."""

    dual_clip: Annotated[float, Field(gt=1)] | None = None
    entropy_coef: float = 0.0


class GrpoSection(PolicySection):
    """Rewards relative to those of the same prompt; no critic."""

    name: Literal["grpo"] = "grpo"
    advantage: Annotated[str, AfterValidator(_one_of("algorithm.advantage", ADVANTAGES)), _schema(ADVANTAGES)] = "grpo"
    """Against the other completions of the prompt, of remax against its greedy one; or module:function, your own."""
    loss: Annotated[str, AfterValidator(_one_of("algorithm.loss", LOSSES)), _schema(LOSSES)] = "ppo_clip"
    """The first three clip the ratio to the policy before the step, the others drop tokens by that to the sampler; or
    module:function, your own."""
    aggregation: Aggregation | None = None
    """None: as the loss and the advantage have it, see `RunConfig.aggregation`."""
    clip_eps_low: Fraction | None = None
    """Of losses that clip: by how much the ratio may fall below 1; None, here and below: as the loss has it."""
    clip_eps_high: AtLeast0 | None = None
    mask_low: AtLeast0 | None = None
    """Of dppo_tv and ipo: by how much a probability may have fallen."""
    mask_high: AtLeast0 | None = None
    """By how much it may have risen."""
    proximal_coef: AtLeast0 | None = None
    """Of dppo_tv, ipo and masked_is: towards the sampler."""
    kl_coef: AtLeast0 = 0.0
    """In the loss, towards the reference policy; 0 does without one."""
    kl_estimator: Literal["k2", "k1+", "abs+", "k3", "k3+"] = "k3"
    weighs_kl: bool | None = None
    """Each token's KL counts policy / policy before the step times, as in TRL; None: if a step has several updates."""


class PpoSection(PolicySection):
    """A critic, and generalised advantage estimation."""

    name: Literal["ppo"] = "ppo"
    aggregation: Aggregation = "token-mean"
    clip_eps_low: Fraction = 0.2
    clip_eps_high: AtLeast0 = 0.2
    gamma: Fraction = 1.0
    lam: Fraction = 1.0
    value_clip_eps: Above0 | None = 0.2
    critic_learning_rate: Above0 = 1e-3
    num_critic_warmup_steps: Count = 0
    """Steps in which the critic alone learns."""
    whitens_advantages: bool = True
    kl_coef: AtLeast0 = 0.0
    """In the rewards, towards the reference policy; 0 does without one."""
    kl_target: Above0 | None = None
    """Moves kl_coef so that the divergence comes near it; None leaves it fixed."""
    kl_horizon: Positive = 10_000
    """Samples over which kl_coef would move by its own size."""


class CorrectionSection(Section):
    """What is done where the trainer's log-probabilities are not the sampler's; at level invariant they are."""

    weights: Literal["none", "token", "sequence"] = "none"
    """Importance weights on the losses: of each token, or of the whole completion on each of its tokens."""
    outside: Literal["truncate", "icepop"] = "truncate"
    """Weights above `high` become `high`; or those outside of `low` to `high` become 0."""
    low: Above0 = 0.5
    high: Above0 = 2.0
    max_mean_k3: Above0 | None = None
    """Completions with a larger mean k3 to the sampler are not learned from; None: all are."""


class OptimizerSection(Section):
    """AdamW, torch's foreach implementation, and a schedule that is a function of the step."""

    learning_rate: Above0 = 3e-4
    beta1: Below1 = 0.9
    beta2: Below1 = 0.999
    eps: Above0 = 1e-8
    weight_decay: AtLeast0 = 0.0
    max_gradient_norm: Above0 | None = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    num_warmup_steps: Count = 0
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
    microbatch_size: Positive | None = None
    """Samples whose gradients are one product: a part of what a run is, like the seed. None: a whole minibatch, but
    at most 2,048 tokens of completions, from where on larger products are no faster. At level invariant alone."""


class RuntimeSection(Section):
    """What may be changed without changing a bit, at level invariant."""

    arrival_seed: Count = 0
    """In which order requests reach the sampler; 0 is their own."""
    concurrency: Positive = 64
    """Completions that are decoded together."""
    preempt_every: Count = 0
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
    """rlcore's own decoding loop, or the decoder served by vLLM, in a child process."""
    model: Literal["own", "stock"] = "own"
    """Of vllm: rlcore's decoder, or vLLM's model of that family, at levels off and deterministic."""
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Samplers that share the requests of a step, each with its own copy of the weights and `runtime.concurrency`."""
    block_size: Positive = 8
    """Of vllm: tokens of a block of its cache; prompts share whole blocks."""
    num_blocks: Count = 0
    """Of vllm: blocks of its cache; fewer preempt completions. 0: enough for `runtime.concurrency`."""
    max_batched_tokens: Positive = 8192
    """Of vllm: tokens of one pass; longer prompts are read in chunks."""


class DeploymentSection(Section):
    """The processes in which models train, and how their weights are divided: no bit moves at level invariant."""

    backend: Literal["in_process", "ray"] = "in_process"
    """In the process of the controller, or in actors of Ray."""
    num_ranks: Ranks = 1
    """Processes that train together; with in_process so many workers are simulated, one after another."""
    sharding: Literal["none", "full", "hybrid"] = "none"
    """Every rank has all weights, or a shard of them (FSDP2), or groups of ranks have a copy each, sharded."""
    num_copies: Positive = 1
    """Of hybrid: copies of the weights; num_ranks / num_copies ranks share one."""
    address: str = ""
    """Of ray: address of a cluster, or auto; empty: a local one for this run."""
    num_nodes: Positive | None = None
    """Of ray: nodes that share the ranks equally; None: as few as have room."""
    gpus_per_rank: Count = 0
    """Of ray: GPUs that a rank reserves; 1 for models on cuda."""
    cpus_per_rank: Above0 = 1.0
    """Of ray: CPUs that a rank reserves."""
    on_worker_death: Literal["fail", "restart"] = "fail"
    """What becomes of the run if a process of the models dies: its end, or a restart from the newest checkpoint."""
    max_restarts: Count = 3
    """Restarts before a death ends the run."""
    sentinel_every: Count = 10
    """Updates between two comparisons of ranks that must hold equal bits; 0: they are never compared."""
    offload: Annotated[tuple[Literal["policy", "critic", "reference"], ...], Strict(False)] = ()
    """Models that leave their device while others need it: all while completions are sampled, the reference also while
    the policy learns."""
    offload_directory: str = ""
    """Of offload: a directory on a disk, which takes their weights and optimizers; empty: the memory of the host."""
    timeout_s: Above0 = 600.0
    """Seconds that a rank waits for another, and a start for its processes."""


class OutputSection(Section):
    """What is written and shown."""

    evaluate_every: Count = 0
    """Steps; 0: only at the end."""
    checkpoint_every: Count = 0
    """Steps; 0: only at the end."""
    keep_checkpoints: Positive = 2
    resume: str = ""
    """A directory of an earlier run, from whose newest complete checkpoint the run resumes."""
    resume_step: Count | None = None
    """Its newest whole checkpoint with which this step, or one before it, begins; None: the newest of all."""
    num_shown: Count = 4
    """Completions shown at each evaluation."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard too; needs the extra `tensorboard`."""
    shows_progress: bool = True
    shows_mismatch: bool = False
    """Print, for each step, where the trainer's log-probabilities are not the sampler's, and the cause."""


RUNTIME_SECTIONS = ("runtime", "sampler", "deployment", "output")
"""Sections that are no part of a run's identity."""


def _default_warm_start(earlier: Mapping[str, Any]) -> WarmStartSection:
    """Return the warm start of a run whose configuration has no such section; `earlier` are the fields before it."""
    model = earlier.get("model")  # absent if it is invalid
    return WarmStartSection(num_steps=0) if model is not None and model.path else WarmStartSection()


class RunConfig(Section):
    """A whole run."""

    seed: Count = 0
    model: ModelSection = ModelSection()
    task: TaskSection
    warm_start: WarmStartSection = Field(default_factory=_default_warm_start)
    sampling: SamplingSection = SamplingSection()
    evaluation: EvaluationSection = EvaluationSection()
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
        for fault in (*_without_effect(self), *_misfits(self)):
            raise fault
        return self

    @property
    def aggregation(self) -> Aggregation:
        """How losses of tokens become one number: as configured, else as the loss and the advantage have it."""
        algorithm = self.algorithm
        if isinstance(algorithm, PpoSection):
            return algorithm.aggregation
        if algorithm.aggregation is not None:
            return algorithm.aggregation
        if algorithm.loss == "gspo":
            return "seq-mean-token-mean"
        # Dr. GRPO divides by the longest completion that is allowed; a reasoning and its items have no common one.
        is_norm = algorithm.advantage == "dr_grpo" and algorithm.loss in ("ppo_clip", "cispo")
        return "seq-mean-token-sum-norm" if is_norm and self.sampling.two_stage is None else "token-mean"

    @property
    def microbatch_size(self) -> int:
        """Samples of a fixed microbatch: as configured, else as many as their products are fastest with."""
        training = self.training
        samples = training.prompts_per_step * training.group_size // training.num_minibatches
        return training.microbatch_size or max(1, min(samples, 2048 // self.max_completion_tokens))

    @property
    def max_completion_tokens(self) -> int:
        """Most tokens of a trajectory that the policy draws, without the items of a beam search."""
        environment = self.task.environment
        return self.sampling.max_tokens * (environment.max_turns if environment else 1)

    def identity(self) -> dict[str, Any]:
        """What the bits of this run follow from."""
        return self.model_dump(mode="json", exclude=set(RUNTIME_SECTIONS))


def read_config(payload: Mapping[str, Any]) -> RunConfig:
    """A configuration from plain values; raises InvalidValueError, which names every fault by its dotted key."""
    return read_section(RunConfig, payload, foreign=FOREIGN)


def read_section(
    kind: type[AnySection],
    payload: Mapping[str, Any],
    *,
    foreign: Mapping[str, str] = MappingProxyType({}),
    where: str = "",
    faults: Iterable[InvalidValueError] = (),
) -> AnySection:
    """A section from plain values; raises InvalidValueError, which names every fault by its dotted key.

    `foreign` has the names that others have for a setting. The error begins with `where`, and with `faults`, which a
    caller has found before.
    """
    faults = list(faults)
    try:
        found = kind.model_validate(payload)
        if not faults:
            return found
    except ValidationError as error:
        faults += [_fault(dict(each), kind, foreign) for each in error.errors() if each["type"] != FOLLOWS]
    parts = {part: "; ".join(filter(None, (getattr(fault, part) for fault in faults))) for part in PARTS}
    raise InvalidValueError(where + parts["what"], legal=parts["legal"], remedy=parts["remedy"])


# -------------------------------------------------------------------------------------------- between several settings


def _uses(*losses: str) -> Callable[[RunConfig], bool]:
    """Whether the loss is one of these, or a user's own; that of PPO is ppo_clip."""
    return lambda config: (loss := getattr(config.algorithm, "loss", "ppo_clip")) in losses or ":" in loss


def _is_hybrid(config: RunConfig) -> bool:
    return config.deployment.sharding == "hybrid"


SIZES = "family width num_layers num_heads num_kv_heads head_width ffn_width is_tied"
REPLACE = "without model.path; --set 'model={path: DIR}' replaces the whole section"
EFFECTIVE: tuple[tuple[str, str, Callable[[RunConfig], Any], str], ...] = (
    ("model", SIZES, lambda c: not c.model.path, REPLACE),
    ("task", "path", lambda c: c.task.name == "file", "with task.name: file"),
    ("task", "reward_weights reward_timeout_s", lambda c: c.task.rewards, "with task.rewards"),
    ("warm_start", "check_every", lambda c: c.warm_start.target_reward is not None, "with warm_start.target_reward"),
    (
        "evaluation",
        "num_samples",
        lambda c: c.evaluation.temperature != 0 or c.evaluation.num_samples == 1,
        "with a temperature above 0",
    ),
    ("evaluation", "pass_reward", lambda c: c.evaluation.num_samples > 1, "with evaluation.num_samples"),
    ("algorithm", "clip_eps_low clip_eps_high", _uses("ppo_clip", "gspo", "cispo"), "with loss ppo_clip, gspo, cispo"),
    ("algorithm", "dual_clip", _uses("ppo_clip"), "with loss ppo_clip"),
    ("algorithm", "mask_low mask_high", _uses("dppo_tv", "ipo"), "with loss dppo_tv, ipo"),
    ("algorithm", "proximal_coef", _uses("dppo_tv", "ipo", "masked_is"), "with loss dppo_tv, ipo, masked_is"),
    ("algorithm", "kl_estimator kl_target weighs_kl", lambda c: c.algorithm.kl_coef, "with algorithm.kl_coef"),
    ("algorithm", "kl_horizon", lambda c: getattr(c.algorithm, "kl_target", None), "with algorithm.kl_target"),
    ("correction", "outside low high", lambda c: c.correction.weights != "none", "with correction.weights"),
    ("correction", "low", lambda c: c.correction.outside == "icepop", "with correction.outside: icepop"),
    ("optimizer", "final_ratio", lambda c: c.optimizer.schedule != "constant", "with a schedule linear or cosine"),
    ("sampler", "model", lambda c: c.sampler.name == "vllm" or c.sampler.model == "own", "with sampler.name: vllm"),
    ("deployment", "offload_directory", lambda c: c.deployment.offload, "with deployment.offload"),
    # With in_process every setting is legal: a run of any deployment is repeated there by that setting alone.
    ("deployment", "num_copies", lambda c: c.deployment.backend != "ray" or _is_hybrid(c), "with sharding: hybrid"),
    ("output", "resume_step", lambda c: c.output.resume, "with output.resume"),
)
"""Settings that have an effect under a condition alone: section, keys, the condition, and its text."""


def _without_effect(config: RunConfig) -> Iterator[InvalidValueError]:
    """Yield an error for settings that were given, and would change nothing."""
    for name, keys, has_effect, condition in EFFECTIVE:
        section = getattr(config, name)
        values = {key: getattr(section, key) for key in keys.split() if key in section.model_fields_set}
        if (given := {key: value for key, value in values.items() if value is not None}) and not has_effect(config):
            said = ", ".join(f"{name}.{key} is {value!r}" for key, value in given.items())
            yield InvalidValueError(f"{said}, which has no effect here", legal=condition, remedy="leave it out")


def _misfits(config: RunConfig) -> Iterator[InvalidValueError]:
    """Yield an error for each check between several settings that fails."""
    task, algorithm, sampling, deployment = config.task, config.algorithm, config.sampling, config.deployment
    if task.name == "file" and not task.path:
        yield InvalidValueError("task.path is '', and task.name file", legal="a file of prompts")
    if len(task.reward_weights) not in (0, len(task.rewards)):
        legal = f"one for each of task.rewards, {len(task.rewards)}, or none"
        yield InvalidValueError(f"task.reward_weights has {len(task.reward_weights)} numbers", legal=legal)
    if task.min_length > task.max_length:
        what = f"task.min_length is {task.min_length}, above task.max_length"
        yield InvalidValueError(what, legal=f"1 to {task.max_length}")
    if config.correction.low > config.correction.high:
        what = f"correction.low is {config.correction.low}, above correction.high"
        yield InvalidValueError(what, legal=f"{config.correction.high} or less")
    yield from _training_misfits(config)
    if sampling.two_stage is not None and task.environment is not None:
        what = "task.environment and sampling.two_stage are both set: items are searched after one completion"
        yield InvalidValueError(what, legal="one of them", remedy="leave sampling.two_stage out")
    if sampling.two_stage is not None and not sampling.stop_strings:
        what = "sampling.two_stage without sampling.stop_strings: no reasoning would lead to an item"
        yield InvalidValueError(what, legal="one text or more that ends a reasoning: ['</think>'], say")
    if sampling.two_stage is not None and isinstance(algorithm, PpoSection):
        what = "algorithm.name is ppo, and sampling.two_stage is set: the value of a reasoning is that of several items"
        yield InvalidValueError(what, legal="grpo", remedy="algorithm.name: grpo, or leave sampling.two_stage out")
    elif sampling.two_stage is not None and getattr(algorithm, "advantage", "") == "remax":
        what = "algorithm.advantage is remax, and sampling.two_stage is set: a greedy completion has no items"
        yield InvalidValueError(what, legal="grpo, dr_grpo, rloo, reinforce_pp_baseline")
    if config.model.lora is not None and config.sampler.model == "stock":
        what = "sampler.model is stock, and model.lora is set: parameters of vLLM's own model have no adapters"
        yield InvalidValueError(what, legal="own", remedy="sampler.model: own")
    if _is_hybrid(config) and (deployment.num_copies == 1 or deployment.num_ranks % deployment.num_copies):
        copies = [str(n) for n in range(2, deployment.num_ranks + 1) if deployment.num_ranks % n == 0]
        yield InvalidValueError(
            f"deployment.num_copies is {deployment.num_copies}, of {deployment.num_ranks} ranks with sharding hybrid",
            legal=", ".join(copies) or "none: hybrid needs two ranks or more",
        )
    models = {"policy": True, "critic": isinstance(algorithm, PpoSection), "reference": algorithm.kl_coef > 0}
    if absent := [name for name in deployment.offload if not models[name]]:
        yield InvalidValueError(
            f"deployment.offload has {', '.join(absent)}, which this run does not have",
            legal=", ".join(name for name, is_there in models.items() if is_there),
        )
    if deployment.offload and config.model.device == "cpu" and not deployment.offload_directory:
        yield InvalidValueError(
            "deployment.offload from cpu to the memory of the host, which frees nothing",
            legal="models on a GPU, or a directory on a disk",
            remedy="deployment.offload_directory: PATH",
        )


def _training_misfits(config: RunConfig) -> Iterator[InvalidValueError]:
    section, algorithm = config.training, config.algorithm
    num_samples = section.prompts_per_step * section.group_size
    if config.sampling.two_stage is not None:  # how many items there are is known after sampling
        if section.num_minibatches > num_samples:
            yield InvalidValueError(
                f"training.num_minibatches is {section.num_minibatches}, and a step has at least {num_samples} samples",
                legal=f"1 to {num_samples}, the reasonings of a step",
            )
        return
    if section.group_size == 1 and isinstance(algorithm, GrpoSection) and algorithm.advantage in ADVANTAGES[:-1]:
        yield InvalidValueError(
            f"training.group_size is 1, and advantage {algorithm.advantage} compares the completions of a prompt",
            legal="2 or more; 1 with algorithm.advantage remax, or with algorithm.name ppo",
        )
    size, whole = section.microbatch_size, (num_samples, "samples of a step")
    for name, number, what in (
        ("microbatch_size", *whole),
        ("num_minibatches", *((num_samples // size, "fixed microbatches of a step") if size else whole)),
    ):
        if number % (given := getattr(section, name) or 1):
            divisors = [str(each) for each in range(1, min(number, 100_000) + 1) if number % each == 0]
            yield InvalidValueError(
                f"training.{name} is {given}, which does not divide the {number} {what}",
                legal=", ".join(divisors) if number <= 100_000 else f"a divisor of {number:,}",
            )


# -------------------------------------------------------------------------------------- faults, in the words of a user

PARTS = ("what", "legal", "remedy")
FOLLOWS = "default_factory_not_called"
"""A default that could not be derived: another fault, in what it is derived from, is in the same list."""
OF_YAML: Mapping[str, str] = {
    "tuple_type": "a list",
    "model_type": "keys with values",
    "model_attributes_type": "keys with values",
    "union_tag_not_found": "keys with values, a name among them",
}
"""What is legal, where pydantic says it of Python's types."""
FOREIGN: Mapping[str, str] = {
    "algorithm.kl_coef": "beta kl_beta init_kl_coef kl_loss_coef kl_penalty_coef",
    "algorithm.kl_estimator": "kl_loss_type kl_penalty",
    "algorithm.kl_target": "target_kl",
    "algorithm.kl_horizon": "horizon",
    "algorithm.clip_eps_low": "epsilon epsilon_low clip_ratio clip_ratio_low cliprange clip_range eps_clip",
    "algorithm.clip_eps_high": "epsilon_high clip_ratio_high eps_clip_high",
    "algorithm.dual_clip": "delta clip_ratio_c",
    "algorithm.value_clip_eps": "cliprange_value value_clip",
    "algorithm.aggregation": "loss_agg_mode",
    "algorithm.advantage": "adv_estimator advantage_estimator",
    "algorithm.lam": "gae_lambda lambda lambd",
    "optimizer.learning_rate": "lr",
    "optimizer.schedule": "lr_scheduler_type lr_scheduler",
    "sampling.max_tokens": "max_new_tokens max_completion_length max_response_length",
    "training.group_size": "num_generations n rollout_n n_samples_per_prompt",
    "training.num_epochs": "num_iterations ppo_epochs num_ppo_epochs",
    "training.microbatch_size": "lane_width per_device_train_batch_size micro_batch_size",
    "runtime": "perturbation",
    "runtime.token_budget": "microbatch_tokens",
    "task.rewards": "reward_funcs reward_functions",
    "output.checkpoint_every": "save_steps save_freq",
    "output.evaluate_every": "eval_steps test_freq",
}
"""Names that other libraries, or earlier versions, have for a setting."""


def _fault(found: Mapping[str, Any], kind: type[BaseModel], foreign: Mapping[str, str]) -> InvalidValueError:
    context = found.get("ctx", {})
    own = context.get("error")
    if isinstance(own, InvalidValueError):  # a check between several keys
        return own
    sections = list(_sections(found["loc"], kind))
    dotted = ".".join(key for key, _ in sections)
    if found["type"] == "extra_forbidden":
        return InvalidValueError(f"unknown key {dotted}", legal=_nearest(*sections[-1], foreign))
    if found["type"] == "missing":
        return InvalidValueError(f"{dotted} is missing", remedy=f"set {dotted}")
    value, legal = found["input"], OF_YAML.get(found["type"], found["msg"].removeprefix("Input should be "))
    if found["type"] == "union_tag_invalid":
        dotted, value, legal = f"{dotted}.name", context["tag"], context["expected_tags"]
    return InvalidValueError(f"{dotted or 'the configuration'} is {value!r}", legal=legal)


def _sections(loc: tuple[int | str, ...], model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Each key on the way to a fault, and the section it stands in.

    After the key of a section of which there are several, pydantic tells the name of the one that was taken: no key.
    """
    choices: dict[str, type[BaseModel]] = {}
    for part in map(str, loc):
        if part in choices:
            model, choices = choices[part], {}
            continue
        yield part, model
        field = model.model_fields.get(part)
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if len(sections) == 1:
            model = sections[0]
        elif sections:
            choices = {str(each.model_fields["name"].default): each for each in sections}


def _nearest(key: str, model: type[BaseModel], foreign: Mapping[str, str]) -> str:
    """The setting that others call so, or the nearest legal key; and all of the section."""
    names = list(model.model_fields)
    ours = [name for name, others in foreign.items() if key in others.split()]
    near = ours or difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    every = ", ".join(names)
    return f"{near[0]}? All: {every}" if near else every
