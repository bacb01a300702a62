"""A whole run, from a configuration to trained weights: the entry of this package's scenarios.

    read and check ─▶ task, model, level ─▶ announce ─▶ warm start (or resume) ─▶ steps ─▶ evaluation, checkpoint

One thread, one process. What is recorded of a step is recorded between begin_step and end_step; the warm start and the
first sync come before, so that a resumed run has the same steps, and the warm start is told in the first of them.
"""

import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlcore.config import GrpoSection, PpoSection, RunConfig, read_config
from rlcore.determinism import at_level, check_level
from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models.checkpoints import DTYPES, load
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer, load_tokenizer
from rlcore.models.value_head import Critic
from rlcore.numerics.probe import num_threads
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.tasks.base import Task
from rlcore.tasks.make import alphabet, make_task
from rlcore.trace import Recorder
from rlcore.training.announcement import announcement
from rlcore.training.engine import Engine
from rlcore.training.evaluation import evaluate
from rlcore.training.grpo import grpo_step
from rlcore.training.logs import RunLog
from rlcore.training.memory import keep_freed_memory
from rlcore.training.ppo import ppo_step
from rlcore.training.resume import DIRECTORY, check_state, resume, save_checkpoint
from rlcore.training.step_checks import check_undrawn
from rlcore.training.step_metrics import StepMetrics
from rlcore.training.update import Learner, adamw
from rlcore.training.update_checks import check_own_memory
from rlcore.training.warm_start import warm_start
from rlcore.training.warm_start_record import WarmStart
from rlcore.types import Tokenizer
from rlcore.weights.sync import sync

CURVE = {
    "reward_mean": "reward_mean",
    "loss": "loss",
    "gradient_norm": "grad_norm",
    "kl": "approx_kl",
    "entropy": "entropy",
    "completion_length": "completion_length",
}
"""Names in a trace's curve, and in metrics."""


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Recorder) -> None:
    """Train as `config` says, at a level of determinism; everything is written below `directory`.

    Raises InvalidValueError for a configuration that cannot be, LevelError, NonFiniteError, CheckpointError.
    """
    train(read_config(config), level=level, directory=directory, recorder=recorder)


def train(config: RunConfig, *, level: str, directory: Path, recorder: Recorder) -> Engine:
    """The same for a configuration that has been read; gives what is left at the end."""
    for name, directory_given in (("model.path", config.model.path), ("output.resume", config.output.resume)):
        if directory_given and not Path(directory_given).is_dir():
            raise InvalidValueError(f"{name} {directory_given!r}", legal="a directory that exists")
    check_device(config.model.device)
    # torch announces, where the first ragged tensor is made, that a function of torch.fx will be renamed.
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)
    keep_freed_memory()
    tokenizer, decoder = made_model(config)
    task = make_task(config.task, tokenizer, config.seed)
    longest = max(len(prompt.tokens) for prompt in (*task.train, *task.heldout)) + config.sampling.max_tokens
    dtype = decoder.embedding.dtype
    threads = config.perturbation.training_threads, config.perturbation.sampling_threads
    section = config.model
    held = at_level(
        level,
        decoder.config,
        dtype=dtype,
        device=section.device,
        length=longest,
        threads=threads,
        kernels=section.kernels,
    )
    with held, num_threads(threads[0]):  # whatever is computed by the way: torch's own number is that of the cores
        log = RunLog(directory, config.output)
        log.say(announcement(config, level=level, num_parameters=sum(each.numel() for each in decoder.parameters())))
        try:
            engine, first = prepared(
                config, level, task, tokenizer=tokenizer, decoder=decoder, recorder=recorder, log=log
            )
            loop(engine, first, directory, log)
        finally:
            log.close()
    return engine


def check_device(name: str) -> None:
    """Raises InvalidValueError for a device that torch does not know, or has not got here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InvalidValueError(
            f"model.device {name!r}: {str(error).splitlines()[0]}",
            legal="cpu, or cuda where torch.cuda.is_available()",
        ) from error


def made_model(config: RunConfig) -> tuple[Tokenizer, Decoder]:
    """A checkpoint's tokenizer and decoder, or new ones for the task."""
    section = config.model
    dtype = DTYPES[section.dtype]
    if section.path:
        return load_tokenizer(Path(section.path)), load(Path(section.path), dtype=dtype, device=section.device)
    tokenizer = CharacterTokenizer(alphabet(config.task.name, config.task.path))
    decoder_config = DecoderConfig(
        family=section.family,
        vocab_size=tokenizer.vocab_size,
        width=section.width,
        num_layers=section.num_layers,
        num_heads=section.num_heads,
        num_kv_heads=section.num_kv_heads,
        head_width=section.head_width,
        ffn_width=section.ffn_width,
        is_tied=section.is_tied,
    )
    return tokenizer, Decoder(decoder_config).initialise(config.seed).to(section.device, dtype)


def prepared(
    config: RunConfig,
    level: str,
    task: Task,
    *,
    tokenizer: Tokenizer,
    decoder: Decoder,
    recorder: Recorder,
    log: RunLog,
) -> tuple[Engine, int]:
    """Everything a step needs, and the number of the first step: 0, or where an earlier run stopped."""
    algorithm, optimizer, perturbation = config.algorithm, config.optimizer, config.perturbation
    engine = Engine(
        config=config,
        level=level,
        task=task,
        tokenizer=tokenizer,
        policy=Learner("policy", decoder, adamw(decoder, optimizer, optimizer.learning_rate), optimizer.learning_rate),
        sampler=TorchSampler(
            decoder, tokenizer, concurrency=perturbation.concurrency, preempt_every=perturbation.preempt_every
        ),
        recorder=recorder,
        kl_coef=algorithm.kl_coef,
    )
    if not config.output.resume and config.warm_start.num_steps:
        engine.warm_start = warmed(engine, log)
    if isinstance(algorithm, PpoSection):
        with check_undrawn("reference", "optimizer"):
            critic, rate = critic_of(decoder), algorithm.critic_learning_rate
        engine.critic = Learner("critic", critic, adamw(critic, optimizer, rate), rate)
    if algorithm.kl_coef:
        engine.reference = copy.deepcopy(decoder).requires_grad_(False)
    check_own_memory(engine.models)
    first = 0
    if config.output.resume:
        found = resume(engine, Path(config.output.resume))
        first = found.step
        if first >= config.training.num_steps:
            raise CheckpointError(
                f"{found.path} has all {config.training.num_steps} steps of this run",
                remedy="a larger training.num_steps, where the learning rate is constant",
            )
        check_state(engine, found)
        log.say("\n".join([*(f"skipped {reason}" for reason in found.skipped), f"step {first} from {found.path}"]))
    engine.receipt = sync(decoder, engine.sampler.weight_target, first, None)
    return engine, first


def warmed(engine: Engine, log: RunLog) -> WarmStart:
    """Teach the policy the task's answers, until training prompts are answered well enough where that is asked for."""
    section, prompts = engine.config.warm_start, engine.task.train[: len(engine.task.heldout)]

    def is_enough() -> bool:
        if section.target_reward is None:
            return False
        sync(engine.decoder, engine.sampler.weight_target, 0, None)
        return evaluate(engine, prompts, step=0).reward_mean >= section.target_reward

    log.phase("warm start", section.num_steps)
    return warm_start(engine, told=lambda loss: log.advance(loss=loss), is_enough=is_enough)


def critic_of(decoder: Decoder) -> Critic:
    """A critic that reads as the policy does, and expects nothing yet."""
    critic = Critic(decoder.config).to(decoder.embedding.device, decoder.embedding.dtype)
    critic.decoder.load_state_dict({name: value for name, value in decoder.state_dict().items() if name != "head"})
    return critic


def loop(engine: Engine, first: int, directory: Path, log: RunLog) -> None:
    """The steps from `first` on, with what is due between them."""
    output, num_steps = engine.config.output, engine.config.training.num_steps
    if first == 0:
        log.evaluation(0, evaluate(engine, engine.task.heldout, step=0))
    log.phase("training", num_steps, first)
    for step in range(first, num_steps):
        metrics = recorded_step(engine, step)
        told = metrics.told()
        log.step(step, told | engine.phases.taken())
        log.advance(reward=told.get("reward_mean", float("nan")), loss=told.get("loss", float("nan")))
        done, is_last = step + 1, step + 1 == num_steps
        if is_last or (output.evaluate_every and done % output.evaluate_every == 0):
            log.evaluation(done, evaluate(engine, engine.task.heldout, step=done))
        if is_last or (output.checkpoint_every and done % output.checkpoint_every == 0):
            save_checkpoint(engine, directory / DIRECTORY, done)


def recorded_step(engine: Engine, step: int) -> StepMetrics:
    """One step, its weights handed on, everything recorded."""
    check_level(engine.level)
    algorithm, recorder = engine.config.algorithm, engine.recorder
    recorder.begin_step(step)
    if step == 0 and engine.warm_start is not None:
        engine.warm_start.record(recorder)
        engine.warm_start = None
    if isinstance(algorithm, GrpoSection):
        metrics = grpo_step(engine, algorithm, step)
    else:
        metrics = ppo_step(engine, algorithm, step)
    with engine.phases("sync"):
        target = engine.sampler.weight_target
        engine.receipt = sync(engine.decoder, target, step + 1, engine.receipt, has_learned=metrics.has_learned)
    recorder.record("sync", "weights_digest", engine.receipt.weights_digest)
    told = metrics.told()
    recorder.end_step(**{name: told[ours] for name, ours in CURVE.items() if ours in told})
    return metrics
