import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.process.user_cache import user_cache


def test_it_is_made_for_this_user_alone(tmp_path: Path) -> None:
    made = user_cache({"XDG_CACHE_HOME": str(tmp_path / "cache")})

    assert made == tmp_path / "cache/rlharness"
    assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("given", [{}, {"XDG_CACHE_HOME": "here"}], ids=["unset", "relative"])
def test_it_lies_in_the_home_directory_unless_an_absolute_path_is_given(given: dict[str, str], tmp_path: Path) -> None:
    assert user_cache({"HOME": str(tmp_path), **given}) == tmp_path / ".cache/rlharness"


def test_one_that_the_group_could_write_is_closed(tmp_path: Path) -> None:
    (tmp_path / "rlharness").mkdir()
    (tmp_path / "rlharness").chmod(0o775)

    assert user_cache({"XDG_CACHE_HOME": str(tmp_path)}).stat().st_mode & 0o777 == 0o700


def for_everybody(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def of_another(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.symlink_to("elsewhere"), "it is a link"),
        (Path.touch, "cannot be used"),
        (for_everybody, "every user can write to it"),
        pytest.param(
            of_another,
            "user 65534 owns it",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away"),
        ),
    ],
)
def test_a_place_that_is_not_safe_is_refused(tmp_path: Path, make: Callable[[Path], object], said: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    make(tmp_path / "rlharness")
    with pytest.raises(UsageError, match=said):
        user_cache({"XDG_CACHE_HOME": str(tmp_path)})
