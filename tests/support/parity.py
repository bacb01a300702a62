"""Requests whose prompts share a long prefix, and the trainer's log-probabilities of what was drawn for them."""

from collections.abc import Sequence

import pytest
import torch

from rlcore.data.trajectory import Trajectory
from rlcore.errors import NonFiniteError
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.samplers.base import NextTokenRequest, NextTokenSampler
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.seeds import completion_key
from rlcore.types import Prompt, SampleRequest, SamplingParams
from tests.conformance.sampler_suite import bits
from tests.support.samplers import TOKENIZER

FEW_BLOCKS = 16
"""Blocks of 8 tokens: memory for fewer than two of the requests, whose greatest length is 96."""


def requests_of(num_samples: int = 4, params: SamplingParams | None = None) -> list[SampleRequest]:
    """Completions of prompts that have 40 tokens in common, and 3 to 30 of their own."""
    generator = torch.Generator().manual_seed(5)
    shared = torch.randint(3, TOKENIZER.vocab_size, (40,), generator=generator).tolist()
    wanted = []
    for number in range(6):
        own = torch.randint(3, TOKENIZER.vocab_size, (3 + 5 * number,), generator=generator).tolist()
        prompt = Prompt(f"p{number}", "", (*shared, *own))
        for index in range(num_samples):
            key = completion_key(seed=0, step=3, prompt_id=prompt.id, sample_index=index)
            wanted.append(SampleRequest(prompt, index, key, params or SamplingParams(max_tokens=20)))
    return wanted


def trainer_logprobs(decoder: Decoder, trajectory: Trajectory) -> list[float]:
    """Return what one pass over the whole sequence gives the completion's tokens, as training computes it."""
    tokens, drawn = torch.tensor(trajectory.tokens), torch.tensor(trajectory.completion_tokens)
    logits = decoder.logits(decoder.hidden(tokens[None, :-1]))[0, -len(drawn) :]
    temperature = trajectory.request.params.temperature or 1.0
    return token_logprobs(logits / temperature, drawn).tolist()


def num_different(decoder: Decoder, trajectories: Sequence[Trajectory]) -> int:
    """Count the tokens whose log-probability is not the trainer's."""
    return sum(
        mine != theirs
        for each in trajectories
        for mine, theirs in zip(each.completion_logprobs, trainer_logprobs(decoder, each), strict=True)
    )


def check_nan_leaves_nothing(sampler: NextTokenSampler, decoder: Decoder) -> None:
    """Check that weights that are NaN are reported, and that nothing of them is left once others are written."""
    requests, after = requests_of(2), [NextTokenRequest((3, 4), (5,), 3, 1.0)]
    local = TorchSampler(decoder, TOKENIZER)
    wanted, best = bits(local.sample(requests)), local.next_tokens(after)
    target = sampler.weight_target
    for fails in (lambda: sampler.sample(requests), lambda: sampler.next_tokens(after)):
        target.begin(1)
        nan = torch.full_like(decoder.embedding.detach(), torch.nan)  # so that keys and values are NaN too
        target.write([("embedding", nan)])
        target.commit("")
        with pytest.raises(NonFiniteError, match=r"(?i)nan"):
            fails()
        target.begin(2)
        target.write([("embedding", decoder.embedding.detach())])
        target.commit("")
        assert bits(sampler.sample(requests)) == wanted and sampler.next_tokens(after) == best
