"""Drawn tasks: right answers, no prompt twice, nothing held out is trained on, the same anywhere."""

import math
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.config import TaskSection
from rlcore.data import recommendation
from rlcore.data.generated import EXERCISES, draw
from rlcore.data.tasks import alphabet, make_task
from rlcore.errors import InvalidValueError
from rlcore.models.tokenizer import CharacterTokenizer
from tests.support.recorded_programs import run

NAMES = tuple(EXERCISES)
LENGTHS = st.tuples(st.integers(1, 20), st.integers(0, 3)).map(lambda pair: (pair[0], sum(pair)))
few = settings(max_examples=25)
every_name = pytest.mark.parametrize("name", NAMES)


def right_answer(name: str, prompt: str) -> str:
    match name:
        case "reverse_text":
            return "".join(reversed(prompt.removesuffix(">")))
        case "sorting":
            return "".join(sorted(prompt.removesuffix("|")))
        case "recommendation":
            return recommendation.completion(history(prompt))
        case "products":
            return str(math.prod(map(int, prompt.removesuffix("=").split("*"))))
    one, sign, two = parts(prompt)
    if sign == "+":
        return units_first(int(one[::-1]) + int(two[::-1]), len(one) + 1)
    return units_first(int(one[::-1]) - int(two[::-1]), len(one))


def parts(prompt: str) -> tuple[str, str, str]:
    """The first number as it is written, the sign, and the second."""
    body = prompt.removesuffix("=")
    return body.partition("+" if "+" in body else "-")


def history(prompt: str) -> list[str]:
    """Items of three characters each."""
    ids = prompt.removesuffix(">")
    return [ids[at : at + 3] for at in range(0, len(ids), 3)]


def units_first(number: int, digits: int) -> str:
    """Digit by digit; a negative number has no way to be written."""
    assert 0 <= number < 10**digits
    return "".join(str(number // 10**place % 10) for place in range(digits))


def size(name: str, prompt: str) -> int:
    """Letters of a word, items of a history, digits of either number."""
    if name == "recommendation":
        return len(history(prompt))
    if name == "products":
        return len(prompt.partition("*")[0])
    if name != "arithmetic":
        return len(prompt) - 1
    one, _, two = parts(prompt)
    assert len(one) == len(two)
    return len(one)


@every_name
@few
@given(lengths=LENGTHS, seed=st.integers(0, 2**64))
def test_examples_are_right_and_different(name: str, lengths: tuple[int, int], seed: int) -> None:
    drawn = draw(name, lengths, 24, seed)
    assert len({example.prompt for example in drawn}) == 24
    for example in drawn:
        assert example.answer == right_answer(name, example.prompt)
        assert lengths[0] <= size(name, example.prompt) <= lengths[1]
        assert {*example.prompt, *example.answer} <= {*alphabet(name)}


@every_name
@few
@given(seed=st.integers(0, 99), num=st.integers(0, 40))
def test_a_longer_draw_begins_with_the_shorter(name: str, seed: int, num: int) -> None:
    assert draw(name, (2, 3), 40, seed)[:num] == draw(name, (2, 3), num, seed)


@every_name
def test_all_there_is_can_be_drawn(name: str) -> None:
    num = {"arithmetic": 100 + 55, "recommendation": 48}.get(name, 26)  # a difference is not below 0
    assert len({example.prompt for example in draw(name, (1, 1), num, 0)}) == num


def test_sums_and_differences_are_drawn_alike() -> None:
    signs = [parts(example.prompt)[1] for example in draw("arithmetic", (3, 3), 400, 0)]
    assert 150 < signs.count("+") < 250
    assert signs.count("-") == 400 - signs.count("+")


@every_name
def test_lengths_are_drawn_alike(name: str) -> None:
    drawn = draw(name, (3, 4), 400, 0)
    num_long = sum(size(name, example.prompt) == 4 for example in drawn)
    assert 150 < num_long < 250


def test_a_short_length_is_drawn_until_there_is_no_more() -> None:
    drawn = draw("reverse_text", (1, 2), 400, 0)
    assert sum(len(example.answer) == 1 for example in drawn) == 26


@pytest.mark.parametrize(
    ("name", "told", "remedy"),
    [
        ("reverse_text", "lengths 1 to 1 has 26 prompts, and 640 are wanted", "task.max_length 2 makes 702"),
        ("sorting", "lengths 1 to 1 has 26 prompts, and 640 are wanted", "task.max_length 2 makes 702"),
        ("arithmetic", "lengths 1 to 1 has 155 prompts, and 640 are wanted", "task.max_length 2 makes 15205"),
    ],
)
def test_too_few_prompts_are_counted(name: str, told: str, remedy: str) -> None:
    section = TaskSection.model_validate({"name": name, "min_length": 1, "max_length": 1})
    with pytest.raises(InvalidValueError, match=told) as raised:
        make_task(section, CharacterTokenizer(alphabet(name)), 0)
    assert raised.value.remedy == remedy


# ------------------------------------------------------------------------------------------------------- whole tasks


@every_name
@few
@given(num_prompts=st.integers(1, 60), num_heldout=st.integers(1, 60), seed=st.integers(0, 9))
def test_nothing_held_out_is_trained_on(name: str, num_prompts: int, num_heldout: int, seed: int) -> None:
    section = TaskSection.model_validate(
        {"name": name, "min_length": 1, "max_length": 2, "num_prompts": num_prompts, "num_heldout": num_heldout}
    )
    tokenizer = CharacterTokenizer(alphabet(name))
    task = make_task(section, tokenizer, seed)
    assert (len(task.train), len(task.heldout)) == (num_prompts, num_heldout)
    prompts = [*task.train, *task.heldout]
    assert len({prompt.text for prompt in prompts}) == len({prompt.id for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        assert tokenizer.decode(prompt.tokens) == prompt.text
        assert prompt.columns == {"answer": right_answer(name, prompt.text), "data_source": name}


@every_name
def test_more_prompts_leave_the_others_as_they_are(name: str) -> None:
    tokenizer = CharacterTokenizer(alphabet(name))
    small, large = (
        make_task(TaskSection.model_validate({"name": name, "num_prompts": num}), tokenizer, 3) for num in (10, 100)
    )
    assert large.heldout == small.heldout
    assert large.train[:10] == small.train


def test_the_seed_decides() -> None:
    one, same, other = (draw("sorting", (3, 4), 20, seed) for seed in (1, 1, 2))
    assert one == same != other


@every_name
def test_no_global_state_is_read_or_changed(name: str) -> None:
    random.seed(1)
    before = random.getstate()
    drawn = draw(name, (3, 4), 20, 0)
    assert random.getstate() == before
    random.seed(2)
    assert draw(name, (3, 4), 20, 0) == drawn


@pytest.mark.full
def test_other_processes_and_hash_seeds_make_the_same_tasks() -> None:
    code = (
        "from rlcore.config import TaskSection as S\n"
        "from rlcore.models.tokenizer import CharacterTokenizer as T\n"
        "from rlcore.data.tasks import alphabet, make_task\n"
        f"for name in {NAMES!r}:\n"
        "    task = make_task(S(name=name), T(alphabet(name)), 5)\n"
        "    print([(p.id, p.text, p.tokens, dict(p.columns)) for p in (*task.train, *task.heldout)])\n"
    )
    one, other = (run(sys.executable, "-c", code, env={"PYTHONHASHSEED": seed}) for seed in ("1", "2"))
    assert one == other
    assert one.output.startswith("[('"), one.errors


@pytest.mark.parametrize(
    ("name", "prompts"),
    [
        ("reverse_text", ["uxl>", "ujoc>", "zao>", "wdvj>"]),
        ("arithmetic", ["9099+5883=", "1290+6973=", "6563-4153=", "7121-4920="]),
        ("sorting", ["xvcu|", "kcp|", "tig|", "zeu|"]),
    ],
)
def test_prompts_are_those_of_earlier_versions(name: str, prompts: list[str]) -> None:
    """Others would change every run that is known by its configuration."""
    assert [example.prompt for example in draw(name, (3, 4), len(prompts), 0)] == prompts
