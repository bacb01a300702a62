"""What is looked at of requests before anything is drawn."""

from collections.abc import Sequence

from rlcore.errors import InvalidValueError
from rlcore.models.config import DecoderConfig
from rlcore.types import SampleRequest


def named(request: SampleRequest) -> str:
    """For people."""
    return f"sample {request.sample_index} of prompt {request.prompt.id}"


def check_requests(requests: Sequence[SampleRequest], config: DecoderConfig) -> None:
    """Raises InvalidValueError, naming the request, for one this decoder cannot do."""
    for request in requests:
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
