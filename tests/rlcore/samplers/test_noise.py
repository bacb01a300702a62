"""The noise: uniform, independent of its neighbours, whole in the tail, and of nothing but key, position and token."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlcore.numerics.probe import num_threads
from rlcore.samplers.drawing import (
    BITS,
    GOLDEN,
    GPU_ELEMENTS_AT_ONCE,
    GumbelNoise,
    mixed_,
    signed,
    states,
    uniforms,
)
from rlcore.seeds import key
from tests.rlcore.fake_gpu import fake_gpu

CPU = torch.device("cpu")
few = settings(max_examples=25)
NUM_DRAWS = 40_000
INT64 = st.integers(-(2**63), 2**63 - 1)


def keys_of(count: int, *, first: int = 0) -> Tensor:
    return torch.tensor([signed(key("noise", number)) for number in range(first, first + count)])


def noise_of(vocab_size: int, keys: Tensor, positions: Tensor) -> Tensor:
    return GumbelNoise.of(vocab_size, CPU)(states(keys, positions))


def reference_mix(x: int) -> int:
    """splitmix64's finaliser in Python's own whole numbers."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift)) * factor % 2**64
    return x ^ (x >> 31)


@few
@given(INT64)
def test_mixing_is_splitmix64(number: int) -> None:
    assert int(mixed_(torch.tensor([number]))) == signed(reference_mix(number % 2**64))


@few
@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000), st.integers(0, 5_000))
def test_noise_is_what_its_description_says(number: int, position: int, token: int) -> None:
    assert BITS == 52, "with 24, no noise is above 17.4, and what is less probable is never drawn"
    golden = GOLDEN % 2**64
    state = reference_mix((number + (position + 1) * golden) % 2**64)
    bits = reference_mix((state + (token + 1) * golden) % 2**64) >> (64 - BITS)
    expected = -math.log(-math.log((bits + 0.5) / 2**BITS))
    found = noise_of(token + 1, torch.tensor([signed(number)]), torch.tensor([position]))[0, token]
    assert float(found) == pytest.approx(expected, rel=1e-13, abs=1e-15)


def test_uniform_numbers_are_exact_and_never_0_or_1() -> None:
    ends = uniforms(torch.tensor([0, -1, 1 << (64 - BITS)]))
    assert ends.tolist() == [2.0 ** -(BITS + 1), 1.0 - 2.0 ** -(BITS + 1), 1.5 * 2.0**-BITS]


@pytest.mark.parametrize("above", [12.0, 17.0, 20.0, 24.0, 28.0, 31.0])
def test_the_tail_has_its_share(above: float) -> None:
    """How many of the 2^52 numbers give noise above a bound is known: 24 bits give none above 17.4."""
    expected = -math.expm1(-math.exp(-above))
    low, high = 0, 2**BITS  # the first number whose noise is above the bound
    while low < high:
        middle = (low + high) // 2
        noise = -torch.log(-torch.log(uniforms(torch.tensor([signed(middle << (64 - BITS))]))))
        low, high = (low, middle) if float(noise) > above else (middle + 1, high)
    assert (2**BITS - low) / 2**BITS == pytest.approx(expected, rel=0.01)


def test_numbers_do_not_repeat() -> None:
    """A million of 24 bits would repeat 30,000 times."""
    noise = noise_of(1 << 14, keys_of(64), torch.arange(64))
    assert len(set(noise.flatten().tolist())) == noise.numel()


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    "what", ["keys", "positions", "neighbouring whole numbers as keys"], ids=["keys", "positions", "raw"]
)
def test_draws_have_the_distribution(what: str) -> None:
    """40,000 draws of 12 tokens: chi-square of 11 degrees of freedom is above 31.3 once in 1,000."""
    logits = torch.linspace(-3.0, 2.0, 12, dtype=torch.float64)
    keys, positions = keys_of(1).expand(NUM_DRAWS), torch.arange(NUM_DRAWS)
    if what == "keys":
        keys, positions = keys_of(NUM_DRAWS), torch.zeros(NUM_DRAWS, dtype=torch.int64)
    elif what != "positions":
        keys, positions = torch.arange(NUM_DRAWS), torch.zeros(NUM_DRAWS, dtype=torch.int64)
    drawn = (noise_of(12, keys, positions) + logits).argmax(-1)
    assert chi_square(torch.bincount(drawn, minlength=12).double(), logits.softmax(-1)) < 31.3


def test_noise_is_gumbel() -> None:
    """Kolmogorov and Smirnov: a distance above 1.95 / sqrt(n) comes once in 1,000."""
    noise = noise_of(100, keys_of(400), torch.arange(400)).flatten().sort().values
    ranks = torch.arange(1, len(noise) + 1, dtype=torch.float64) / len(noise)
    assert float((torch.exp(-torch.exp(-noise)) - ranks).abs().max()) < 1.95 / math.sqrt(len(noise))


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1])


@pytest.mark.parametrize("distance", [1, 2, 16])
def test_neighbours_have_nothing_in_common(distance: int) -> None:
    """Of keys, positions and tokens: a correlation of n pairs is above 4 / sqrt(n) once in 16,000."""
    for keys, positions in (
        (torch.arange(200), torch.zeros(200, dtype=torch.int64)),
        (torch.full((200,), 7), torch.arange(200)),
    ):
        noise = noise_of(200, keys, positions)
        for other, own in ((noise[distance:], noise[:-distance]), (noise[:, distance:], noise[:, :-distance])):
            assert abs(correlation(other, own)) < 4 / math.sqrt(own.numel())


def test_the_position_is_not_added_to_the_key() -> None:
    """Else completion 5 at position 3 would draw as completion 3 at position 5."""
    noise = noise_of(30, torch.tensor([5, 3, 4]), torch.tensor([3, 5, 4]))
    assert len(set(noise.flatten().tolist())) == noise.numel()


@few
@given(st.data(), st.integers(1, 70), st.integers(1, 2))
def test_noise_knows_neither_rows_nor_vocabulary_nor_threads(data: st.DataObject, vocab_size: int, count: int) -> None:
    keys = torch.tensor(data.draw(st.lists(INT64, min_size=1, max_size=40)))
    positions = torch.tensor(data.draw(st.lists(st.integers(0, 500), min_size=len(keys), max_size=len(keys))))
    some = torch.tensor(data.draw(st.lists(st.integers(0, len(keys) - 1), min_size=1, max_size=50)))
    with num_threads(1):
        whole = noise_of(vocab_size + 17, keys, positions)
    with num_threads(count):
        assert torch.equal(noise_of(vocab_size, keys[some], positions[some]), whole[some][:, :vocab_size])


def test_large_vocabularies_are_done_in_parts() -> None:
    keys, positions = keys_of(5), torch.arange(5)
    with num_threads(2):
        whole = noise_of(50_000, keys, positions)
    with num_threads(1):
        alone = [noise_of(50_000, keys[[row]], positions[[row]]) for row in range(5)]
    assert torch.equal(whole, torch.cat(alone))


def test_on_a_gpu_all_rows_are_done_at_once() -> None:
    """A launch costs more than what a core's cache would save there; on a CPU there are pieces."""
    counts = {}
    for device in ("cpu", "cuda"):
        with fake_gpu() as launches:
            noise = GumbelNoise.of(128_000, torch.device(device))
            launches.names.clear()
            found = noise(torch.zeros(64, dtype=torch.int64, device=device))
            counts[device] = launches.names.total()
        assert found.device.type == device
        assert found.shape == (64, 128_000)
    assert counts["cuda"] < 40 < counts["cpu"]


def test_pieces_of_a_gpu_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, positions = keys_of(9), torch.arange(9)
    in_pieces = noise_of(50_000, keys, positions)
    monkeypatch.setattr("rlcore.samplers.drawing.ELEMENTS_AT_ONCE", GPU_ELEMENTS_AT_ONCE)
    assert torch.equal(noise_of(50_000, keys, positions), in_pieces)
