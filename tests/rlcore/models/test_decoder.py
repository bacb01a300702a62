"""At level invariant a position has the same bits in a pass, decoded, in any batch, behind any padding and tail."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.errors import InvalidValueError
from rlcore.models.cache import KeyValueCache
from rlcore.models.config import FAMILIES, DecoderConfig, LoraConfig
from rlcore.models.decoder import Critic, Decoder, rotate, rotation_table
from rlcore.numerics.level import Strategy, following
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.numerics.probe import STRATEGIES, certify, num_threads
from tests.support.canonical_sum import tree_sum

CONFIG = DecoderConfig("llama", 29, 32, 2, 4, 2, 8, 44, max_length=64)
LENGTH = 40
few = settings(max_examples=8)


LORA = LoraConfig(5, 8.0, frozenset({"q_proj", "v_proj", "o_proj", "up_proj", "down_proj"}))


def decoder_of(family: str, dtype: torch.dtype = torch.float32, lora: LoraConfig | None = None) -> Decoder:
    decoder = Decoder(replace(CONFIG, family=family, lora=lora)).initialise(5)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(4)
    return decoder.to(dtype)


TOKENS = torch.randint(3, 29, (5, LENGTH), generator=torch.Generator().manual_seed(6))


@torch.no_grad()
def decoded(decoder: Decoder, order: list[int], lengths: list[int]) -> list[torch.Tensor]:
    """Logits of some samples: prompts of these lengths are read together, then each goes on a token at a time."""
    cache = KeyValueCache.empty(decoder.config, len(order), LENGTH, like=decoder.embedding)
    hidden = decoder.extend(TOKENS[order, : max(lengths)], cache, [0] * len(order))
    found = [[decoder.logits(hidden[slot, :length])] for slot, length in enumerate(lengths)]
    at = list(lengths)
    while max(at) < LENGTH:
        tokens = torch.stack([TOKENS[sample, [at[slot]]] for slot, sample in enumerate(order)])
        logits = decoder.logits(decoder.extend(tokens, cache, at))
        for slot, rows in enumerate(found):
            rows.append(logits[slot])
            at[slot] += 1
    return [torch.cat(rows) for rows in found]


@pytest.mark.full
@few
@given(
    data=st.data(),
    family=st.sampled_from(FAMILIES),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    count=st.sampled_from([1, 2]),
)
def test_decoding_gives_the_bits_of_a_pass(
    strategy: Strategy, data: st.DataObject, family: str, dtype: torch.dtype, count: int
) -> None:
    decoder = decoder_of(family, dtype, data.draw(st.sampled_from([None, LORA])))
    order = data.draw(st.permutations(range(5)))[: data.draw(st.integers(1, 5))]
    lengths = data.draw(st.lists(st.integers(LENGTH - 9, LENGTH - 1), min_size=len(order), max_size=len(order)))
    with num_threads(1), torch.no_grad():
        whole = decoder(TOKENS)
    with num_threads(count):
        for sample, logits in zip(order, decoded(decoder, order, lengths), strict=True):
            assert torch.equal(logits, whole[sample, : len(logits)])


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_without_gradients_has_the_bits_of_one_with_them(
    strategy: Strategy, family: str, lora: LoraConfig | None
) -> None:
    """Operations take a shorter way where nobody asks for gradients."""
    decoder, generator = decoder_of(family, lora=lora), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator))
        without = decoder(TOKENS)
    assert torch.equal(decoder(TOKENS).detach(), without)


@few
@given(st.integers(1, LENGTH), st.integers(0, 20), st.sampled_from(FAMILIES))
def test_what_follows_a_position_does_not_change_it(strategy: Strategy, length: int, padding: int, family: str) -> None:
    decoder = decoder_of(family)
    padded = torch.cat((TOKENS[:1, :length], torch.zeros(1, padding, dtype=torch.int64)), 1)
    with torch.no_grad():
        assert torch.equal(decoder(padded)[0, :length], decoder(TOKENS)[0, :length])


def lane_gradients(decoder: Decoder, lane: list[int]) -> list[torch.Tensor]:
    """Of a lane of fixed width and length."""
    logprobs = token_logprobs(decoder(TOKENS[lane])[:, :-1], TOKENS[lane][:, 1:])
    return list(torch.autograd.grad(logprobs.sum(), [each for each in decoder.parameters() if each.requires_grad]))


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
@pytest.mark.parametrize(("family", "dtype"), [("qwen2", torch.float32), ("qwen3", torch.bfloat16)])
def test_gradients_do_not_depend_on_threads_and_add_up_in_one_tree(
    strategy: Strategy, family: str, dtype: torch.dtype, lora: LoraConfig | None
) -> None:
    decoder = decoder_of(family, dtype, lora)
    lanes = [[0, 1], [2, 3], [4, 4]]
    with num_threads(1):
        one = [lane_gradients(decoder, lane) for lane in lanes]
    with num_threads(2):
        two = [lane_gradients(decoder, lane) for lane in reversed(lanes)][::-1]
    for first, second in zip(zip(*one, strict=True), zip(*two, strict=True), strict=True):
        a, b = tree_sum(first), tree_sum(second)
        assert a is not None and b is not None and torch.equal(a, b)


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
def test_gradients_are_those_of_plain_torch(strategy: Strategy, lora: LoraConfig | None) -> None:
    decoder = decoder_of("qwen3", lora=lora)
    found = lane_gradients(decoder, [0, 1])
    with following(None):
        expected = lane_gradients(decoder, [0, 1])
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours - theirs).norm()) <= 1e-3 * float(theirs.norm())


def test_a_slot_that_is_moved_goes_on() -> None:
    decoder = decoder_of("qwen3")
    with torch.no_grad(), following(STRATEGIES[0]):
        cache = KeyValueCache.empty(CONFIG, 3, LENGTH, like=decoder.embedding)
        decoder.extend(TOKENS[:3, :10], cache, [0, 0, 0])
        cache.move([2], [0])
        moved = decoder.extend(TOKENS[2:3, 10:11], cache, [10])
        decoder.extend(TOKENS[4:5, :7], cache.slots(1, 2), [0])
        again = decoder.extend(TOKENS[4:5, 7:9], cache.slots(1, 2), [7])
        assert torch.equal(moved[0], decoder.hidden(TOKENS)[2, 10:11])
        assert torch.equal(again[0], decoder.hidden(TOKENS)[4, 7:9])


def test_what_does_not_fit_a_cache_is_refused() -> None:
    decoder = decoder_of("llama")
    cache = KeyValueCache.empty(CONFIG, 2, 17, like=decoder.embedding)
    assert cache.capacity == 32
    with pytest.raises(InvalidValueError, match="up to position 33"):
        decoder.extend(TOKENS[:2, :3], cache, [0, 30])
    with pytest.raises(InvalidValueError, match="3 sequences"):
        decoder.extend(TOKENS[:3, :3], cache, [0, 0, 0])


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
def test_a_models_own_shapes_are_certified(lora: LoraConfig | None) -> None:
    config = replace(CONFIG, is_tied=False, lora=lora)
    assert config.num_weights == replace(config, lora=None).num_weights
    found = certify(shapes=config.product_shapes, heads=[config.head_shape])
    sizes = {tuple(parameter.shape[::-1]) for parameter in Decoder(config).parameters() if parameter.dim() == 2}
    assert sizes == set(config.product_shapes)
    assert found.strategy in STRATEGIES


def test_weights_follow_from_the_seed_alone() -> None:
    with num_threads(1):
        one = Decoder(CONFIG).initialise(7)
    with num_threads(2):
        two = Decoder(CONFIG).initialise(7)
    other = Decoder(CONFIG).initialise(8)
    assert torch.equal(one.get_parameter("layers.1.qkv"), two.get_parameter("layers.1.qkv"))
    assert not torch.equal(one.get_parameter("layers.1.qkv"), other.get_parameter("layers.1.qkv"))
    assert float(one.embedding.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_rotations_turn_and_turn_back() -> None:
    cosines, sines = (table[:LENGTH].repeat(1, 3) for table in rotation_table(CONFIG))
    x = torch.randn(2, LENGTH, 3, 8)
    turned = rotate(x, cosines, sines)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotate(turned, cosines, -sines), x)
    torch.testing.assert_close((turned[:, 3] * turned[:, 9]).sum(-1), _turned_apart(x[:, 3], x[:, 9], 6))


def test_gradients_of_rotations_are_those_of_the_formula() -> None:
    cosines, sines = (table[:LENGTH] for table in rotation_table(CONFIG))
    x, grad = torch.randn(2, LENGTH, 3, 8, requires_grad=True), torch.randn(2, LENGTH, 3, 8)
    (ours,) = torch.autograd.grad(rotate(x, cosines.repeat(1, 3), sines.repeat(1, 3)), x, grad)
    formula = x * cosines[:, None] + torch.cat((x[..., 4:], x[..., :4]), -1) * sines[:, None]
    torch.testing.assert_close(ours, torch.autograd.grad(formula, x, grad)[0])


def test_rotations_do_not_depend_on_threads() -> None:
    config = replace(CONFIG, max_length=20_000)
    with num_threads(1):
        one = rotation_table(config)
    with num_threads(2):
        two = rotation_table(config)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert one[0].shape == (20_000, 8)


def _turned_apart(a: torch.Tensor, b: torch.Tensor, distance: int) -> torch.Tensor:
    """The product of two heads depends on how far they stand apart only."""
    cosines, sines = (table[[0, distance]].repeat(1, a.shape[-2]) for table in rotation_table(CONFIG))
    turned = rotate(torch.stack((a, b), dim=1), cosines, sines)
    return (turned[:, 0] * turned[:, 1]).sum(-1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"num_kv_heads": 3}, "a divisor of num_heads, 4"),
        ({"head_width": 7}, "an even number"),
    ],
)
def test_sizes_that_make_no_decoder_are_refused(change: dict[str, int], told: str) -> None:
    with pytest.raises(InvalidValueError, match=told):
        replace(CONFIG, **change)  # type: ignore[arg-type]


def test_values_take_rows_one_by_one_and_learn(strategy: Strategy) -> None:
    critic = Critic(CONFIG)
    critic.decoder.initialise(9)
    assert float(critic(TOKENS).detach().abs().max()) == 0.0
    with torch.no_grad():
        critic.value_head.weight.normal_()
        whole = critic(TOKENS)
        assert torch.equal(critic(TOKENS[2:3, :11]), whole[2:3, :11])
    critic(TOKENS).sum().backward()
    bias = critic.value_head.bias.grad
    assert bias is not None and float(bias) == TOKENS.numel()
    assert all(parameter.grad is not None for parameter in critic.parameters())
