"""Run as a program: whether a server computes with the weights of a checkpoint, by log-probabilities of fixed prompts.

    served_checkpoint CHECKPOINT URL [MODEL]

Prints one JSON line: {"model", "num_tokens", "prompt", "decoded", "rounding", "shuffled"}, mean distances in nats, or
{"what", "legal", "remedy"} of what the user can mend. The forward pass here is rlcore's decoder in float32, which
shares no code with the server. The prompts are token ids, so that no tokenizer is needed.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from rlcore.errors import InvalidValueError, RlcoreError
from rlcore.keys import key
from rlcore.models.checkpoints import load
from rlcore.models.decoder import Decoder
from rlcore.weights.canary import policy_logprobs
from rlcore.weights.completions_api import CompletionsServer

NUM_PROMPTS, NUM_TOKENS, NUM_DECODED = 4, 160, 4
"""Prompts are longer than the largest block of vLLM's prefix cache, 128, so that keys of older weights show."""
MIN_TOKENS = 8


def served_checkpoint(checkpoint: Path, url: str, model: str = "") -> dict[str, Any]:
    """Return the distances of a server's log-probabilities from the checkpoint's, and what they are compared with.

    Raises RlcoreError for a checkpoint that cannot be read, and for a server that does not answer as vLLM's does.
    """
    server = CompletionsServer(url)
    decoder = load(checkpoint, dtype=torch.float32)
    name, longest = server.model(model)
    vocab_size = decoder.config.vocab_size
    length = min(NUM_TOKENS, (min(longest, decoder.config.max_length) if longest else decoder.config.max_length) - 8)
    if length < MIN_TOKENS:
        raise InvalidValueError(f"sequences of {longest} tokens at most", legal=f"{MIN_TOKENS + 8} or more")
    prompts = [[key("served", row, at) % vocab_size for at in range(length)] for row in range(NUM_PROMPTS)]
    scores = [server.score(name, prompt, NUM_DECODED) for prompt in prompts]
    sequences = [torch.tensor([*prompt, *score.decoded_tokens]) for prompt, score in zip(prompts, scores, strict=True)]
    _check_tokens(sequences, vocab_size)
    own = _logprobs(decoder, sequences)
    given = [torch.tensor([*score.prompt, *score.decoded]) for score in scores]
    rounded = _logprobs(load(checkpoint, dtype=torch.bfloat16), sequences)
    return {
        "model": name,
        "num_tokens": sum(map(len, own)),
        "prompt": _distance(own, given, 0, length - 1),
        "decoded": _distance(own, given, length - 1, None),
        "rounding": _distance(own, rounded, 0, None),
        "shuffled": dict(_shuffled_distances(decoder, sequences, own)),
    }


def _check_tokens(sequences: Sequence[Tensor], vocab_size: int) -> None:
    largest = max(int(sequence.max()) for sequence in sequences)
    if largest >= vocab_size:
        raise InvalidValueError(
            f"the server decoded token {largest}", legal=f"tokens below {vocab_size}: the checkpoint's vocabulary"
        )


def _logprobs(decoder: Decoder, sequences: Sequence[Tensor]) -> list[Tensor]:
    return [policy_logprobs(decoder, sequence).float() for sequence in sequences]


def _distance(own: Sequence[Tensor], given: Sequence[Tensor], first: int, last: int | None) -> float:
    """Return the mean distance over the tokens of a slice of each sequence; NaN if one is NaN."""
    return fmean(float((a - b)[first:last].abs().mean()) for a, b in zip(own, given, strict=True))


def _shuffled_distances(
    decoder: Decoder, sequences: Sequence[Tensor], own: Sequence[Tensor]
) -> Iterator[tuple[str, float]]:
    """Yield, for the first, middle and last layer, the distance if the rows of its last matrix were shuffled."""
    last = decoder.config.num_layers - 1
    for number in sorted({0, last // 2, last}):
        parameter = dict(decoder.named_parameters())[f"layers.{number}.down"]
        with _shuffled(parameter):
            yield f"layer {number}", _distance(own, _logprobs(decoder, sequences), 0, None)


@contextmanager
@torch.no_grad()
def _shuffled(parameter: Tensor) -> Iterator[None]:
    kept = parameter.clone()
    parameter.copy_(kept[torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))])
    yield
    parameter.copy_(kept)


def main(words: Sequence[str]) -> None:
    """Print the line."""
    checkpoint, url, *model = words
    try:
        found = served_checkpoint(Path(checkpoint), url, *model)
    except RlcoreError as error:
        found = {"what": error.what, "legal": error.legal, "remedy": error.remedy}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
