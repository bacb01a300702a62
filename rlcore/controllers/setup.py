"""Build what a run needs: tokenizer, models, optimizers and sampler, warm or from a checkpoint."""

import copy
from pathlib import Path

from rlcore.checkpoints.resume import check_state, resume
from rlcore.checks.step_checks import check_undrawn
from rlcore.checks.update_checks import check_own_memory
from rlcore.config import PpoSection, RunConfig
from rlcore.controllers.evaluation import evaluate
from rlcore.errors import CheckpointError
from rlcore.models.checkpoints import DTYPES, load
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer, load_tokenizer
from rlcore.models.value_head import Critic
from rlcore.observability.logs import RunLog
from rlcore.observability.warm_start_record import WarmStart
from rlcore.recipes.warm_start import warm_start
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.tasks.base import Task
from rlcore.tasks.make import alphabet
from rlcore.trace import Recorder
from rlcore.train_state import Engine
from rlcore.trainers.local import Learner, adamw
from rlcore.types import Tokenizer
from rlcore.weights.sync import sync


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
    return engine, first


def warmed(engine: Engine, log: RunLog) -> WarmStart:
    """Teach the policy the task's answers, until training prompts are answered well enough where that is asked for."""
    section, prompts = engine.config.warm_start, engine.task.train[: len(engine.task.heldout)]

    def is_enough() -> bool:
        if section.target_reward is None:
            return False
        sync(engine.decoder, engine.sampler, 0, None)
        return evaluate(engine, prompts, step=0).reward_mean >= section.target_reward

    log.phase("warm start", section.num_steps)
    return warm_start(engine, told=lambda loss: log.advance(loss=loss), is_enough=is_enough)


def critic_of(decoder: Decoder) -> Critic:
    """A critic that reads as the policy does, and expects nothing yet."""
    critic = Critic(decoder.config).to(decoder.embedding.device, decoder.embedding.dtype)
    critic.decoder.load_state_dict({name: value for name, value in decoder.state_dict().items() if name != "head"})
    return critic
