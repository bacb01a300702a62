"""The level of determinism of the trainer, at work in the engine's process too: proven there before it is followed."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import torch

from rlcore.models.config import DecoderConfig
from rlcore.numerics.level import active, check_settings, following, longest
from rlcore.numerics.probe import LENGTH, STRATEGIES, InvarianceReport, certify, check_effect


@dataclass(frozen=True, slots=True)
class Level:
    """How a thread computes: plain values, which pass between processes."""

    strategy: str | None
    """Name of the kernel strategy; None: level invariant is off."""
    longest: int | None
    """Most keys of attention, as certified."""
    is_deterministic: bool
    """Whether torch refuses what it cannot do twice alike."""
    num_threads: int

    @classmethod
    def here(cls) -> Self:
        """Return the level of the calling thread."""
        strategy = active()
        return cls(
            None if strategy is None else strategy.name,
            longest(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
        )


class LevelSwitch:
    """Follows one level after another in this thread, for a decoder of one configuration and type."""

    def __init__(self, config: DecoderConfig, like: torch.Tensor) -> None:
        self._config, self._dtype, self._device = config, like.dtype, str(like.device)
        self._level: Level | None = None
        self._entered = ExitStack()
        self._reports: dict[tuple[str, int], InvarianceReport] = {}

    def follow(self, level: Level) -> None:
        """Compute at this level from now on. Raises LevelError where it does not hold in this process."""
        if level != self._level:
            self._entered.close()
            self._level = None
            torch.set_num_threads(level.num_threads)
            torch.use_deterministic_algorithms(level.is_deterministic)
            if level.strategy is not None:
                length = level.longest or LENGTH
                report = self._report(level.strategy, length)
                self._entered.enter_context(following(report.strategy, longest=level.longest))
                check_effect(report)
            self._level = level
        elif level.strategy is not None:
            check_settings()

    def _report(self, strategy: str, length: int) -> InvarianceReport:
        """Look at this process once: its libraries and threads are not the trainer's."""
        if (strategy, length) not in self._reports:
            config = self._config
            self._reports[strategy, length] = certify(
                self._dtype,
                self._device,
                shapes=config.product_shapes,
                heads=(config.head_shape,),
                length=length,
                strategies=[each for each in STRATEGIES if each.name == strategy],
            )
        return self._reports[strategy, length]
