"""Lies beside a conftest that raises: COLLECT_ERROR."""


def test_never_runs() -> None:
    pass
