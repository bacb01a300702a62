"""Values that pass between the parts of the engine before anything is sampled: prompts and requests.

    task ──Prompt──▶ trainer ──SampleRequest──▶ sampler ──Trajectory──▶ rewards ──▶ batch

`rlcore.data.trajectory` has what comes back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

Messages = Sequence[Mapping[str, Any]]
"""A conversation: {"role": "user", "content": "..."} and more, for a chat template."""


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Tokens, special ones included."""

    @property
    def eos_id(self) -> int:
        """What ends a completion."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """What ends a completion beside eos_id."""

    @property
    def pad_id(self) -> int:
        """Token that fills the positions after a sample's end; may be eos_id: no result depends on it."""

    def encode(self, text: str) -> list[int]:
        """Text to tokens, none added."""

    def encode_prompt(self, prompt: str | Messages) -> tuple[str, list[int]]:
        """Return the text of a prompt and its tokens: with those that the tokenizer's own template adds."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Tokens to text, without special tokens."""

    def save(self, directory: Path) -> None:
        """Write what transformers and vLLM load."""

    def is_saved_in(self, directory: Path) -> bool:
        """Return whether a directory holds this tokenizer as `save` writes it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What completions are asked for."""

    id: str
    """Of its content and occurrence: `rlcore.seeds.prompt_ids`."""
    text: str
    tokens: tuple[int, ...]
    """As the model reads them; nothing is tokenised again later."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What reward functions are given beside the completion: {"answer": "olleh"}."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn. Log-probabilities are of the whole vocabulary at this temperature, filters or not."""

    max_tokens: int
    temperature: float = 1.0
    """0 takes the most probable token; its log-probability is then that at temperature 1."""
    top_k: int = 0
    """0 is all."""
    top_p: float = 1.0
    min_p: float = 0.0
    stop_ids: tuple[int, ...] = ()
    """Beside the end of sequence, which always stops. The token that stops belongs to the completion."""
    stop_strings: tuple[str, ...] = ()
    """The token that completes one of them belongs to the completion."""


@dataclass(frozen=True, slots=True)
class BeamParams:
    """Search for items after a reasoning: the second stage of a rollout, which draws nothing by chance."""

    num_beams: int
    """Items kept at each token, and returned at most."""
    max_tokens: int
    """Most tokens of an item."""
    forced: tuple[int, ...] = ()
    """Tokens between reasoning and item that no policy chooses; may be empty."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end an item beside the end of sequence; they belong to it."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One completion that is wanted."""

    prompt: Prompt
    sample_index: int
    """Which of the prompt's completions, from 0."""
    key: int
    """Of its noise: `rlcore.seeds.completion_key`."""
    params: SamplingParams
    beams: BeamParams | None = None
    """Items wanted after the completion, which is then a reasoning (`rlcore.samplers.two_stage`); None: no items."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"sample {self.sample_index} of prompt {self.prompt.id}"


class StopReason(StrEnum):
    """Why a completion ended."""

    EOS = "eos"
    STOP_ID = "stop_id"
    STOP_STRING = "stop_string"
    LENGTH = "length"
