"""Every command on five trainers: the kept results are as expected, and the page shows them."""

import json

from tests.conformance.commands.__main__ import HERE, MARKS, PAGE, RESULTS, STEPS, TRAINERS, is_expected, table


def test_every_command_ended_as_expected_on_every_trainer() -> None:
    results = json.loads(RESULTS.read_text("utf-8"))
    assert results.keys() == {each.name for each in TRAINERS}
    assert [each.name for each in TRAINERS if not is_expected(each, results[each.name])] == []


def test_an_exit_code_that_is_not_expected_is_found() -> None:
    for trainer in TRAINERS:
        found = {step.title: f"EQUAL, {trainer.code(step)}" for step in STEPS}
        assert is_expected(trainer, found) and not is_expected(trainer, {**found, "replay": "DIVERGED, 10"})
        assert (HERE / "scripts" / f"train_{trainer.name}.py").exists()


def test_the_page_shows_the_results() -> None:
    shown = PAGE.read_text("utf-8").partition(MARKS[0])[2].partition(MARKS[1])[0]
    assert shown == table(json.loads(RESULTS.read_text("utf-8")))
