"""How a perturbation is brought to a run: its variables."""

from harness.lab.chaos.search import environ_of


def test_a_run_with_nothing_changed_has_a_hash_seed_too() -> None:
    assert environ_of({}, {"A": "b"}) == {"A": "b", "PYTHONHASHSEED": "0", "OMP_WAIT_POLICY": "passive"}
    assert environ_of({}, {"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"
    assert environ_of({}, {"PYTHONHASHSEED": "9"})["PYTHONHASHSEED"] == "9"
    assert environ_of({"hash_seed": 7}, {"PYTHONHASHSEED": "9"})["PYTHONHASHSEED"] == "7"


def test_threads_go_by_all_their_names() -> None:
    found = environ_of({"threads": 3}, {"OMP_NUM_THREADS": "1"})
    assert {found[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"3"}
