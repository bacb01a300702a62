"""A decoder that ends in one number for a whole sequence: a reward model, as Hugging Face's checkpoints have it.

Their architecture is the family's `ForSequenceClassification` with one label: a decoder without a head, and
`score.weight` [1, width], read at the last token.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.errors import InvalidValueError
from rlcore.models.checkpoints import CONFIG, Part, check_size, hub_parts, hub_tensors, own_dtype, read_weights, write
from rlcore.models.config import (
    ARCHITECTURES,
    DecoderConfig,
    read_architecture,
    read_config,
    read_json,
    written_config,
)
from rlcore.models.decoder import Decoder
from rlcore.numerics.norms import last_sum

CLASSIFIERS = {name.replace("ForCausalLM", "ForSequenceClassification"): name for name in ARCHITECTURES}
"""Architecture of a classifier -> that of its decoder."""


class Classifier(nn.Module):
    """A decoder and a score head; `initialise` draws the weights."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.decoder = Decoder(replace(config, is_tied=True, lora=None))  # without a head of its own
        self.config = self.decoder.config
        self.score = nn.Parameter(torch.zeros(1, config.width))

    def initialise(self, seed: int) -> "Classifier":
        """Draw the weights; scores then have a standard deviation near 1."""
        self.decoder.initialise(seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.score.copy_(torch.randn(self.score.shape, generator=generator) * self.config.width**-0.5)
        return self

    def forward(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        """Score right-padded sequences: tokens [batch, length] and their lengths -> fp32 [batch].

        The product with the head is a sum over the row, whose bits do not depend on other rows.
        """
        hidden = self.decoder.hidden(tokens)
        last = hidden[torch.arange(len(lengths)), torch.tensor(lengths) - 1]
        return last_sum(last.float() * self.score.float())


def _parts(config: DecoderConfig) -> list[Part]:
    of_decoder = [replace(part, parameter=f"decoder.{part.parameter}") for part in hub_parts(config)]
    return [*of_decoder, Part("score.weight", "score", 0, 1)]


def save_classifier(classifier: Classifier, directory: Path, *, pad_id: int) -> None:
    """Write config.json and the weights, as transformers and vLLM load them; `pad_id` fills a batch there."""
    dtype = str(classifier.score.dtype).removeprefix("torch.")
    config = written_config(classifier.config, dtype)
    (architecture,) = [name for name, causal in CLASSIFIERS.items() if [causal] == config["architectures"]]
    labels = {"id2label": {"0": "reward"}, "label2id": {"reward": 0}, "pad_token_id": pad_id}
    tensors = hub_tensors(classifier, _parts(classifier.config))
    write(directory, tensors, {**config, "architectures": [architecture], **labels})


def read_classifier_config(found: dict[str, Any]) -> DecoderConfig:
    """Return the decoder that a classifier's config.json describes.

    Raises InvalidValueError for another architecture and for a number of labels that is not 1.
    """
    architecture = read_architecture(found, CLASSIFIERS, kind="a reward model of architecture")
    labels = found.get("id2label")
    num_labels = found.get("num_labels", len(labels) if isinstance(labels, dict) else 2)  # transformers' default is 2
    if num_labels != 1:
        raise InvalidValueError(
            f"a reward model of {num_labels!s:.60} labels",
            legal="1 label, whose logit is the reward",
            remedy='save it with num_labels=1, or write "id2label": {"0": "reward"} into its config.json',
        )
    return read_config({**found, "architectures": [CLASSIFIERS[architecture]], "tie_word_embeddings": True})


def load_classifier(directory: Path, *, device: str = "cpu") -> Classifier:
    """Read a classifier from a checkpoint, in its own type.

    Raises InvalidValueError for a model that is not supported, CheckpointError for weights that do not fit.
    """
    found = read_json(directory / CONFIG)
    config = read_classifier_config(found)
    check_size(directory, config)
    classifier = Classifier(config).to(device, own_dtype(found))
    read_weights(classifier, _parts(config), directory)
    return classifier.requires_grad_(False)
