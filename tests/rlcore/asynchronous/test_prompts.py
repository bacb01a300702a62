"""Which prompt a group has: shares of tasks, prompts that are left out, and nothing else."""

from collections import Counter

import pytest

from rlcore.asynchronous.prompts import Prompts
from rlcore.config import read_config
from rlcore.data.tasks import Task, alphabet, make_task
from rlcore.errors import InvalidValueError
from rlcore.models.tokenizer import CharacterTokenizer

TOKENIZER = CharacterTokenizer(alphabet("reverse_text"))


def task(num_prompts: int, seed: int = 1) -> Task:
    payload = {"task": {"name": "reverse_text", "num_prompts": num_prompts, "num_heldout": 2}}
    return make_task(read_config({**payload, "algorithm": {"name": "grpo"}}).task, TOKENIZER, seed)


def test_tasks_have_their_shares_at_every_moment_and_each_prompt_once_an_epoch() -> None:
    prompts = Prompts([task(6), task(5, 2)], [3.0, 1.0], seed=1, per_step=4)
    drawn = [prompts.of(group, 0) for group in range(32)]
    for at in range(4, 33, 4):
        assert Counter(number for number, _, _ in drawn[:at]) == {0: at * 3 // 4, 1: at // 4}
    first = [prompt.id for number, prompt, _ in drawn if number == 0]
    assert len(set(first[:6])) == len(set(first[6:12])) == 6
    assert [
        number for number, _, _ in (Prompts([task(6), task(2)], None, seed=1, per_step=4).of(g, 0) for g in range(8))
    ].count(1) == 2, "without shares each prompt counts once"


def test_a_group_follows_from_its_number_and_version_whoever_asks_and_in_which_order() -> None:
    def fresh() -> Prompts:
        made = Prompts([task(8)], None, seed=1, per_step=4)
        made.leave_out([(0, made.of(0, 0)[1].id)])
        made.leave_out([(0, made.of(1, 0)[1].id)])
        return made

    expected = {(group, version): fresh().of(group, version) for group in range(12) for version in range(3)}
    one = fresh()
    assert {place: one.of(*place) for place in reversed(expected)} == expected
    late = [expected[group, 2][1].id for group in range(12)]
    assert not {one.of(0, 0)[1].id, one.of(1, 0)[1].id} & {*late}, "those that are left out are not drawn"
    assert one.of(0, 0)[1].id in {expected[group, 0][1].id for group in range(12)}, "by an earlier version they are"


def test_a_prompt_that_comes_twice_in_a_step_counts_on() -> None:
    prompts = Prompts([task(3)], None, seed=1, per_step=4)
    drawn = [prompts.of(group, 0) for group in range(4)]
    twice = Counter(prompt.id for _, prompt, _ in drawn).most_common(1)[0][0]
    assert [before for _, prompt, before in drawn if prompt.id == twice] == [0, 1]


def test_when_every_prompt_is_left_out_it_is_said() -> None:
    prompts = Prompts([task(2)], None, seed=1, per_step=2)
    prompts.leave_out((0, each.id) for each in task(2).train)
    with pytest.raises(InvalidValueError, match="every prompt of reverse_text is too easy or too hard"):
        prompts.of(2, 1)
