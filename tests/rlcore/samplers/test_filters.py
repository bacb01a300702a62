"""Filters against a plain description of them, rows apart, ties, and transformers."""

import json
import math
from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.samplers.drawing import Filters
from rlcore.types import SamplingParams
from tests.support.recorded_programs import NEEDS_PEERS, PEERS, program, run

CPU = torch.device("cpu")
few = settings(max_examples=60)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 0.99]),
)


@st.composite
def logits_of(draw: st.DrawFn, num_rows: int, vocab_size: int = 9) -> Tensor:
    """With many equal ones, and some that cannot be drawn."""
    values = st.sampled_from([-math.inf, -2.0, 0.0, 0.5, 0.5, 1.0, 3.0])
    rows = [draw(st.lists(values, min_size=vocab_size, max_size=vocab_size)) for _ in range(num_rows)]
    return torch.tensor(rows).index_fill(1, torch.tensor([4]), 0.25)


def allowed(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    filters = Filters.of(params, logits.shape[-1], CPU)
    return torch.ones_like(logits, dtype=torch.bool) if filters is None else filters.allowed(logits)


def described(logits: Sequence[float], params: SamplingParams) -> set[int]:
    """Which tokens are left, from the description alone."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    left = order[: params.top_k or None]
    share = {token: math.exp(logits[token] - logits[order[0]]) for token in left}
    if params.top_p < 1.0:
        total, above, kept = math.fsum(share.values()), 0.0, []
        for token in left:
            if above < params.top_p * total:
                kept.append(token)
            above += share[token]
        left = kept
    return {token for token in left if share[token] >= params.min_p} | {order[0]}


@few
@given(st.data(), st.integers(1, 5))
def test_what_is_left_is_what_the_description_says(data: st.DataObject, num_rows: int) -> None:
    logits = data.draw(logits_of(num_rows))
    params = data.draw(st.lists(PARAMS, min_size=num_rows, max_size=num_rows))
    found = allowed(logits, params)
    for row, (values, own) in enumerate(zip(logits.tolist(), params, strict=True)):
        assert set(found[row].nonzero().flatten().tolist()) == described(values, own)


@few
@given(st.data(), st.integers(1, 6))
def test_rows_know_nothing_of_each_other(data: st.DataObject, num_rows: int) -> None:
    logits = torch.randn(num_rows, 50, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 999))))
    params = data.draw(st.lists(PARAMS, min_size=num_rows, max_size=num_rows))
    some = data.draw(st.lists(st.integers(0, num_rows - 1), min_size=1, max_size=6))
    assert torch.equal(allowed(logits[some], [params[row] for row in some]), allowed(logits, params)[some])


def test_equal_tokens_are_kept_from_the_lowest() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 1.0, 2.0, 1.0]])
    assert allowed(logits, [SamplingParams(1, top_k=3)]).tolist() == [[True, True, False, False, True, False]]
    assert allowed(logits, [SamplingParams(1, top_p=0.2)]).tolist() == [[False, True, False, False, False, False]]


def test_filters_take_what_the_one_before_has_left() -> None:
    """Two tokens of equal share: 0.6 of what top-k leaves is both, of all it would have been one more."""
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0]])
    assert allowed(logits, [SamplingParams(1, top_k=2, top_p=0.6)]).sum() == 2
    assert allowed(logits, [SamplingParams(1, top_p=0.6)]).sum() == 3


def test_bounds_belong_to_one_side() -> None:
    """Half of four equal tokens is two; what has exactly the least share stays."""
    assert allowed(torch.zeros(1, 4), [SamplingParams(1, top_p=0.5)]).tolist() == [[True, True, False, False]]
    logits = torch.tensor([[0.0, -1.0, -1.5]])
    share = float(torch.tensor(-1.0, dtype=torch.float64).exp())
    assert allowed(logits, [SamplingParams(1, min_p=share)]).tolist() == [[True, True, False]]


def test_no_filter_is_no_work() -> None:
    assert Filters.of([SamplingParams(1, temperature=0.5)], 9, CPU) is None


def test_a_row_without_filters_keeps_its_tail() -> None:
    """Shares far below what a sum can tell from 1."""
    logits = torch.tensor([[0.0, -60.0, -600.0], [0.0, -60.0, -600.0]])
    found = allowed(logits, [SamplingParams(1), SamplingParams(1, top_p=0.999999)])
    assert found.tolist() == [[True, True, True], [True, False, False]]


@NEEDS_PEERS
def test_transformers_keeps_the_same_tokens() -> None:
    generator = torch.Generator().manual_seed(3)
    cases = [(k, p, m) for k in (0, 1, 5, 40) for p in (1.0, 0.95, 0.4) for m in (0.0, 0.05, 0.5)]
    logits = torch.randn(len(cases), 40, generator=generator) * 2
    given_to = json.dumps([[*case, row] for case, row in zip(cases, logits.tolist(), strict=True)])
    done = run(*program("hugging_face_filters", given_to, python=PEERS))
    assert done.exit_code == 0, done.errors
    params = [SamplingParams(1, top_k=k, top_p=p, min_p=m) for k, p, m in cases]
    assert allowed(logits, params).tolist() == json.loads(done.output)
