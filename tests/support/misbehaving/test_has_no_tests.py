"""Has no tests: NO_TESTS."""


def helper() -> None:
    pass
