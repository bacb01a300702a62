"""The most probable next tokens of sequences, computed by a decoder in this process.

A context that requests share is read once a pass; its keys and values are copied for each of them, and what is their
own is read after it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.errors import InvalidValueError, NonFiniteError
from rlcore.models.cache import KeyValueCache
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import log_softmax
from rlcore.samplers.batching import PREFILL_TOKENS
from rlcore.samplers.next_tokens import NextToken, NextTokenRequest


def check_next_token_requests(requests: Sequence[NextTokenRequest], vocab_size: int, max_length: int) -> None:
    """Raise InvalidValueError for a sequence that this decoder cannot read."""
    for request in requests:
        sequence = request.sequence
        if not request.context or not 1 <= len(sequence) < max_length:
            raise InvalidValueError(
                f"a next token after {len(request.context)} + {len(request.tokens)} tokens",
                legal=f"a context of at least one token, and up to {max_length - 1} together",
                remedy="shorter prompts, reasonings or items",
            )
        if wrong := [token for token in sequence if not 0 <= token < vocab_size]:
            raise InvalidValueError(
                f"a next token after token {wrong[0]}",
                legal=f"0 to {vocab_size - 1}, the decoder's vocabulary",
                remedy="the tokenizer of this decoder",
            )
        if request.num_tokens < 1:
            raise InvalidValueError(f"{request.num_tokens} next tokens", legal="1 or more")


def most_probable(
    decoder: Decoder, requests: Sequence[NextTokenRequest], *, num_tokens_known: int, concurrency: int
) -> list[list[NextToken]]:
    """Return the answers to requests, up to `concurrency` of them in one pass.

    Tokens from `num_tokens_known` on are never among them. Raises NonFiniteError for a log-probability that is NaN.
    """
    found: dict[int, list[NextToken]] = {}
    for has_own in (False, True):
        numbers = [number for number, request in enumerate(requests) if bool(request.tokens) is has_own]
        for begin in range(0, len(numbers), concurrency):
            part = numbers[begin : begin + concurrency]
            asked = [requests[number] for number in part]
            found.update(zip(part, _best(_logits(decoder, asked), asked, num_tokens_known), strict=True))
    return [found[number] for number in range(len(requests))]


def _logits(decoder: Decoder, requests: Sequence[NextTokenRequest]) -> Tensor:
    """Read sequences, either all with tokens of their own or none -> [requests, vocabulary] after the last of each."""
    contexts = list(dict.fromkeys(request.context for request in requests))
    longest = max(map(len, contexts))
    most_own = max(len(request.tokens) for request in requests)
    cache = KeyValueCache.empty(decoder.config, len(requests), longest + most_own, like=decoder.embedding)
    at_once = max(1, PREFILL_TOKENS // longest)
    ends = torch.cat(
        [
            _read(decoder, contexts[at : at + at_once], cache.slots(at, min(at + at_once, len(contexts))))
            for at in range(0, len(contexts), at_once)
        ]
    )
    slots = {context: slot for slot, context in enumerate(contexts)}
    which = torch.tensor([slots[request.context] for request in requests], device=ends.device)
    if not most_own:
        return decoder.logits(ends)[which]
    cache.spread(0, which, longest)
    starts = [len(request.context) for request in requests]
    return decoder.logits(_read(decoder, [request.tokens for request in requests], cache, starts))


def _read(
    decoder: Decoder, parts: Sequence[tuple[int, ...]], cache: KeyValueCache, starts: Sequence[int] | None = None
) -> Tensor:
    """Read a part of each sequence into its slot -> the stream at its last token: [parts, width]."""
    lengths = [len(part) for part in parts]
    longest = max(lengths)
    tokens = torch.tensor([(*part, *(0,) * (longest - len(part))) for part in parts], device=decoder.embedding.device)
    hidden = decoder.extend(tokens, cache, starts or [0] * len(parts))
    return hidden[torch.arange(len(parts)), torch.tensor(lengths) - 1]


def _best(logits: Tensor, requests: Sequence[NextTokenRequest], num_tokens_known: int) -> list[list[NextToken]]:
    """Choose from logits [requests, vocabulary]; log-probabilities are the trainer's operation, of all its tokens."""
    logprobs = logprobs_at(logits, [request.temperature for request in requests])
    if bool((is_nan := logprobs.isnan().any(-1)).any()):
        raise not_finite(requests[int(is_nan.nonzero()[0])])
    tokens, values = ranked(logprobs, num_tokens_known, max(request.num_tokens for request in requests))
    return [
        [NextToken(*pair) for pair in zip(own, falling, strict=True) if pair[1] > float("-inf")][: request.num_tokens]
        for request, own, falling in zip(requests, tokens.tolist(), values.tolist(), strict=True)
    ]


def logprobs_at(logits: Tensor, temperatures: Sequence[float]) -> Tensor:
    """Return the log-probabilities fp32 [rows, vocabulary] of logits, each row at its temperature; 0 counts as 1."""
    logprobs = torch.empty_like(logits, dtype=torch.float32)
    divisors = [temperature or 1.0 for temperature in temperatures]
    for divisor in sorted(set(divisors)):
        rows = [row for row, given in enumerate(divisors) if given == divisor]
        logprobs[rows] = log_softmax(logits[rows] if divisor == 1.0 else logits[rows] / divisor)
    return logprobs


def ranked(logprobs: Tensor, num_tokens_known: int, most: int) -> tuple[Tensor, Tensor]:
    """Return the first `most` tokens of each row below `num_tokens_known`, and their log-probabilities, falling.

    Among equal log-probabilities the lower token comes first.
    """
    falling, order = torch.sort(logprobs[:, :num_tokens_known], dim=-1, descending=True, stable=True)
    return order[:, :most], falling[:, :most]


def not_finite(request: NextTokenRequest) -> NonFiniteError:
    """Return the error of a sequence after which a log-probability is NaN."""
    return NonFiniteError(
        f"next tokens after {list(request.sequence)[-8:]} have log-probabilities that are NaN",
        remedy="check the weights that the sampler received: logits are NaN or infinite",
        phases=("rollout",),
    )
