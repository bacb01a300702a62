"""Trajectories of several turns for tests, built by hand or drawn."""

from collections.abc import Sequence

from hypothesis import strategies as st

from rlcore.data.trajectory import Item, Trajectory, branch, build_single_turn
from rlcore.types import BeamParams, Prompt, SampleRequest, SamplingParams, StopReason

PARAMS = SamplingParams(max_tokens=8)
FIRST_TOKEN = 3
"""Lower ids are special tokens of the test tokenizers."""
LETTERS = 6


def request_of(tokens: Sequence[int], *, sample_index: int = 0, prompt_id: str = "p") -> SampleRequest:
    """One request for a prompt of these tokens."""
    return SampleRequest(Prompt(prompt_id, "", tuple(tokens)), sample_index, 100 + sample_index, PARAMS)


def trajectory_of(
    prompt: Sequence[int],
    first: Sequence[int],
    forced: Sequence[int] = (),
    item: Sequence[int] = (),
    *,
    sample_index: int = 0,
    prompt_id: str = "p",
) -> Trajectory:
    """Build a trajectory of a completion, or of a reasoning and an item; token t has log-probability -(t + 1) / 8."""
    item_begin = len(prompt) + len(first) + len(forced)
    completion = build_single_turn(
        request_of(prompt, sample_index=sample_index, prompt_id=prompt_id),
        first,
        [-(at + 1) / 8 for at in range(len(prompt), len(prompt) + len(first))],
        text="first",
        stop_reason=StopReason.LENGTH,
        policy_version=4,
        weights_digest="weights 4",
    )
    if not item:
        return completion
    logprobs = tuple(-(at + 1) / 8 for at in range(item_begin, item_begin + len(item)))
    found = Item(tuple(item), logprobs, "item", StopReason.EOS)
    return branch(completion, found, BeamParams(1, 8, forced=tuple(forced)), forced_text="forced" if forced else "")


drawn_tokens = st.lists(st.integers(FIRST_TOKEN, FIRST_TOKEN + LETTERS - 1), min_size=1, max_size=6)
drawn_parts = st.one_of(
    st.tuples(drawn_tokens, drawn_tokens),
    st.tuples(drawn_tokens, drawn_tokens, st.just([]) | drawn_tokens, drawn_tokens),
)
"""Token ids as `trajectory_of` takes them."""
