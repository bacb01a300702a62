"""What a command line with --vary means, and what lines of measurements say: nothing is started."""

from typing import Any

import pytest

from harness.bits.errors import UsageError
from harness.lab.chaos.vary import (
    Calls,
    Comparison,
    Kind,
    amounts,
    compare,
    fill,
    parse_settings,
    pieces,
    sentence_of,
    split_noise,
)

ARGV = ("python", "train.py", "--accum={G}", '{"a": {G}, "b": {}}', "{{G}}", "{{ messages }}", "f'{x}'", "{G}{c}")


def test_braces_that_are_no_placeholder_stay() -> None:
    assert parse_settings(["G=1,4", "c=on,off"], ARGV) == {"G": ("1", "4"), "c": ("on", "off")}
    assert fill(ARGV, {"G": "4", "c": "on"}) == (
        *("python", "train.py", "--accum=4", '{"a": 4, "b": {}}', "{{G}}", "{{ messages }}", "f'{x}'", "4on"),
    )


@pytest.mark.parametrize(
    ("vary", "argv", "said"),
    [
        (["G=4"], ["{G}"], "--vary G=4"),
        (["G=1,1"], ["{G}"], "--vary G=1,1"),
        (["a b=1,2"], ["{G}"], "--vary a b=1,2"),
        (["G=1,2", "G=1,3"], ["{G}"], "--vary G is given twice"),
        (["G=1,2"], ["train.py"], "the command has no {G}"),
        (["G=1,2"], ["{G}", "--cache={cache}"], "{cache} in the command has no values"),
    ],
)
def test_settings_that_do_not_fit_the_command_are_refused(vary: list[str], argv: list[str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_settings(vary, argv)
    assert said in refused.value.what


def line(number: int = 0, state: str = "a", **found: Any) -> dict[str, Any]:
    nothing = {"bit": None, "worst": None, "difference": None}
    return {"optimizer": 0, "number": number, "random": {"torch": state, "python": "x"}, **nothing, **found}


def found_in(*varied: dict[str, Any], unsteady: frozenset[str] = frozenset()) -> Comparison:
    return compare({"0": [line(number) for number in range(3)]}, {"0": list(varied)}, unsteady)


def said(found: Comparison, value: str = "4", *, has_bits: bool = False) -> str:
    return sentence_of({"G": value}, {"G": "1"}, found, has_bits=has_bits)


def test_equal_and_rounding() -> None:
    assert said(found_in(line(0), line(1), line(2))) == "G=4 changes no bit of 3 steps."
    worst = [0.812, "state", "0.weight exp_avg"]
    found = found_in(line(0), line(1, bit=["gradient", "0.weight"]), line(2, bit=["state", "x"], worst=worst))
    text = "G=4 changes bits from step 1 on (the gradient of 0.weight), at most 0.81 times what one ulp of the weights"
    text += " does."
    assert (found.kind, said(found)) == (Kind.ROUNDING, text)
    assert said(found, has_bits=True) == f"no bit may differ, yet {text}"


def test_a_factor_names_the_setting_whose_value_it_is() -> None:
    def factor(value: float) -> str:
        return said(found_in(line(difference={"kind": "FACTOR", "of": "gradients", "factor": value})))

    assert factor(4.0) == "Step 0: with G=4 all gradients are 4 times the base's: the loss is not divided by G."
    assert factor(0.25).endswith("0.25 times the base's: the loss is divided by G once too often.")
    assert factor(0.5).endswith("all gradients are 0.5 times the base's.")


def test_a_learning_rate() -> None:
    difference = {"kind": "SETTINGS", "name": "group0.lr", "values": [0.00999, 0.00996]}
    assert said(found_in(line(0), line(1, difference=difference))).startswith(
        "Step 1: with G=4 the learning rate is 0.00996 against 0.00999 in the base: the schedule"
    )


def test_a_difference_with_its_steps() -> None:
    difference = {
        "kind": "DIFFERENT",
        "phase": "gradient",
        "name": "0.weight",
        "share": 0.91,
        "times": 2e6,
        "problem": "",
    }
    assert said(found_in(line(0), line(1), line(2, difference=difference))) == (
        "Step 2: with G=4 the gradient of 0.weight differs by 0.91 of its norm, 2e+06 times rounding;"
        " steps 0-1 differed by rounding at most."
    )
    assert "; 3 steps in the base, 1 with G=4." in said(found_in(line(0, difference=difference)))
    fewer = found_in(line(0), line(1))
    assert fewer.kind is Kind.DIFFERENT
    assert said(fewer).startswith("3 steps in the base, 2 with G=4: the last steps are left out;")
    assert "there are more steps at its end" in said(found_in(*(line(number) for number in range(4))))


def test_generators_count_up_to_the_difference_and_only_where_the_base_repeats_them() -> None:
    difference = {"kind": "DIFFERENT"}
    assert found_in(line(0, difference=difference), line(1, "b")).moved is None
    assert found_in(line(0, "b", difference=difference)).moved == ("torch", 0)
    assert found_in(line(0, "b", difference=difference), unsteady=frozenset({"torch"})).moved is None


def test_the_rank_that_differs_most_is_shown() -> None:
    base = {"0": [line()], "1": [line()]}
    varied = {"0": [line(bit=["gradient", "x"])], "1": [line(difference={"kind": "DIFFERENT"})], "2": []}
    assert compare(base, varied).kind is Kind.DIFFERENT


def test_noise_in_other_pieces_is_known_from_more_noise() -> None:
    base: Calls = {"dropout": [(0, (16, 64))], "train.py:7": [(0, (12, 4))], "train.py:9": [(0, (3,))]}
    varied: Calls = {"dropout": [(0, (4, 64))] * 4, "train.py:7": [(0, (3, 4))] * 4, "train.py:9": [(0, (3,))] * 2}
    assert split_noise(base, varied) == ("train.py:7",)
    assert amounts({"dropout": base["dropout"]}) == amounts({"dropout": varied["dropout"]})
    assert pieces(base, varied, ["dropout", "train.py:7"]) == (
        "the mask of dropout is drawn in 4 pieces a step instead of 1 and the noise of train.py:7 is drawn in 4 pieces"
        " a step instead of 1"
    )
    norms: tuple[Calls, Calls] = {"batch_norm": [(0, (16, 6))]}, {"batch_norm": [(0, (4, 6))] * 4}
    assert pieces(*norms, ["batch_norm"]) == "batch norm normalises over 4 rows instead of 16"
    assert amounts(norms[0]) == {}
