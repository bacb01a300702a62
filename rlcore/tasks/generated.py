"""Tasks whose prompts are drawn: what there is to draw from, and the draw.

A task is counted out: kinds (lengths of words, digits of a number and the operator), and of each kind so many
prompts, numbered. Kinds are drawn alike, so that few short words stand beside many long ones, not one beside hundreds.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, product
from string import ascii_lowercase

from rlcore.errors import InvalidValueError
from rlcore.keys import key


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its right completion."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Kind:
    """Prompts that are alike in size."""

    num_examples: int
    """All of them different."""
    example: Callable[[int], Example]
    """By its number, from 0."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """A task that is drawn."""

    alphabet: str
    """Every character of its prompts and answers."""
    kinds: Callable[[int, int], list[Kind]]
    """Of the lengths from the first to the second."""


def _reversed(number: int, length: int) -> Example:
    word = _word(number, length)
    return Example(f"{word}>", word[::-1])


def _sorted(number: int, length: int) -> Example:
    word = _word(number, length)
    return Example(f"{word}|", "".join(sorted(word)))


def _word(number: int, length: int) -> str:
    """The `number`-th word of this length."""
    letters = []
    for _ in range(length):
        number, letter = divmod(number, len(ascii_lowercase))
        letters.append(ascii_lowercase[letter])
    return "".join(letters)


def _words(example: Callable[[int, int], Example]) -> Callable[[int, int], list[Kind]]:
    def kinds(shortest: int, longest: int) -> list[Kind]:
        return [_word_kind(example, length) for length in range(shortest, longest + 1)]

    return kinds


def _word_kind(example: Callable[[int, int], Example], length: int) -> Kind:
    return Kind(len(ascii_lowercase) ** length, lambda number: example(number, length))


def _sums(shortest: int, longest: int) -> list[Kind]:
    return [_sum_kind(digits, sign) for digits, sign in product(range(shortest, longest + 1), "+-")]


def _sum_kind(digits: int, sign: str) -> Kind:
    """A number of so many digits, without a leading zero, a sign and a digit: a carry, and all else is copied."""
    (least_one, num_one), (least_two, num_two) = _numbers(digits), _numbers(1)

    def example(number: int) -> Example:
        one, two = least_one + number // num_two, least_two + number % num_two
        return Example(f"{one}{sign}{two}=", str(one + two if sign == "+" else one - two))

    return Kind(num_one * num_two, example)


def _numbers(digits: int) -> tuple[int, int]:
    """The least number of so many digits, and how many there are."""
    return (0, 10) if digits == 1 else (10 ** (digits - 1), 9 * 10 ** (digits - 1))


EXERCISES = {
    "reverse_text": Exercise(ascii_lowercase + ">", _words(_reversed)),
    "sorting": Exercise(ascii_lowercase + "|", _words(_sorted)),
    "arithmetic": Exercise("0123456789+-=", _sums),
}
"""reverse_text: "abc>" is "cba". sorting: "dacb|" is "abcd". arithmetic: "12+7=" is "19", "3-5=" is "-2"."""


def draw(name: str, lengths: tuple[int, int], num_examples: int, seed: int) -> list[Example]:
    """So many different examples; the first n of more are the same n.

    Raises InvalidValueError where there are fewer.
    """
    kinds = EXERCISES[name].kinds(*lengths)
    _check_enough(name, lengths, num_examples)
    return list(islice(_drawn(kinds, random.Random(key("task", name, seed, *lengths))), num_examples))


def _drawn(kinds: list[Kind], drawing: random.Random) -> Iterator[Example]:
    """All there are, in the order in which they are drawn."""
    taken: list[set[int]] = [set() for _ in kinds]
    left = list(range(len(kinds)))
    while left:
        kind = left[drawing.randrange(len(left))]
        number = drawing.randrange(kinds[kind].num_examples)
        if number in taken[kind]:
            continue
        taken[kind].add(number)
        if len(taken[kind]) == kinds[kind].num_examples:
            left.remove(kind)
        yield kinds[kind].example(number)


def _check_enough(name: str, lengths: tuple[int, int], wanted: int) -> None:
    kinds, (shortest, longest) = EXERCISES[name].kinds, lengths
    if (given := _count(kinds(*lengths))) >= wanted:
        return
    while _count(kinds(shortest, longest)) < wanted:
        longest += 1
    raise InvalidValueError(
        f"{name} with lengths {lengths[0]} to {lengths[1]} has {given} prompts, and {wanted} are wanted",
        legal=f"task.num_prompts + task.num_heldout at most {given}",
        remedy=f"task.max_length {longest} makes {_count(kinds(shortest, longest))}",
    )


def _count(kinds: list[Kind]) -> int:
    return sum(kind.num_examples for kind in kinds)
