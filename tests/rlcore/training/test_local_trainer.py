"""The norm of gradients, and the optimizer's step."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rlcore.config import OptimizerSection, RuntimeSection
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Critic, Decoder
from rlcore.numerics.probe import num_threads
from rlcore.trainers.gradients import global_norm
from rlcore.trainers.trainer import Trainer

SECTION = OptimizerSection(learning_rate=0.1)


class Pair(nn.Module):
    """A matrix and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3))
        self.other = nn.Parameter(torch.ones(2))


def test_a_step_is_torchs_own_with_the_gradient_clipped() -> None:
    """Over two steps, the first below the bound: Adam's first step is the same whatever the gradient's scale."""
    ours, theirs = Pair(), Pair()
    trainer = Trainer("policy", ours, 0.1, section=SECTION, runtime=RuntimeSection())
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.05, weight_decay=0.0)
    for flat in (torch.linspace(0.1, -0.05, 8), torch.linspace(-1, 1, 8)):
        trainer.gradients = [flat[:6].reshape(2, 3).clone(), flat[6:].clone()]
        norm = trainer.optimizer_step(learning_rate=0.05, max_norm=0.5)
        theirs.weight.grad, theirs.other.grad = flat[:6].reshape(2, 3).clone(), flat[6:].clone()
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)), rel=1e-6)
        optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.other, theirs.other)


def test_weights_in_bfloat16_move_at_a_rate_that_each_step_alone_would_lose() -> None:
    """200 steps of 1e-6 from 0.05, where neighbours in bfloat16 are 2.4e-4 apart: the optimizer moves fp32 weights."""
    start = torch.full((4, 8), 0.05, dtype=torch.bfloat16)
    alone = nn.Parameter(start.clone())
    model = nn.ParameterDict({"weight": nn.Parameter(start.clone())})
    section = OptimizerSection(learning_rate=1e-6)
    trainer = Trainer("policy", model, 1e-6, section=section, runtime=RuntimeSection())
    optimizer = torch.optim.AdamW([alone], lr=1e-6, weight_decay=0.0)
    for _ in range(200):
        trainer.gradients = [torch.ones(4, 8)]
        trainer.optimizer_step(learning_rate=1e-6, max_norm=None)
        alone.grad = torch.ones_like(alone)
        optimizer.step()
    assert torch.equal(alone, start), "without them nothing moves"
    assert model["weight"].dtype == torch.bfloat16
    torch.testing.assert_close(model["weight"].float(), torch.full((4, 8), 0.0498), atol=1.3e-4, rtol=0)
    assert not torch.equal(model["weight"], start)
    torch.testing.assert_close(trainer.masters["weight"], start.float() - 200e-6, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_has_the_same_bits_for_any_threads(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=generator).to(dtype) for shape in ((700, 900), (1300,), (), (3, 5, 7))]
    found = []
    for count in (1, 2):
        with num_threads(count):
            found.append(global_norm(gradients))
    assert found[0] == found[1]
    every: Tensor = torch.cat([gradient.double().reshape(-1) for gradient in gradients])
    assert found[0] == pytest.approx(float(every.norm()), rel=1e-12)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_step_without_a_gradient_decays_matrices_alone(family: str, tmp_path: Path) -> None:
    """By rate times decay, also after a resume; norms, biases and embeddings stay, of a critic too."""
    sizes = DecoderConfig(family, 8, 4, 1, 2, 1, 2, 6, max_length=8, is_tied=False)
    section = OptimizerSection(learning_rate=0.1, weight_decay=0.5)
    for build, heads in ((Decoder, {"head"}), (Critic, {"weight"})):
        trainers = [Trainer("policy", build(sizes), 0.1, section=section, runtime=RuntimeSection()) for _ in range(2)]
        for parameter in trainers[0].model.parameters():
            nn.init.ones_(parameter)
        for trainer in trainers:
            trainer.gradients = [torch.zeros_like(each) for each in trainer.model.parameters()]
            trainer.optimizer_step(learning_rate=0.1, max_norm=None)
            trainers[0].write_state(tmp_path)
            trainers[1].read_state(tmp_path)
        found = {name.rpartition(".")[2]: float(each.mean()) for name, each in trainers[1].weights().tensors.items()}
        decayed = {name for name, value in found.items() if value != 1.0}
        assert decayed == {"qkv", "out", "gate_up", "down"} | heads
        assert [found[name] for name in decayed] == pytest.approx([0.95] * 5)
