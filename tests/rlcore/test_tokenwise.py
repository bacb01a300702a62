"""What every function of tokens keeps: masks hide, neighbours do not matter, NaN is seen."""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlcore.algorithms import advantages, correction, kl
from rlcore.algorithms.aggregation import Denominators, sample_shares
from rlcore.algorithms.losses import Tokens, cispo, dppo_tv, gspo, ipo, masked_is, masked_is_keep, ppo_clip, value_loss
from rlcore.errors import NonFiniteError, ShapeError
from tests.rlcore.batches import POISONS, SEEDED, Batch, batch_of, batches, permutations


class Case(NamedTuple):
    """A function of tokens, and what of a batch it reads."""

    function: Callable[..., Any]
    reads: tuple[str, ...]
    learns: str = ""
    """The one tensor its gradient flows through, if any."""
    is_tokenwise: bool = True
    """Whether it gives [samples, positions]; else [samples]."""
    shares_statistics: bool = False
    """Whether a sample depends on the others of the batch."""

    def __call__(self, batch: Batch) -> Tensor:
        found = self.function(**{name: batch[name] for name in self.reads}, loss_mask=batch.loss_mask)
        tensor: Tensor = found if isinstance(found, Tensor) else found[0]
        return tensor


def of_tokens(loss: Callable[[Tokens], Any]) -> Callable[..., Any]:
    return lambda **read: loss(Tokens(**read))


def kept_masked_is(tokens: Tokens) -> Any:
    return masked_is(tokens, masked_is_keep(tokens, token=(0.8, 2.0)), proximal_coef=0.1)


def shares_of(mode: str) -> Callable[..., Tensor]:
    def shares(losses: Tensor, loss_mask: Tensor) -> Tensor:
        return sample_shares(losses, loss_mask, mode, Denominators(17, 5, 7))  # type: ignore[arg-type]

    return shares


def accepted(log_ratio: Tensor, loss_mask: Tensor) -> Tensor:
    return correction.accepted(log_ratio, loss_mask, max_mean_k3=0.1)


def kl_of(estimator: str) -> Callable[..., Tensor]:
    def approx_kl(logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
        return kl.approx_kl(logprobs, ref_logprobs, loss_mask, estimator)  # type: ignore[arg-type]

    return approx_kl


def penalised(token_rewards: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    return kl.in_rewards(token_rewards, old_logprobs, ref_logprobs, loss_mask, kl_coef=0.1)


def spread(rewards: Tensor, loss_mask: Tensor) -> Tensor:
    return advantages.per_token(rewards, loss_mask)


TOKENS = Tokens._fields[:-1]
LOSSES = {
    **{
        loss.__name__: Case(of_tokens(loss), TOKENS, "logprobs")
        for loss in (ppo_clip, gspo, cispo, dppo_tv, ipo, kept_masked_is)
    },
    "value_loss": Case(value_loss, ("values", "old_values", "returns"), "values"),
    **{
        f"kl/{name}": Case(kl_of(name), ("logprobs", "ref_logprobs"), "logprobs")
        for name in ("k1", "abs", "k2", "k3", "k1+", "k3+")
    },
    "reweighted": Case(correction.reweighted, ("losses", "weights"), "losses"),
    **{
        f"shares/{mode}": Case(shares_of(mode), ("losses",), "losses", is_tokenwise=False)
        for mode in ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
    },
}
CASES = {
    **LOSSES,
    "in_rewards": Case(penalised, ("token_rewards", "old_logprobs", "ref_logprobs")),
    "mismatch": Case(correction.mismatch, ("old_logprobs", "rollout_logprobs")),
    "token_weights": Case(correction.token_weights, ("log_ratio",)),
    "sequence_weights": Case(correction.sequence_weights, ("log_ratio",)),
    "accepted": Case(accepted, ("log_ratio",)),
    "masked_is_keep": Case(of_tokens(masked_is_keep), TOKENS),
    "gae": Case(advantages.gae, ("token_rewards", "values")),
    "remax": Case(advantages.remax, ("token_rewards", "baselines")),
    "discounted_returns": Case(advantages.discounted_returns, ("token_rewards",)),
    "per_token": Case(spread, ("rewards",)),
    "at_last_token": Case(advantages.at_last_token, ("rewards",)),
    "reinforce_pp_baseline": Case(advantages.reinforce_pp_baseline, ("rewards", "groups"), shares_statistics=True),
    "whiten": Case(advantages.whiten, ("values",), shares_statistics=True),
}


def every(cases: dict[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases.values(), ids=cases)


def gradient(case: Case, batch: Batch) -> Tensor:
    leaf = batch.tokens[case.learns].clone().requires_grad_()
    found = case(Batch(batch.loss_mask, {**batch.tokens, case.learns: leaf}, batch.samples))
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.full
@every(CASES)
@SEEDED
@given(batch=batches(min_samples=2), poison=POISONS)
def test_nothing_comes_from_outside_the_mask(case: Case, batch: Batch, poison: float) -> None:
    found = case(batch)
    assert torch.equal(case(batch.poisoned(poison)), found)
    if case.is_tokenwise:
        assert not found[~batch.loss_mask].any()


@pytest.mark.full
@every(LOSSES)
@SEEDED
@given(batch=batches(), poison=POISONS)
def test_no_gradient_comes_from_or_goes_to_outside_the_mask(case: Case, batch: Batch, poison: float) -> None:
    found = gradient(case, batch.poisoned(poison))
    assert torch.equal(found, gradient(case, batch))
    assert not found[~batch.loss_mask].any()


@pytest.mark.full
@every(CASES)
@SEEDED
@given(batch=batches(min_samples=2), random=st.randoms(use_true_random=False))
def test_the_order_of_samples_changes_no_bit(case: Case, batch: Batch, random: Random) -> None:
    order = permutations(len(batch.loss_mask), random)
    assert torch.equal(case(batch.rows(order)), case(batch)[order])


@pytest.mark.full
@every({name: case for name, case in CASES.items() if not case.shares_statistics})
@SEEDED
@given(batch=batches(min_samples=2), cut=st.integers(1, 5))
def test_a_split_into_microbatches_changes_no_bit(case: Case, batch: Batch, cut: int) -> None:
    cut = min(cut, len(batch.loss_mask) - 1)
    parts = [case(batch.rows(slice(0, cut))), case(batch.rows(slice(cut, None)))]
    assert torch.equal(torch.cat(parts), case(batch))


@pytest.mark.full
@every(LOSSES)
@SEEDED
@given(batch=batches(min_samples=2), cut=st.integers(1, 5))
def test_a_split_into_microbatches_changes_no_bit_of_the_gradient(case: Case, batch: Batch, cut: int) -> None:
    cut = min(cut, len(batch.loss_mask) - 1)
    parts = [gradient(case, batch.rows(slice(0, cut))), gradient(case, batch.rows(slice(cut, None)))]
    assert torch.equal(torch.cat(parts), gradient(case, batch))


@every(CASES)
def test_nor_at_a_size_at_which_loops_are_unrolled(case: Case) -> None:
    """float32, rows longer than a vector register, and cuts at sizes for which other kernels might be taken."""
    batch = batch_of(5, 37, 211).to(torch.float32)
    found = case(batch)
    order = torch.randperm(37)
    assert torch.equal(case(batch.rows(order)), found[order])
    for cut in () if case.shares_statistics else (1, 2, 3, 17):
        parts = [case(batch.rows(slice(0, cut))), case(batch.rows(slice(cut, None)))]
        assert torch.equal(torch.cat(parts), found)


@every({name: case for name, case in CASES.items() if set(case.reads) & batch_of(0, 1, 1).tokens.keys()})
def test_tensors_of_another_shape_are_refused(case: Case) -> None:
    """Three samples of three positions: what would be broadcast without a word."""
    batch = batch_of(2, 3, 3)
    for name in set(case.reads) & batch.tokens.keys():
        for wrong in (batch.tokens[name][0], batch.tokens[name][:1], batch.tokens[name].long()):
            with pytest.raises(ShapeError):
                case(Batch(batch.loss_mask, {**batch.tokens, name: wrong}, batch.samples))


@every(CASES)
def test_masks_of_numbers_are_refused(case: Case) -> None:
    batch = batch_of(3, 2, 3)
    with pytest.raises(ShapeError, match="bool"):
        case(Batch(batch.loss_mask.long(), batch.tokens, batch.samples))


@pytest.mark.full
@every(CASES)
@SEEDED
@given(batch=batches(min_samples=2))
def test_gradients_flow_through_one_tensor_alone(case: Case, batch: Batch) -> None:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in batch.tokens.items()}
    samples = {n: t.clone().requires_grad_(t.is_floating_point()) for n, t in batch.samples.items()}
    found = case(Batch(batch.loss_mask, leaves, samples))
    assert found.requires_grad == bool(case.learns)
    if case.learns:
        found.sum().backward()  # type: ignore[no-untyped-call]
    assert [name for name, leaf in (leaves | samples).items() if leaf.grad is not None] == [case.learns] * bool(
        case.learns
    )


MASKS = ("accepted", "masked_is_keep")


@pytest.mark.full
@every({name: case for name, case in CASES.items() if not name.startswith(MASKS)})
@SEEDED
@given(batch=batches(min_samples=2), seed=st.integers(0, 99))
def test_nan_inside_the_mask_is_seen(case: Case, batch: Batch, seed: int) -> None:
    if case.learns and case.learns != "losses":
        read = [case.learns]  # an advantage of a dropped token may be anything
    else:
        read = [name for name in case.reads if name != "groups"]
    place = batch.loss_mask.nonzero()[seed % int(batch.loss_mask.sum())]
    for name in read:
        tensor = batch[name].clone()
        tensor[tuple(place[: min(tensor.ndim, 2)])] = float("nan")
        tokens = {**batch.tokens, name: tensor} if name in batch.tokens else batch.tokens
        samples = {**batch.samples, name: tensor} if name in batch.samples else batch.samples
        spoilt = Batch(batch.loss_mask, tokens, samples)
        if case.shares_statistics or name in batch.samples:
            with pytest.raises(NonFiniteError, match=f"sample {int(place[0])} "):
                case(spoilt)
        else:
            assert case(spoilt).isnan().any()


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(MASKS)])
def test_masks_keep_nan(name: str) -> None:
    """A token that is dropped for a NaN would hide it."""
    case = CASES[name]
    batch = batch_of(4, 1, 1)
    batch.tokens[case.reads[0]][0, 0] = float("nan")
    assert case(batch).all()
