"""Build what a run needs: tokenizer, models, optimizers and sampler, warm or from a checkpoint."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlcore.checkpoints.resume import check_state, resume
from rlcore.checks.match_checks import MatchReports
from rlcore.checks.observers import checks_of_level
from rlcore.config import PpoSection, RunConfig
from rlcore.controllers.evaluation import evaluate
from rlcore.data.tasks import Task
from rlcore.errors import CheckpointError
from rlcore.log import Record, Recorder
from rlcore.models.decoder import Decoder
from rlcore.observability.events import ModelsBuilt, RunBegins
from rlcore.observability.logs import RunLog
from rlcore.observability.mismatches import Mismatches
from rlcore.observability.observers import Observers
from rlcore.observability.phases import Phases
from rlcore.observability.recording import StepRecorder
from rlcore.observability.warm_start_record import WarmStart
from rlcore.recipes.rollout import beam_params
from rlcore.recipes.warm_start import warm_start
from rlcore.rewards.reward_model import add_reward_model
from rlcore.samplers.build import build_sampler
from rlcore.samplers.two_stage import check_can_search
from rlcore.train_state import TrainState
from rlcore.trainers.remote import RecordWithWorkers, build_remote
from rlcore.trainers.trainer import Models
from rlcore.types import Tokenizer
from rlcore.weights.sync import sync

if TYPE_CHECKING:
    from rlcore.trainers.worker import ModelWorker


def longest_sequence(task: Task, config: RunConfig, tokenizer: Tokenizer) -> int:
    """Return the tokens of the longest prompt with a completion of the greatest length, and an item after it."""
    beams = beam_params(config, tokenizer)
    num_item_tokens = len(beams.forced) + beams.max_tokens if beams else 0
    longest_prompt = max(len(prompt.tokens) for prompt in (*task.train, *task.heldout))
    return longest_prompt + config.sampling.max_tokens + num_item_tokens


def prepare(
    config: RunConfig,
    level: str,
    task: Task,
    *,
    tokenizer: Tokenizer,
    decoder: Decoder,
    recorder: Recorder,
    log: RunLog,
    workers: "ModelWorker | None" = None,
) -> tuple[TrainState, int]:
    """Build what a step needs; return it with the number of the first step: 0, or where an earlier run stopped.

    `workers` is the handle of those that train the models, None to train them in this process.
    """
    phases, mismatches, checks = Phases(config.model.device), Mismatches(), checks_of_level(level)
    reports = (MatchReports(log.say),) if config.output.shows_mismatch else ()
    record = Record(recorder) if workers is None else RecordWithWorkers(recorder, workers)
    observers = Observers(phases, mismatches, *reports, *checks, StepRecorder(record))
    observers.emit(RunBegins(config, task.train))
    longest = longest_sequence(task, config, tokenizer)
    task = add_reward_model(
        task, config, level, tokenizer=tokenizer, decoder=decoder, directory=log.directory, report=log.say
    )

    models = Models(config, decoder, record)
    build = models.build if workers is None else partial(build_remote, config, workers)
    state = TrainState(
        config=config,
        level=level,
        task=task,
        tokenizer=tokenizer,
        policy=build("policy"),
        sampler=build_sampler(config, decoder, tokenizer, longest=longest, report=log.say),
        observers=observers,
        phases=phases,
        mismatches=mismatches,
        kl_coef=config.algorithm.kl_coef,
    )
    if config.sampling.two_stage is not None:
        check_can_search(state.sampler)
    if not config.output.resume and config.warm_start.num_steps:
        state.warm_start = warm_up(state, log)
    if isinstance(config.algorithm, PpoSection):
        with observers.stage("critic"):
            state.critic = build("critic")
    if config.algorithm.kl_coef:
        state.reference = build("reference")
    observers.emit(ModelsBuilt({name: trainer.model for name, trainer in models.built.items()}))
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
    return state, first


def warm_up(state: TrainState, log: RunLog) -> WarmStart:
    """Teach the policy the task's answers, if asked for until training prompts are answered well enough."""
    section, prompts = state.config.warm_start, state.task.train[: len(state.task.heldout)]

    def is_enough() -> bool:
        if section.target_reward is None:
            return False
        sync(state.policy.weights(), state.sampler.weight_target, 0, None)
        return evaluate(state, prompts, step=0).reward_mean >= section.target_reward

    log.phase("warm start", section.num_steps)
    return warm_start(state, report=lambda loss: log.advance(loss=loss), is_enough=is_enough)
