"""Settings of the three roles, under Surogate's names and with its defaults: train.yaml, infer.yaml and orch.yaml.

A key of Surogate's reference is a field here, or in UNSUPPORTED with a reason; NOTICES has those that come to something
different here. Our own keys: `level` and `device`; `backend` and `output_dir` of infer; `mode` and `schedule` of orch.
Where the reference leaves a default of train.yaml open, it is that of Surogate's trainer; `seed` is that of orch.yaml.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import filter as matching
from operator import attrgetter, lt
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field, Strict, ValidationInfo, field_validator, model_validator

from harness.bits.files import MAX_SETTINGS_BYTES, StrPath, read_text
from rlcore import config
from rlcore.config import (
    Above0,
    AnySection,
    AtLeast0,
    Count,
    Level,
    Positive,
    RunConfig,
    RuntimeSection,
    Section,
    TargetModule,
    TaskSection,
    Texts,
)
from rlcore.errors import InvalidValueError

TASKS = ("reverse_text", "arithmetic", "sorting", "products", "file")
"""Legal values of env[].id, with hyphens too."""


class RoleSection(Section):
    """The settings of one role, a file."""

    level: Level = "invariant"

    def _check(self, keys: str, fits: object, reason: str, legal: str) -> None:
        """Raise InvalidValueError with the values of some keys, unless they fit together."""
        if not fits:
            said = " and ".join(f"{key} is {attrgetter(key)(self)!r}" for key in keys.split())
            raise InvalidValueError(f"{said}: {reason}", legal=legal, remedy=f"change {' or '.join(keys.split())}")


class LossSection(Section):
    """Coefficients and bounds of masked importance sampling."""

    ratio_type: Literal["token", "sequence"] = "token"
    """One ratio for each token, or one for all tokens of a sample."""
    sequence_clip_high: Above0 = 10.0
    """The most that the ratio of a sample may be."""
    teacher_tau: AtLeast0 = 0.0
    """Weight of the teacher's log-probability less the policy's, beside the advantage."""
    kl_tau: AtLeast0 = 0.0
    adv_tau: AtLeast0 = 1.0
    token_mask_low: AtLeast0 = 0.125
    token_mask_high: AtLeast0 = 8.0
    geo_mask_low: AtLeast0 = 0.1
    geo_mask_high: AtLeast0 = 10.0
    sequence_mask_low: AtLeast0 = 0.0
    sequence_mask_high: AtLeast0 = 100.0


class NoiseSection(Section):
    """QeRL's noise on the samplers' norm weights: `rlcore.algorithms.schedules.noise_sigma`."""

    enabled: bool = False
    sigma_start: Above0 = 5e-2
    sigma_end: Above0 = 5e-4
    num_stages: Positive = 10


class Train(RoleSection):
    """Settings of the trainer, train.yaml."""

    model: str
    """Directory of a checkpoint."""
    output_dir: str = "output"
    """Directory that holds the orchestrator's directories run_*."""
    device: Literal["cpu", "cuda"] = "cpu"
    gpus: Positive = 1
    """Ranks among which FSDP2 divides the model, in processes of Ray; on a CPU too."""
    zero_level: Annotated[int, Field(ge=1, le=3)] = 1
    recipe: Literal["bf16", "fp8-hybrid", "fp8_hybrid", "nvfp4", "fp32"] = Field("bf16", validate_default=True)
    """Precision; on a CPU always fp32."""
    sequence_len: Positive = 1024
    max_steps: Annotated[int, Field(ge=-1)] = -1
    """-1: until the orchestrator ends."""
    optimizer: Literal["adamw"] = "adamw"
    learning_rate: Above0 = 2e-4
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "linear"
    warmup_steps: Count = 0
    max_grad_norm: AtLeast0 = 1.0
    """0: gradients are not clipped."""
    weight_decay: AtLeast0 = 0.1
    gradient_accumulation_steps: Positive = 4
    """Without effect: a step trains its whole batch."""
    per_device_train_batch_size: Positive = 2
    """Samples in a pass."""
    logging_steps: Positive = 1
    seed: Count = 42
    """Of new adapters and of noise; all else follows from that of orch.yaml."""
    max_async_level: Count = 1
    lora: bool = True
    lora_rank: Positive = 16
    lora_alpha: Above0 = 32.0
    lora_target_modules: Annotated[tuple[TargetModule, ...], Strict(False)] = get_args(TargetModule)
    loss: LossSection = LossSection()
    noise_scheduler: NoiseSection = NoiseSection()

    @field_validator("recipe")
    @classmethod
    def _as_on_device(cls, recipe: str, info: ValidationInfo) -> str:
        return "fp32" if info.data.get("device") == "cpu" else recipe

    @model_validator(mode="after")
    def _fits(self) -> "Train":
        has_end = self.lr_scheduler_type == "constant" or self.max_steps >= max(1, self.warmup_steps)
        self._check("recipe", self.recipe in ("fp32", "bf16"), "training is never quantised", "bf16, fp32")
        self._check("lr_scheduler_type max_steps", has_end, "a decay needs an end after warmup_steps", "constant")
        is_bounded = not self.noise_scheduler.enabled or self.max_steps > 0
        self._check("noise_scheduler.enabled max_steps", is_bounded, "its stages divide all steps", "a number of steps")
        for keys in (f"loss.{name}_mask_low loss.{name}_mask_high" for name in ("token", "geo", "sequence")):
            self._check(keys, lt(*attrgetter(*keys.split())(self)), "every token would be masked", "low < high")
        return self


class Infer(RoleSection):
    """Settings of the inference server, infer.yaml."""

    model: str
    """Directory of a checkpoint."""
    output_dir: str = "outputs/run_default"
    """Directory of the orchestrator, whose broadcasts are served."""
    backend: Literal["torch", "vllm"] = "torch"
    device: Literal["cpu", "cuda"] = "cpu"
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    enable_lora: bool = True
    max_lora_rank: Positive | None = None
    max_loras: Positive = 8
    max_cpu_loras: Positive = 100
    """Versions of adapters that are resident."""
    dp: Positive = 1
    """Samplers, in processes of their own that listen at one port."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    max_model_len: Positive | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool | None = None
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9


class PolicySection(Section):
    """The model that is trained."""

    name: str
    """Directory of a checkpoint."""
    lora_adapter: str | None = None
    lora_rank: Positive | None = None
    lora_alpha: Above0 | None = None
    """As in train.yaml; all three may be left out."""


class TemperatureSection(Section):
    """From one temperature at step 0 to another at the last."""

    type: Literal["linear", "cosine"]
    start_temperature: Above0
    end_temperature: Above0


class SamplingSection(Section):
    """How completions are drawn."""

    max_tokens: Positive
    temperature: Above0 = 1.0
    temp_scheduler: TemperatureSection | None = None


class EnvSection(Section):
    """A task."""

    id: str
    name: str | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    """Keys of `rlcore.config.TaskSection`."""


Envs = Annotated[tuple[EnvSection, ...], Strict(False), Field(min_length=1)]


class ClientSection(Section):
    """Connections to the inference servers."""

    base_url: Texts = ("http://localhost:8000/v1",)
    timeout: Above0 = 1200.0
    """Seconds that a request may take."""
    api_key_var: str = "VLLM_API_KEY"
    skip_model_check: bool = False


class TeacherSection(Section):
    """Whose log-probabilities a policy learns."""

    model: PolicySection
    client: ClientSection | None = None
    """Addresses of `rlcore grpo-infer` with this model; None: the orchestrator computes them itself."""


class BufferSection(Section):
    """Which prompts are drawn, and which groups are trained."""

    online_difficulty_filtering: bool = False
    """Leave out groups whose mean reward is exactly 0 or 1."""
    easy_threshold: float | None = None
    """Mean reward of a group from which on its prompt is not drawn again."""
    hard_threshold: float | None = None
    """Mean reward of a group down to which its prompt is not drawn again."""
    skip_verification: bool = False
    """Ask no reward function: all rewards are 0."""
    env_ratios: Annotated[tuple[Above0, ...], Strict(False)] | None = None
    """Shares of the groups that each of `env` has; None: equal ones."""


class AdvantageSection(Section):
    """What a reward is worth beside those of its group."""

    type: Literal["default", "custom"] = "default"
    length_weighted_mean: bool = False
    import_path: str = ""
    """Of custom: `module.function(rewards, lengths, **kwargs)`, which returns a number for each of a group's."""
    kwargs: dict[str, Any] = Field(default_factory=dict)


class FilterSection(Section):
    """What is looked for in completions: `rlcore.data.filters`."""

    type: Literal["gibberish", "repetition"]
    enforce: bool = False
    """Exclude flagged completions from the loss; their rewards count in the group's mean."""
    token_id_threshold: Count = 100_000
    logprob_offset: float = 2.0
    window: Positive = 3000
    prob_threshold: Annotated[float, Field(gt=0, lt=1)] = 0.99


class CheckpointSection(Section):
    """When the trainer writes checkpoints, and which it keeps."""

    interval: Positive | None = None
    keep_last: Positive | None = None
    keep_interval: Positive | None = None


class ReportSection(Section):
    """How often metrics are reported."""

    interval: Positive = 10


class EvalSection(Section):
    """Evaluation of some versions of the weights, on prompts that are not trained."""

    env: Envs
    num_examples: Annotated[int, Field(ge=-1)] = -1
    """-1: all held-out prompts."""
    rollouts_per_example: Positive = 1
    interval: Positive = 100
    eval_base_model: bool = True


class Orch(RoleSection):
    """Settings of the orchestrator, orch.yaml."""

    model: PolicySection = Field(default_factory=dict, validate_default=True)
    env: Envs
    batch_size: Positive = 128
    rollouts_per_example: Positive = 1
    """Completions of a group; 2 or more, against Surogate's default."""
    oversampling_factor: Annotated[float, Field(ge=1)] = 1.0
    """Groups that are drawn for each that a step trains at most."""
    seq_len: Positive = 2048
    max_steps: Positive | None = None
    """None: until it is ended."""
    max_async_level: Count = 1
    max_off_policy_steps: Count = 8
    output_dir: str = "outputs/run_default"
    seed: Count = 42
    sampling: SamplingSection = Field(default_factory=dict, validate_default=True)
    client: ClientSection = ClientSection()
    teacher_model: TeacherSection | None = None
    buffer: BufferSection = BufferSection()
    advantage: AdvantageSection = AdvantageSection()
    filters: Annotated[tuple[FilterSection, ...], Strict(False)] = ()
    eval: EvalSection | None = None
    ckpt: CheckpointSection = CheckpointSection()
    report_to: ReportSection = ReportSection()
    mode: Literal["strict", "free", "replay"] = "strict"
    """Versions of the rollouts: max_async_level before the step, the newest, or those of a recorded run."""
    schedule: str = ""
    """Directory of the recorded run."""

    @model_validator(mode="after")
    def _fits(self) -> "Orch":
        check, size, is_kept = self._check, self.rollouts_per_example, self.max_async_level <= self.max_off_policy_steps
        has_schedule = bool(self.schedule) == (self.mode == "replay")
        check("client.base_url", self.client.base_url, "there is no server", "one address or more")
        check("rollouts_per_example", size > 1, "a rollout is compared with the others of its group", "2 or more")
        check("rollouts_per_example batch_size", self.batch_size % size == 0, "groups would split", "a divisor of it")
        check("max_off_policy_steps max_async_level", is_kept, "groups would be discarded", "max_async_level or more")
        check("sampling.max_tokens seq_len", self.sampling.max_tokens < self.seq_len, "no prompt fits", "below seq_len")
        check("mode schedule", has_schedule, "replay needs the directory of a run, others none", "both or neither")
        sampling, advantage, ratios = self.sampling, self.advantage, self.buffer.env_ratios
        is_one = sampling.temp_scheduler is None or "temperature" not in sampling.model_fields_set
        check("sampling.temperature sampling.temp_scheduler", is_one, "it follows from both", "one of them")
        has_end = sampling.temp_scheduler is None or self.max_steps
        check("sampling.temp_scheduler max_steps", has_end, "a schedule needs an end", "a number of steps")
        has_path = bool(advantage.import_path) == (advantage.type == "custom")
        check("advantage.type advantage.import_path", has_path, "custom names a function", "both or neither")
        check("buffer.env_ratios", ratios is None or len(ratios) == len(self.env), "each env has one", "one for each")
        for number, env in enumerate(self.env):
            task_section(env, f"env.{number}")
        for number, env in enumerate(self.eval.env if self.eval else ()):
            task_section(env, f"eval.env.{number}")
        return self


def read_train(path: StrPath) -> tuple[Train, list[str]]:
    """Read train.yaml; return notices of settings that are replaced here. Raises InvalidValueError."""
    return _read(Train, path)


def read_infer(path: StrPath) -> tuple[Infer, list[str]]:
    """Read infer.yaml, as `read_train` does."""
    return _read(Infer, path)


def read_orch(path: StrPath) -> tuple[Orch, list[str]]:
    """Read orch.yaml, as `read_train` does."""
    return _read(Orch, path)


def training_config(train: Train) -> RunConfig:
    """Return what `rlcore.trainers` reads of it; the task and the algorithm there are not its own."""
    ranks = {
        "backend": "ray",
        "num_ranks": train.gpus,
        "sharding": "full",
        "gpus_per_rank": int(train.device == "cuda"),
    }
    least, tokens = RuntimeSection().token_budget, train.per_device_train_batch_size * train.sequence_len
    lora = {"rank": train.lora_rank, "alpha": train.lora_alpha, "target_modules": [*train.lora_target_modules]}
    model = {"path": train.model, "device": train.device, "lora": lora if train.lora else None}
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[train.recipe]
    return config.read_config(
        {
            "task": {"name": "reverse_text"},
            "algorithm": {"name": "grpo"},
            "seed": train.seed,
            "model": {**model, "dtype": dtype},
            "optimizer": {
                "learning_rate": train.learning_rate,
                "weight_decay": train.weight_decay,
                "max_gradient_norm": train.max_grad_norm or None,
                "schedule": train.lr_scheduler_type,
                "num_warmup_steps": train.warmup_steps,
            },
            "runtime": {"token_budget": max(least, tokens)},
            "deployment": ranks if train.gpus > 1 else {},
        }
    )


def task_section(env: EnvSection, where: str) -> TaskSection:
    """Return the task that an env's id and args describe; raises InvalidValueError."""
    name = env.id.replace("-", "_")
    if name not in TASKS:
        what = f"{where}.id is {env.id!r}: environments of the verifiers registry are not built in"
        raise InvalidValueError(what, legal=", ".join(TASKS), remedy="write id: file, with prompts and rewards in args")
    with keys_of_env(where):
        return config.read_config({"task": {**env.args, "name": name}, "algorithm": {"name": "grpo"}}).task


@contextmanager
def keys_of_env(where: str) -> Iterator[None]:
    """Name the keys of a task in an InvalidValueError as orch.yaml does, where the env is `where`."""
    try:
        yield
    except InvalidValueError as error:
        args = (text.replace("task.", f"{where}.args.") for text in (error.what, error.legal))
        raise InvalidValueError(next(args), legal=next(args), remedy=error.remedy) from None


# -------------------------------------------------------------------------------------------------------------- tables

LEAVE, FILES = "leave out {}", "batches and weights travel as files"
UNSUPPORTED: Mapping[type[Section], tuple[tuple[str, str, str, str], ...]] = {
    Train: (
        ("", "qlora_*=false", "quantised weights are not supported", LEAVE),
        ("", "optimizer=adamw", "the only one is adamw, which keeps 32-bit state", "write optimizer: adamw"),
        ("", "transport_type=filesystem", FILES, LEAVE),
    ),
    Infer: (
        ("", "tp=1", "weights of a sampler are never divided", "dp: 2, or several servers in client.base_url"),
        ("", "weight_broadcast_type=filesystem", FILES, LEAVE),
        ("", "trust_remote_code=false rope_scaling", "config.json says what a model is", "use another checkpoint"),
        ("", "reasoning_parser enable_auto_tool_choice=false", "rollouts are tokens", "parse texts in a reward"),
    ),
    Orch: (
        ("sampling", "repetition_penalty=1.0 min_tokens=0", "what is drawn would not be the policy's", LEAVE),
        ("sampling buffer", "seed", "all noise follows from one seed", "write seed at the top"),
        ("buffer", "easy_fraction=0.0 hard_fraction=0.0", "pools follow from the batches, also after a resume", LEAVE),
        ("buffer", "hash_keys=[task,prompt]", "a prompt is identified by its content", LEAVE),
        ("eval", "skip_eval_on_resume=true", "a version is evaluated once", LEAVE),
        ("eval", "cancel_inflight_rollouts_on_eval=false", "a batch does not follow from evaluations", LEAVE),
        ("env eval.env", "address", "environments on other machines are not supported", LEAVE),
        ("env.args eval.env.args", "name", "env[].id names the task", LEAVE),
        ("client", "elastic", "a run has the same servers to its end", "list them in client.base_url"),
        ("ckpt", "resume_step=-1 skip_*=false wait_for_*", "a run resumes from its directory by itself", LEAVE),
        ("report_to", "project name offline", "W&B is not built in", "read metrics.jsonl, or use --tensorboard"),
        ("report_to", "samples distributions", "batches hold them all", "read batches/step_N"),
        ("rollout_transport weight_broadcast", "type=filesystem *", FILES, LEAVE),
    ),
}
"""Sections, keys, why they may not ask for anything, and what to do about those, {}.

KEY has to be left out or null; KEY=VALUE may also have this value; KEY==VALUE has to be written with it. * is any
text, and alone every other key of the section.
"""
ONE_STEP = "a step trains its whole batch, in passes of per_device_train_batch_size"
NEVER = "enforce_eager enable_prefix_caching"
ON_GPU = "gpu_memory_utilization enforce_eager enable_prefix_caching"
NOTICES: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("recipe", lambda role, value: role.recipe == "fp32" != value, "models on a CPU are trained in fp32"),
    ("zero_level", lambda role, value: value not in {..., 3}, "FSDP2 divides weights and gradients too, as 3"),
    ("optimizer", lambda role, value: value in (..., None), "adamw, whose state has 32 bits, replaces adamw_8bit"),
    ("gradient_accumulation_steps", lambda role, value: value is not ..., ONE_STEP),
    ("max_async_level", lambda role, value: isinstance(role, Train) and value is not ..., "that of orch.yaml counts"),
    ("max_cpu_loras", lambda role, value: value is not ..., "adapters are read from their files again"),
    ("host", lambda role, value: value is None, "127.0.0.1 alone is bound; write 0.0.0.0 for all interfaces"),
    (ON_GPU, lambda role, value: value is not ... and role.backend == "torch", "without effect with backend torch"),
    (
        NEVER,
        lambda role, value: value is not ... and role.backend == "vllm",
        "the engine is eager, and caches prefixes",
    ),
    (
        "env",
        lambda role, value: any(env.id != "file" for env in role.env),
        "a task of rlcore, not of the verifiers registry",
    ),
)
"""Keys, whether a notice applies to the role and the value as written, ... if it is not; and the notice."""

# ------------------------------------------------------------------------------------------------------------- reading

PLAIN = (
    ("null", r"(~|null|Null|NULL|)\Z"),
    ("bool", r"(true|True|TRUE|false|False|FALSE)\Z"),
    ("int", r"[-+]?(0|[1-9][0-9]*)\Z"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z"),
)


class _Loader(yaml.SafeLoader):
    """Plain words as YAML 1.2 has them: `off` is a text, 2e-4 a number. Keys are texts, each once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value) or not all(isinstance(key, str) for key in found):
            raise yaml.MarkedYAMLError(problem="a key twice, or no text", problem_mark=node.start_mark)
        return found


_Loader.yaml_implicit_resolvers = {None: [(f"tag:yaml.org,2002:{kind}", re.compile(text)) for kind, text in PLAIN]}


def _read(kind: type[AnySection], path: StrPath) -> tuple[AnySection, list[str]]:
    """Read a file; return its settings and notices."""
    try:
        payload = dict(yaml.load(read_text(path, max_bytes=MAX_SETTINGS_BYTES, follows_links=True), _Loader) or {})
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        what = " ".join(str(error).split())
        raise InvalidValueError(f"{path}: {what}", legal="keys with values, in YAML", remedy="correct it") from None
    written, faults = dict(payload), list(_unsupported(kind, payload))
    left = {key: value for key, value in payload.items() if value not in (None, {})}
    found = config.read_section(kind, left, where=f"{path}: ", faults=faults)
    return found, [
        f"{path}: {key} is {'left out' if value is ... else repr(value)}: {text}"
        for keys, applies, text in NOTICES
        for key in keys.split()
        if key in kind.model_fields and applies(found, value := written.get(key, ...))
    ]


def _unsupported(kind: type[Section], payload: Any) -> Iterator[InvalidValueError]:
    """Take the keys of UNSUPPORTED out of a file; yield an error for each row that asks for something."""
    for sections, keys, reason, remedy in UNSUPPORTED[kind]:
        for prefix, place in (each for section in sections.split(" ") for each in _places(payload, section)):
            wrong: dict[str, tuple[str, str]] = {}
            for pattern, sign, text in (term.groups() for term in re.finditer(r"([\w*]+)(=*)(\S*)", keys)):
                for name in matching(place, pattern) or [pattern] * (sign == "=="):
                    value, legal = place.pop(name, None), yaml.load(text, _Loader)
                    is_legal = value == legal and isinstance(value, bool) == isinstance(legal, bool)
                    if not is_legal and (value is not None or sign == "=="):
                        wrong[prefix + name] = "left out" if value is None else repr(value), text or "left out"
            said = ", ".join(f"{name} is {shown}" for name, (shown, _) in wrong.items())
            accepted = ", ".join(f"{name}: {text}" for name, (_, text) in wrong.items())
            if wrong:
                yield InvalidValueError(f"{said}: {reason}", legal=accepted, remedy=remedy.format(", ".join(wrong)))


def _places(place: Any, section: str, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each mapping of a section, with the prefix of its keys; in a list, each item's."""
    key, _, rest = section.partition(".")
    if isinstance(place, list):
        for number, item in enumerate(place):
            yield from _places(item, section, f"{prefix}{number}.")
    elif isinstance(place, dict):
        yield from _places(place.get(key), rest, f"{prefix}{key}.") if key else [(prefix, place)]
