"""An advantage and a loss of a user's own, by module:function."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.algorithms.losses import Tokens
from rlcore.config import RunConfig, read_config
from rlcore.data.batch import Batch
from rlcore.entrypoint import train
from rlcore.errors import InvalidValueError
from rlcore.log import NullRecorder
from tests.rlcore.training.recorded import config, first_difference, recorded

SHORT = {"num_steps": 2, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4}


def centred(batch: Batch, config: RunConfig) -> Tensor:
    """Reward less the mean of its group: one number a completion."""
    rewards, groups = batch["rewards"], batch["groups"]
    means = torch.stack([rewards[groups == group].mean() for group in groups])
    return torch.where(batch["included"], rewards - means, 0.0)


def on_tokens(batch: Batch, config: RunConfig) -> Tensor:
    """The same on each token."""
    return torch.where(batch["loss_mask"], centred(batch, config).unsqueeze(1), 0.0)


def ratio(tokens: Tensor | Tokens, config: RunConfig) -> Tensor:
    """The ratio without a clip."""
    assert isinstance(tokens, Tokens)
    return -tokens.advantages * torch.where(tokens.loss_mask, tokens.logprobs - tokens.old_logprobs, 0.0).exp()


def writing_advantage(batch: Batch, config: RunConfig) -> Tensor:
    """Like `centred`, and writes into its arguments."""
    found = centred(batch, config)
    batch["rewards"].sub_(0.5)
    batch["loss_mask"].fill_(value=True)
    return found


def writing_loss(tokens: Tokens, config: RunConfig) -> Tensor:
    """Like `ratio`, and writes into its arguments."""
    found = ratio(tokens, config)
    for each in (tokens.old_logprobs, tokens.rollout_logprobs):  # autograd keeps the others for itself
        each.zero_()
    return found


def raising(given: Any, config: RunConfig) -> Any:
    return given["reward"] if isinstance(given, Batch) else 1 / 0


def nothing(given: Any, config: RunConfig) -> Any:
    return None


def not_numbers(given: Any, config: RunConfig) -> Any:
    return centred(given, config) / 0 if isinstance(given, Batch) else ratio(given, config) * torch.nan


def one_number(given: Any, config: RunConfig) -> Any:
    return given["rewards"].mean() if isinstance(given, Batch) else ratio(given, config).mean()


def detached(tokens: Tokens, config: RunConfig) -> Tensor:
    return ratio(tokens, config).detach()


def of(**algorithm: str) -> RunConfig:
    return config(algorithm={"name": "grpo", **algorithm}, training=SHORT)


def test_own_functions_learn_as_the_packages_do(tmp_path: Path) -> None:
    """A single update has a ratio of 1, which no clip moves; of equal rewards neither estimate makes anything."""
    own = of(advantage=f"{__name__}:centred", loss=f"{__name__}:ratio", aggregation="token-mean")
    given = of(advantage="dr_grpo", loss="ppo_clip", aggregation="token-mean")
    found, expected = recorded(own, tmp_path / "own"), recorded(given, tmp_path / "given")
    assert found.curve.keys() == {0, 1}
    for step, values in expected.curve.items():
        assert found.curve[step] == pytest.approx(values, rel=1e-4, abs=1e-6)
    assert any(value != 0 for values in found.curve.values() for name, value in values.items() if name == "loss")
    assert first_difference(found, recorded(own, tmp_path / "again")) is None
    spread = of(advantage=f"{__name__}:on_tokens", loss=f"{__name__}:ratio", aggregation="token-mean")
    assert first_difference(found, recorded(spread, tmp_path / "spread")) is None


def test_what_own_functions_write_reaches_nothing(tmp_path: Path) -> None:
    pure = of(advantage=f"{__name__}:centred", loss=f"{__name__}:ratio", aggregation="token-mean")
    writing = of(advantage=f"{__name__}:writing_advantage", loss=f"{__name__}:writing_loss", aggregation="token-mean")
    found, expected = recorded(writing, tmp_path / "writing"), recorded(pure, tmp_path / "pure")
    assert first_difference(found, expected) is None
    assert found.curve == expected.curve


@pytest.mark.parametrize(
    ("algorithm", "said", "legal"),
    [
        ({"advantage": "raising"}, r"raising raised KeyError: 'reward', at .*test_own_functions.py:\d+", "rewards, "),
        (
            {"advantage": "nothing"},
            "nothing returned None",
            r"floats \[samples, positions\], here \[16, \d+\], or \[samples\]",
        ),
        ({"advantage": "not_numbers"}, r"not_numbers returned (nan|-?inf) at \[\d+\]", "a finite number"),
        (
            {"advantage": "one_number"},
            r"one_number returned float64 \[\]",
            r"floats \[samples, positions\], here \[16, \d+\], or \[samples\]",
        ),
        ({"loss": "raising"}, r"raising raised ZeroDivisionError: .*, at .*test_own_functions.py:\d+", ""),
        ({"loss": "nothing"}, "nothing returned None", r"floats \[samples, positions\], here \[16, \d+\]"),
        ({"loss": "not_numbers"}, r"not_numbers returned nan at \[\d+, \d+\]", "a finite number"),
        (
            {"loss": "one_number"},
            r"one_number returned float32 \[\]",
            r"floats \[samples, positions\], here \[16, \d+\]",
        ),
        ({"loss": "detached"}, "detached returned losses without a gradient", "tokens.logprobs"),
    ],
)
def test_an_own_function_that_fails_is_named(algorithm: dict[str, str], said: str, legal: str, tmp_path: Path) -> None:
    ((kind, name),) = algorithm.items()
    with pytest.raises(InvalidValueError, match=said) as failed:
        train(of(**{kind: f"{__name__}:{name}"}), level="off", directory=tmp_path, recorder=NullRecorder())
    assert failed.value.what.startswith(f"{__name__}:{name} ")
    assert re.search(legal, failed.value.legal)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"loss": "ppo_clipp"}, "algorithm.loss is 'ppo_clipp'"),
        ({"advantage": "grp"}, "algorithm.advantage is 'grp'"),
        ({"loss": f"{__name__}:ratoi"}, "has no 'ratoi'"),
        ({"advantage": "no_such_module:f"}, "no module 'no_such_module', for no_such_module:f of adv"),
    ],
)
def test_a_name_that_is_none_is_an_error_before_anything_is_built(
    algorithm: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidValueError, match=said):
        train(
            read_config({"task": {"name": "sorting"}, "algorithm": {"name": "grpo", **algorithm}}),
            level="off",
            directory=tmp_path,
            recorder=NullRecorder(),
        )
