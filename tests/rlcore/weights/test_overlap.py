"""A question and own work at once: the level goes with the question, and no error is lost."""

import threading

import pytest

from rlcore.numerics.level import active, following
from rlcore.numerics.padding import Padding
from rlcore.weights.overlap import at_once


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_both_follow_the_level_of_the_caller(is_elsewhere: bool) -> None:
    strategy = Padding()
    with following(strategy):
        there, here = at_once(active, active, is_elsewhere=is_elsewhere)
    assert there is here is strategy


def test_a_question_to_another_process_waits_in_a_thread_of_its_own() -> None:
    begun = threading.Event()

    def there() -> str:
        begun.set()
        return threading.current_thread().name

    def here() -> str:
        assert begun.wait(10), "the question is asked while the own work goes on"
        return threading.current_thread().name

    named, own = at_once(there, here, is_elsewhere=True)
    assert named != own == threading.current_thread().name
    assert at_once(threading.get_ident, threading.get_ident, is_elsewhere=False)[0] == threading.get_ident()


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_errors_of_either_are_raised(is_elsewhere: bool) -> None:
    def broken() -> int:
        raise LookupError("broken")

    for pair in ((broken, int), (int, broken)):
        with pytest.raises(LookupError, match="broken"):
            at_once(*pair, is_elsewhere=is_elsewhere)
