"""A decoder with compiled kernels: the values of torch's, decoded to the bits of a pass, whatever the company."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization
from torch.utils._python_dispatch import TorchDispatchMode

from rlcore.errors import InvalidValueError
from rlcore.models.cache import KeyValueCache
from rlcore.models.config import FAMILIES, DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.compiled import layers, operations
from rlcore.numerics.level import computing, following
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.numerics.probe import STRATEGIES, num_threads

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

CONFIG = DecoderConfig("llama", 29, 48, 2, 6, 2, 16, 44, max_length=48)
LENGTH = 40
TOKENS = torch.randint(3, 29, (4, LENGTH), generator=torch.Generator().manual_seed(6))
few = settings(max_examples=8)


@pytest.fixture
def invariant() -> Iterator[None]:
    """Products take rows one by one."""
    with following(STRATEGIES[0]), computing("compiled"):
        yield


def decoder_of(family: str) -> Decoder:
    """Random weights, norms among them, whose distributions are far from uniform."""
    decoder, generator = Decoder(replace(CONFIG, family=family)).initialise(5), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) / 4)
            else:
                parameter.mul_(8)
    return decoder


def gradients(decoder: Decoder) -> tuple[Tensor, list[Tensor]]:
    """(logits, the gradient of each parameter)."""
    logits = decoder(TOKENS)
    logprobs = token_logprobs(logits[:, :-1], TOKENS[:, 1:])
    return logits.detach(), list(torch.autograd.grad(logprobs.mean(), list(decoder.parameters())))


@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_gradients_are_those_of_torchs_kernels(family: str) -> None:
    decoder = decoder_of(family)
    plain, plain_gradients = gradients(decoder)
    with computing("compiled"):
        ours, our_gradients = gradients(decoder)
    assert not torch.equal(ours, plain), "other kernels, other bits"
    for a, b in ((ours, plain), *zip(our_gradients, plain_gradients, strict=True)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4 * float(b.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_without_gradients_has_the_bits_of_one_with_them(invariant: None, family: str) -> None:
    decoder = decoder_of(family)
    with torch.no_grad():
        without = decoder(TOKENS)
    assert torch.equal(decoder(TOKENS).detach(), without)


@few
@given(data=st.data(), family=st.sampled_from(FAMILIES), count=st.sampled_from([1, 2]), room=st.sampled_from([0, 30]))
def test_decoding_gives_the_bits_of_a_pass(
    invariant: None, data: st.DataObject, family: str, count: int, room: int
) -> None:
    """Sequences of other lengths beside each other, which go on some tokens at a time."""
    decoder = decoder_of(family)
    order = data.draw(st.permutations(range(4)))[: data.draw(st.integers(1, 4))]
    lengths = data.draw(st.lists(st.integers(1, LENGTH - 1), min_size=len(order), max_size=len(order)))
    with num_threads(1), torch.no_grad():
        whole = decoder(TOKENS)
    with num_threads(count), torch.no_grad():
        cache = KeyValueCache.empty(CONFIG, len(order), LENGTH + room, like=decoder.embedding)
        hidden = decoder.extend(TOKENS[order, : max(lengths)], cache, [0] * len(order))
        for slot, (sample, length) in enumerate(zip(order, lengths, strict=True)):
            assert torch.equal(decoder.logits(hidden[slot, :length]), whole[sample, :length])
        while max(lengths) < LENGTH:
            step = data.draw(st.integers(1, min(5, LENGTH - max(lengths))))
            tokens = torch.stack([TOKENS[s, at : at + step] for s, at in zip(order, lengths, strict=True)])
            logits = decoder.logits(decoder.extend(tokens, cache, lengths))
            expected = [whole[sample, at : at + step] for sample, at in zip(order, lengths, strict=True)]
            assert torch.equal(logits, torch.stack(expected))
            lengths = [at + step for at in lengths]


@few
@given(st.integers(1, LENGTH), st.sampled_from(FAMILIES))
def test_gradients_do_not_depend_on_padding_behind(invariant: None, length: int, family: str) -> None:
    """Values and gradients of the stream, position by position; those of weights are sums over positions."""
    decoder = decoder_of(family)

    def streamed(tokens: Tensor, end: int) -> tuple[Tensor, Tensor]:
        leaf = decoder.embedding.detach()[tokens].requires_grad_()
        hooked = decoder.layers[0].register_forward_pre_hook(lambda layer, given_: (leaf, *given_[1:]))
        try:
            hidden = decoder.hidden(tokens)[:, :end]
        finally:
            hooked.remove()
        return hidden.detach(), torch.autograd.grad(hidden.square().sum(), leaf)[0][:, :end]

    short, long = streamed(TOKENS[:2, :length], length), streamed(TOKENS[:2], length)
    assert torch.equal(short[0], long[0])
    assert torch.equal(short[1], long[1])


def test_heads_of_other_widths_are_refused() -> None:
    decoder = Decoder(replace(CONFIG, head_width=8)).initialise(1)
    with computing("compiled"), pytest.raises(ValueError, match="heads 8 wide") as caught:
        decoder(TOKENS)
    assert "multiple of 16" in str(caught.value) and "model.kernels torch" in str(caught.value)


class Named(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How often each operation of ours is called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: dict[str, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = str(func)
        if name.startswith("rlcore."):
            self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def test_a_model_computes_with_them_and_with_nothing_else_there() -> None:
    decoder = decoder_of("qwen3")
    with Named() as named, computing("compiled"):
        gradients(decoder)
    count = CONFIG.num_layers
    expected = {"rms_norm": count + 1, "add_rms_norm": count, "swiglu": count, "attend": count}
    expected |= {"rms_norm_backward": 2 * count + 1, "swiglu_backward": count, "attend_backward": count}
    expected |= {"linear": 4 * count + 1, "linear_backward": 4 * count + 1}
    assert named.counts == {f"rlcore.{name}.default": count for name, count in expected.items()}
    with Named() as named:
        gradients(decoder)
    assert not named.counts


def test_one_position_of_several_is_a_view_that_has_logits_too() -> None:
    """As a lane has it whose completions are of one token."""
    decoder = decoder_of("llama")
    with computing("compiled"):
        hidden = decoder.hidden(TOKENS[:, :4])
        apart = hidden[:, 3:]
        assert not apart.is_contiguous()
        assert torch.equal(decoder.logits(apart), decoder.logits(hidden)[:, 3:])


class Same(nn.Module):
    """A parametrization that changes nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("name", ["qkv_bias", "down"])
def test_weights_that_are_parametrized_are_taken(name: str) -> None:
    """Also what a family may be without: it is not taken for absent."""
    decoder = decoder_of("qwen2")
    with computing("compiled"), torch.no_grad():
        expected = decoder(TOKENS)
        register_parametrization(decoder.layers[1], name, Same())
        assert torch.equal(decoder(TOKENS), expected)


def test_a_gradient_through_a_cache_is_refused() -> None:
    decoder = decoder_of("llama")
    cache = KeyValueCache.empty(CONFIG, 4, LENGTH, like=decoder.embedding)
    with computing("compiled"), pytest.raises(InvalidValueError, match="a gradient through a cache") as caught:
        decoder.extend(TOKENS, KeyValueCache(cache.keys.transpose(3, 4).contiguous(), cache.values, True), [0] * 4)
    assert "torch.no_grad()" in caught.value.remedy


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_have_the_bits_of_their_parts(family: str) -> None:
    """Who watches operations sees parts, and everybody else gets whole layers."""
    decoder = decoder_of(family)
    with computing("compiled"):
        whole, whole_gradients = gradients(decoder)
        with Named():
            parts, gradients_of_parts = gradients(decoder)
    assert torch.equal(whole, parts)
    assert all(torch.equal(a, b) for a, b in zip(whole_gradients, gradients_of_parts, strict=True))


def test_a_profiler_sees_whole_layers() -> None:
    """What takes the time, not what it is made of."""
    decoder = decoder_of("qwen3")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, computing("compiled"):
        gradients(decoder)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["rlcore::layer"] == counts["rlcore::layer_backward"] == CONFIG.num_layers
    assert "rlcore::attend" not in counts


@pytest.mark.parametrize("name", ["layer_unkept", "layer_cached", "rms_norm", "linear"])
def test_a_kernel_that_depends_on_the_batch_is_seen(
    invariant: None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the comparison above is worth."""
    decoder, of = decoder_of("qwen3"), layers if name.startswith("layer") else operations
    compute = getattr(of, name)

    def broken(x: Tensor, *given_: object, **named: object) -> object:
        made = compute(x, *given_, **named)
        (made if isinstance(made, Tensor) else made[0]).mul_(1 + x.shape[:2].numel() * 1e-6)
        return made

    monkeypatch.setattr(of, name, broken)
    with torch.no_grad():
        whole = decoder(TOKENS[:2])
        cache = KeyValueCache.empty(CONFIG, 2, LENGTH, like=decoder.embedding)
        decoder.extend(TOKENS[:2, :-1], cache, [0, 0])
        logits = decoder.logits(decoder.extend(TOKENS[:2, -1:], cache, [LENGTH - 1] * 2))
    assert not torch.equal(logits, whole[:, -1:])
