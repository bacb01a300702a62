"""What a factor may be set to: a range of integers, or a list of values from the simplest on. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_SIMPLER = 4
"""So many simpler values are tried."""


@dataclass(frozen=True, slots=True)
class Span:
    """Integers from `low` to `high`, both included."""

    low: int
    high: int

    def drawn(self, number: int, usual: Any) -> int:
        """The value that a large number picks; never `usual`, where there is another."""
        is_inside = isinstance(usual, int) and self.low <= usual <= self.high
        if not is_inside or self.low == self.high:
            return self.low + number % (self.high - self.low + 1)
        value = self.low + number % (self.high - self.low)
        return value if value < usual else value + 1

    def simpler(self, value: Any, usual: Any) -> Iterator[int]:
        """Values nearer to the usual one, the nearest first, each twice as far away as the one before.

        Where nothing is usual, from the lowest on.
        """
        middle = usual if isinstance(usual, int) else self.low - 1
        direction = 1 if value > middle else -1
        for away in (2**power for power in range(MAX_SIMPLER)):
            if away < abs(value - middle) and middle + direction * away in self:
                yield middle + direction * away

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Some values, the simplest first."""

    options: tuple[Any, ...]

    def drawn(self, number: int, usual: Any) -> Any:
        """The value that a large number picks; never `usual`, where there is another."""
        others = [option for option in self.options if not is_same(option, usual)] or list(self.options)
        return others[number % len(others)]

    def simpler(self, value: Any, usual: Any) -> Iterator[Any]:
        """Some values that stand before it, the simplest first."""
        if value in self:
            before = self.options[: next(i for i, option in enumerate(self.options) if is_same(option, value))]
            yield from [option for option in before if not is_same(option, usual)][:MAX_SIMPLER]

    def __contains__(self, value: object) -> bool:
        return any(is_same(option, value) for option in self.options)

    def __str__(self) -> str:
        return ", ".join(map(str, self.options))


Values = Span | Choice


def is_same(a: object, b: object) -> bool:
    """Whether two plain values are one: 1 is neither True nor 1.0."""
    return type(a) is type(b) and a == b
