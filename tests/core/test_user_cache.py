import os
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.core.user_cache import user_cache


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


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "rlharness").symlink_to("elsewhere")

    with pytest.raises(UsageError, match="it is a link"):
        user_cache({"XDG_CACHE_HOME": str(tmp_path)})


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rlharness").write_text("")

    with pytest.raises(UsageError, match="cannot be used"):
        user_cache({"XDG_CACHE_HOME": str(tmp_path)})


def test_one_that_everybody_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rlharness").mkdir()
    (tmp_path / "rlharness").chmod(0o777)

    with pytest.raises(UsageError, match="every user can write to it"):
        user_cache({"XDG_CACHE_HOME": str(tmp_path)})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_one_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rlharness").mkdir(mode=0o700)
    os.chown(tmp_path / "rlharness", 65534, 65534)

    with pytest.raises(UsageError, match="user 65534 owns it"):
        user_cache({"XDG_CACHE_HOME": str(tmp_path)})
