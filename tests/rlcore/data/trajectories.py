"""Trajectories of several turns for tests, built by hand or drawn."""

from collections.abc import Sequence

from hypothesis import strategies as st

from rlcore.data.trajectory import NOT_SAMPLED, Role, Trajectory, Turn
from rlcore.types import Prompt, SampleRequest, SamplingParams, StopReason

PARAMS = SamplingParams(max_tokens=8)
FIRST_TOKEN = 3
"""Lower ids are special tokens of the test tokenizers."""
LETTERS = 6


def request_of(tokens: Sequence[int], *, sample_index: int = 0, prompt_id: str = "p") -> SampleRequest:
    """One request for a prompt of these tokens."""
    return SampleRequest(Prompt(prompt_id, "", tuple(tokens)), sample_index, 100 + sample_index, PARAMS)


def trajectory_of(
    parts: Sequence[tuple[Role, Sequence[int]]], *, sample_index: int = 0, prompt_id: str = "p", version: int = 4
) -> Trajectory:
    """Build a trajectory of turns; token t, if a policy sampled it, has log-probability -(t + 1) / 8.

    Each assistant turn has a version one above that of the turn before.
    """
    turns: list[Turn] = []
    tokens: list[int] = []
    versions: list[int] = []
    for role, own in parts:
        is_sampled = role is Role.ASSISTANT
        begin, end = len(tokens), len(tokens) + len(own)
        turns.append(Turn(role, begin, end, f"turn {len(turns)}", StopReason.LENGTH if is_sampled else None))
        tokens += own
        versions += [version if is_sampled else NOT_SAMPLED] * len(own)
        version += is_sampled
    mask = tuple(each != NOT_SAMPLED for each in versions)
    return Trajectory(
        request=request_of(parts[0][1], sample_index=sample_index, prompt_id=prompt_id),
        tokens=tuple(tokens),
        loss_mask=mask,
        logprobs=tuple(-(at + 1) / 8 if is_learned else 0.0 for at, is_learned in enumerate(mask)),
        policy_versions=tuple(versions),
        turns=tuple(turns),
        weights_digests={each: f"weights {each}" for each in versions if each != NOT_SAMPLED},
    )


drawn_tokens = st.lists(st.integers(FIRST_TOKEN, FIRST_TOKEN + LETTERS - 1), min_size=1, max_size=6)
drawn_parts = st.tuples(
    st.tuples(st.just(Role.PROMPT), drawn_tokens),
    st.lists(st.tuples(st.sampled_from([Role.ASSISTANT, Role.TOOL]), drawn_tokens), max_size=4),
    st.tuples(st.just(Role.ASSISTANT), drawn_tokens),
    st.lists(st.tuples(st.just(Role.TOOL), drawn_tokens), max_size=1),
).map(lambda drawn: [drawn[0], *drawn[1], drawn[2], *drawn[3]])
"""Turns as `trajectory_of` takes them: a prompt, and others of which at least one is the assistant's."""
