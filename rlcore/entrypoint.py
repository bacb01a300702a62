"""A whole run, from a configuration to trained weights: the entry of this package's scenarios.

    read and check ─▶ task, model, level ─▶ announce ─▶ warm start (or resume) ─▶ steps ─▶ evaluation, checkpoint

One thread; one process, or those of a deployment. What is recorded of a step is recorded between begin_step and
end_step; the warm start and the first sync come before, so that a resumed run has the same steps, and the warm start is
recorded in the first of them.
"""

import traceback
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlcore.algorithms.named import ADVANTAGES, LOSSES, function_of
from rlcore.checkpoint import load_newest
from rlcore.checks import Checks
from rlcore.config import GrpoSection, PpoSection, RunConfig, read_config
from rlcore.data.content import content_of
from rlcore.data.environments import check_environment
from rlcore.data.tasks import Task, make_task
from rlcore.determinism import at_level, check_level_of_device, kernels_of
from rlcore.distributed.restarts import run_with_restarts
from rlcore.errors import CheckpointError, InvalidValueError, RewardError
from rlcore.log import Clock, DescribedRecorder, Recorder, RunLog, announcement
from rlcore.memory import keep_freed_memory
from rlcore.models.build import build_model
from rlcore.models.decoder import Decoder
from rlcore.numerics.probe import num_threads
from rlcore.resume import DIRECTORY, check_state, resume
from rlcore.rewards.reward_model import add_reward_model
from rlcore.samplers.build import build_sampler, check_level_of_sampler, check_sampler
from rlcore.train import TrainState, beam_params, loop, warm_start
from rlcore.trainers.deployment import deployed
from rlcore.trainers.remote import builder
from rlcore.types import Tokenizer

if TYPE_CHECKING:
    from rlcore.trainers.worker import ModelWorker

REWARD_ERROR = "reward_error.txt"
"""File of a run's directory: the traceback of a reward function that failed."""


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Recorder) -> None:
    """Train as `config` says, at a level of determinism; everything is written below `directory`.

    Raises InvalidValueError for a configuration that cannot be, LevelError, NonFiniteError, CheckpointError.
    """
    train(read_config(config), level=level, directory=directory, recorder=recorder)


def config_schema() -> dict[str, Any]:
    """Return the JSON schema of the configurations that `run` takes."""
    return RunConfig.model_json_schema()


def train(config: RunConfig, *, level: str, directory: Path, recorder: Recorder) -> TrainState:
    """Train as a configuration that has been read says; return the state at the end."""
    check(config, level)
    keep_freed_memory()
    tokenizer, decoder = build_model(config)
    context, num_new = decoder.config.max_length, num_new_tokens(config, tokenizer)
    task = make_task(config.task, tokenizer, config.seed, context=context, num_new_tokens=num_new)
    threads = config.runtime.training_threads, config.runtime.sampling_threads
    dtype, device, length = decoder.embedding.dtype, config.model.device, longest_sequence(task, num_new)
    held = at_level(level, decoder.config, dtype=dtype, device=device, length=length, threads=threads)
    log, content = RunLog(directory, config.output), content_of(config, task) | kernels_of(level, device)
    if isinstance(recorder, DescribedRecorder):
        recorder.describe(content)

    def start(num_restarts: int) -> TrainState:
        own = resumed_config(config, directory) if num_restarts else config
        policy = build_model(own)[1] if num_restarts else decoder  # the last start has trained it
        with deployed(own, level, length, recorder, log.say) as workers:
            given = own, level, task, tokenizer, policy
            state, first = prepare(*given, recorder=recorder, log=log, workers=workers, content=content)
            loop(state, first, directory, log)
            return state

    max_restarts = config.deployment.max_restarts if config.deployment.on_worker_death == "restart" else None
    with held, num_threads(threads[0]):  # else torch's own number, which is that of the cores
        num_parameters = sum(each.numel() for each in decoder.parameters())
        log.say(announcement(config, level=level, num_parameters=num_parameters, num_unused=task.num_unused))
        try:
            return run_with_restarts(start, max_restarts, log.say)
        except RewardError as error:  # with the user's own frames, which the message has no room for
            directory.mkdir(parents=True, exist_ok=True)
            (directory / REWARD_ERROR).write_text("".join(traceback.format_exception(error)), "utf-8")
            raise
        finally:
            log.close()


def check(config: RunConfig, level: str) -> None:
    """Check what can be checked before anything is built. Raises InvalidValueError and LevelError."""
    reward_model, environment = config.task.reward_model, config.task.environment
    for name, directory_given in (
        ("model.path", config.model.path),
        ("model.lora.path", config.model.lora.path if config.model.lora else ""),
        ("output.resume", config.output.resume),
        ("deployment.offload_directory", config.deployment.offload_directory),
        ("task.reward_model.path", reward_model.path if reward_model else ""),
        ("task.environment.answers", str(Path(environment.answers).parent) if environment else ""),
    ):
        if directory_given and not Path(directory_given).is_dir():
            raise InvalidValueError(f"{name} {directory_given!r}", legal="a directory that exists")
    if isinstance(config.algorithm, GrpoSection):
        function_of(config.algorithm.advantage, ADVANTAGES)
        function_of(config.algorithm.loss, LOSSES)
    if environment is not None:
        check_environment(environment, config.sampling.stop_strings, level)
    check_device(config.model.device, level)
    check_sampler(config)
    check_level_of_sampler(config, level)
    if config.output.tensorboard and not find_spec("tensorboard"):
        raise InvalidValueError(
            "output.tensorboard is true, and the package tensorboard is not installed",
            legal="false; metrics.jsonl has the same numbers",
            remedy="pip install 'rlharness[tensorboard]'",
        )


def check_device(name: str, level: str) -> None:
    """Raise InvalidValueError for a device that torch does not know or does not have here, LevelError for the level."""
    try:
        device = torch.device(name)
        check_level_of_device(level, name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidValueError(
            f"model.device {name!r}: {str(error).splitlines()[0]}",
            legal="cpu, or cuda where torch.cuda.is_available()",
        ) from error


def num_new_tokens(config: RunConfig, tokenizer: Tokenizer) -> int:
    """Return the tokens of a completion of the greatest length, and an item after it."""
    beams = beam_params(config, tokenizer)
    return config.sampling.max_tokens + (len(beams.forced) + beams.max_tokens if beams else 0)


def longest_sequence(task: Task, num_new_tokens: int) -> int:
    """Return the tokens of the longest prompt with all that may follow it: with each turn of an environment."""
    if task.environments is None:
        return task.longest_prompt + num_new_tokens
    section, context = task.environments.section, task.environments.context
    num_answers = section.max_turns + 1  # the first one is that of the reset
    most = section.max_turns * num_new_tokens + num_answers * section.max_answer_tokens
    return min(context, task.longest_prompt + most)


def resumed_config(config: RunConfig, directory: Path) -> RunConfig:
    """Return the configuration that continues from the run's own newest checkpoint; unchanged if there is none yet."""
    if load_newest(directory / DIRECTORY) is None:
        return config
    output = config.output.model_copy(update={"resume": str(directory), "resume_step": None})
    return config.model_copy(update={"output": output})


def prepare(
    config: RunConfig,
    level: str,
    task: Task,
    tokenizer: Tokenizer,
    decoder: Decoder,
    *,
    recorder: Recorder,
    log: RunLog,
    workers: "ModelWorker | None" = None,
    content: Mapping[str, str] | None = None,
) -> tuple[TrainState, int]:
    """Build what a step needs, warm or from a checkpoint; return it with the number of the first step.

    `workers` is the handle of those that train the models, None to train them in this process; `content` is what the
    run is made of, None to resume with any.
    """
    longest = longest_sequence(task, num_new_tokens(config, tokenizer))
    task = add_reward_model(
        task, config, level, tokenizer=tokenizer, decoder=decoder, directory=log.directory, report=log.say
    )
    record, build = builder(config, decoder, recorder, workers)
    state = TrainState(
        config=config,
        level=level,
        task=task,
        tokenizer=tokenizer,
        policy=build("policy"),
        sampler=build_sampler(config, decoder, tokenizer, longest=longest, report=log.say),
        record=record,
        clock=Clock(config.model.device),
        kl_coef=config.algorithm.kl_coef,
        content=content or {},
    )
    if not config.output.resume and config.warm_start.num_steps:
        warm_start(state, log)
    if isinstance(config.algorithm, PpoSection):
        state.critic = build("critic")
    if config.algorithm.kl_coef:
        state.reference = build("reference")
    first = 0
    if config.output.resume:
        found = resume(state, Path(config.output.resume))
        first = found.step
        if first >= config.training.num_steps:
            raise CheckpointError(
                f"{found.path} has all {config.training.num_steps} steps of this run",
                remedy="a larger training.num_steps, where the learning rate is constant",
            )
        check_state(state, found)
        log.say("\n".join([*(f"skipped {reason}" for reason in found.skipped), f"step {first} from {found.path}"]))
    state.checks = Checks(state, log.say)
    return state, first
