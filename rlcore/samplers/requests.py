"""What is looked at of requests before anything is drawn."""

from collections.abc import Sequence

from rlcore.errors import InvalidValueError
from rlcore.models.config import DecoderConfig
from rlcore.types import SampleRequest, Tokenizer


def named(request: SampleRequest) -> str:
    """For people."""
    return f"sample {request.sample_index} of prompt {request.prompt.id}"


def check_options(config: DecoderConfig, tokenizer: Tokenizer, *, preempt_every: int) -> None:
    """Check what a sampler is built with. Raises InvalidValueError."""
    if preempt_every < 0:
        raise InvalidValueError(f"preempt_every {preempt_every}", legal="0 (never) or more")
    if tokenizer.vocab_size > config.vocab_size:
        raise InvalidValueError(
            f"a tokenizer of {tokenizer.vocab_size} tokens",
            legal=f"up to {config.vocab_size}, the decoder's vocabulary",
        )


def check_requests(requests: Sequence[SampleRequest], config: DecoderConfig) -> None:
    """Raises InvalidValueError, naming the request, for one this decoder cannot do."""
    for request in requests:
        if request.beams is not None:
            raise InvalidValueError(
                f"{named(request)} asks for items after its completion",
                legal="beams of None where completions are drawn",
                remedy="sample it with rlcore.samplers.two_stage.sample_two_stage",
            )
        tokens, max_tokens = request.prompt.tokens, request.params.max_tokens
        if not tokens:
            raise InvalidValueError(f"{named(request)} has no tokens", legal="a prompt of at least one token")
        if min(tokens) < 0 or max(tokens) >= config.vocab_size:
            raise InvalidValueError(
                f"{named(request)} has token {max(tokens) if min(tokens) >= 0 else min(tokens)}",
                legal=f"0 to {config.vocab_size - 1}, the decoder's vocabulary",
                remedy="the tokenizer of this decoder",
            )
        if len(tokens) + max_tokens > config.max_length:
            raise InvalidValueError(
                f"{named(request)} has {len(tokens)} tokens and asks for {max_tokens} more",
                legal=f"up to {config.max_length} together, the decoder's max_length",
                remedy="a smaller sampling.max_tokens, or shorter prompts",
            )
