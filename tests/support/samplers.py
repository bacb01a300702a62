"""Requests, decoders and samplers for tests."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch

from rlcore.data.trajectory import Trajectory
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer, HubTokenizer
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.seeds import completion_key
from rlcore.types import Prompt, SampleRequest, SamplingParams

TOKENIZER = CharacterTokenizer("abcdefghijklmnopqrstuvwxyz")
CONFIG = DecoderConfig("llama", TOKENIZER.vocab_size, 32, 2, 4, 2, 8, 44, max_length=96)
TEXTS = ("a", "hello", "world", "reversethis", "bb", "sampler", "xyzxyzxyzxyzxyzxyz", "gumbel")


@contextmanager
def whenever_decoded(tokenizer: HubTokenizer, call: Callable[[], object]) -> Iterator[None]:
    """Call a function inside whenever a sampler makes text of tokens with this tokenizer: that is amid its call."""
    decode = tokenizer.decode

    def decoded(tokens: Sequence[int]) -> str:
        call()
        return decode(tokens)

    with patch.object(tokenizer, "decode", decoded):
        yield


def decoder_of(
    family: str = "llama", dtype: torch.dtype = torch.float32, *, spread: float = 20.0, head_width: int = 8
) -> Decoder:
    """Random weights whose distributions are far from uniform: the more so, the larger `spread`."""
    decoder = Decoder(replace(CONFIG, family=family, head_width=head_width)).initialise(5)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 2:
                parameter.mul_(spread / 4)
    return decoder.to(dtype)


def request_of(
    text: str = "hello", sample_index: int = 0, *, params: SamplingParams | None = None, seed: int = 1
) -> SampleRequest:
    """One completion of a text."""
    prompt = Prompt(text, text, tuple(TOKENIZER.encode(text)))
    key = completion_key(seed=seed, step=0, prompt_id=text, sample_index=sample_index)
    return SampleRequest(prompt, sample_index, key, params or SamplingParams(max_tokens=24))


def requests_of(num_samples: int = 2, params: SamplingParams | None = None) -> list[SampleRequest]:
    """Some completions of each text."""
    return [request_of(text, sample, params=params) for text in TEXTS for sample in range(num_samples)]


@dataclass(frozen=True, slots=True)
class Said:
    """A trajectory of one completion, to the bit."""

    tokens: tuple[int, ...]
    logprob_bits: tuple[str, ...]
    reason: str

    @classmethod
    def of(cls, trajectory: Trajectory) -> "Said":
        """What must not change."""
        bits = map(float.hex, trajectory.completion_logprobs)
        return cls(trajectory.completion_tokens, tuple(bits), trajectory.stop_reason)


def said(trajectories: Sequence[Trajectory]) -> list[Said]:
    """Each to the bit."""
    return [Said.of(trajectory) for trajectory in trajectories]


def sampler_of(decoder: Decoder, *, concurrency: int = 64, preempt_every: int = 0) -> TorchSampler:
    """A sampler of the tests' tokenizer."""
    return TorchSampler(decoder, TOKENIZER, concurrency=concurrency, preempt_every=preempt_every)
