"""Build the reward of a model, as a configuration names it; vLLM is imported only if it serves the model."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlcore.config import RunConfig
from rlcore.data.rewards import Reward
from rlcore.data.tasks import Task
from rlcore.determinism import at_level
from rlcore.errors import InvalidValueError, RlcoreError
from rlcore.keys import key
from rlcore.models.classifier import Classifier, load_classifier, save_classifier
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import load_tokenizer
from rlcore.rewards.reward_model import ModelReward, Scorer, TorchScorer
from rlcore.types import Tokenizer

NAME = "reward_model"
"""Name of the reward among the metrics, and of the directory of a model that is drawn here."""


def add_reward_model(
    task: Task,
    config: RunConfig,
    level: str,
    *,
    tokenizer: Tokenizer,
    decoder: Decoder,
    directory: Path,
    report: Callable[[str], None],
) -> Task:
    """Return the task with the reward of its model, if it has one.

    A model without a path has the policy's sizes and tokenizer, and is written to the run's directory first. Raises
    InvalidValueError for a model that cannot be served, or whose tokenizer cannot read a prompt, and CheckpointError.
    """
    section = config.task.reward_model
    if section is None:
        return task
    path = Path(section.path) if section.path else draw_reward_model(config.seed, tokenizer, decoder, directory / NAME)
    try:
        classifier = load_classifier(path, device=config.model.device)
        own = load_tokenizer(path)
    except RlcoreError as error:
        raise InvalidValueError(
            f"task.reward_model.path {path}: {error.what}",
            legal=error.legal or "a directory with config.json, model.safetensors and tokenizer.json of a classifier",
            remedy=error.remedy or "name the checkpoint of a classifier, or none: a model is then drawn from the seed",
        ) from error
    if own.vocab_size > classifier.config.vocab_size:
        raise InvalidValueError(
            f"a tokenizer of {own.vocab_size} tokens for the reward model {path}",
            legal=f"up to {classifier.config.vocab_size}, its vocabulary",
        )
    max_length = min(section.max_length, classifier.config.max_length)
    num_parameters = sum(each.numel() for each in classifier.parameters())
    report(f"reward model: {path}, {num_parameters:,} parameters, by {section.backend}, up to {max_length} tokens")
    scorer = _scorer(config, classifier, path, max_length=max_length, level=level, report=report)
    reward = ModelReward(scorer, own, max_length, config.runtime.arrival_seed)
    for prompt in (*task.train, *task.heldout):
        reward.check_prompt(prompt.text)
    return replace(task, rewards=(*task.rewards, Reward(NAME, reward, section.weight)))


def draw_reward_model(seed: int, tokenizer: Tokenizer, decoder: Decoder, directory: Path) -> Path:
    """Write a classifier of a decoder's sizes whose weights are drawn from a seed; return its directory."""
    dtype = decoder.embedding.dtype
    classifier = Classifier(decoder.config).initialise(key("reward model", seed) >> 1).to(dtype)
    save_classifier(classifier, directory, pad_id=tokenizer.pad_id)
    tokenizer.save(directory)
    return directory


def _scorer(
    config: RunConfig, classifier: Classifier, path: Path, *, max_length: int, level: str, report: Callable[[str], None]
) -> Scorer:
    runtime, device, section = config.runtime, config.model.device, config.task.reward_model
    assert section is not None
    if section.backend == "torch":
        held = partial(
            at_level,
            level,
            classifier.config,
            dtype=classifier.score.dtype,
            device=device,
            length=max_length,
            threads=(runtime.training_threads,),
        )
        return TorchScorer(classifier, batch_size=runtime.concurrency, held=held)
    from rlcore.samplers.vllm.pooling import VllmScorer

    return VllmScorer(
        path,
        max_length=max_length,
        batch_size=runtime.concurrency,
        is_serial=level == "invariant",
        device=device,
        report=report,
    )
