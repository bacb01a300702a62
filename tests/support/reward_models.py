"""A reward model and its checkpoint for tests."""

from pathlib import Path

import torch

from rlcore.models.classifier import Classifier, save_classifier
from rlcore.models.config import DecoderConfig
from tests.support.samplers import TOKENIZER

CONFIG = DecoderConfig("qwen3", TOKENIZER.vocab_size, 64, 2, 2, 1, 32, 128, max_length=96)
"""Sizes that vLLM's attention takes."""


def classifier_of(config: DecoderConfig = CONFIG, *, spread: float = 3.0) -> Classifier:
    """Random weights; the larger `spread`, the more scores depend on all tokens."""
    classifier = Classifier(config).initialise(5)
    with torch.no_grad():
        for parameter in classifier.decoder.parameters():
            if parameter.dim() == 2:
                parameter.mul_(spread)
    return classifier.requires_grad_(False)


def write_reward_model(directory: Path, config: DecoderConfig = CONFIG) -> Classifier:
    """Write a checkpoint with the tests' tokenizer; return its model."""
    classifier = classifier_of(config)
    save_classifier(classifier, directory, pad_id=TOKENIZER.pad_id)
    TOKENIZER.save(directory)
    return classifier


def sequences_of(num_sequences: int = 23) -> list[list[int]]:
    """Sequences of different lengths."""
    generator = torch.Generator().manual_seed(2)
    lengths = torch.randint(2, 40, (num_sequences,), generator=generator).tolist()
    return [torch.randint(3, TOKENIZER.vocab_size, (each,), generator=generator).tolist() for each in lengths]
