"""What of the database's URL reaches users that must not have its password."""

import pytest

from hpctl.engine.config import ConfigError, parse_config
from hpctl.engine.database_url import (
    has_url_password,
    mask_database_url_password,
    mask_url_password,
    parse_database_url,
)

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql//u:{SECRET}@h/db",
        f"postgresql://u:a:b@h:{SECRET}/db",
        f"postgresql://u:a@{SECRET}@h/db",
        f"u:{SECRET}@h",
    ],
)
def test_an_error_repeats_nothing_of_a_url_that_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="as %40") as caught:
        parse_config(f"database_url: {url}\n")
    assert SECRET not in str(caught.value) + caught.value.hint
    with pytest.raises(ValueError, match="as %40") as plain:
        parse_database_url(url)
    assert plain.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@h/db",
        f"postgresql://u:a%40{SECRET}@h/db",
        f"postgresql://u@h/db?sslmode=require&password={SECRET}",
        f"postgresql://u@h/db?sslpassword={SECRET}",
        f"mariadb://u@h/db?passwd={SECRET}",
    ],
)
def test_a_password_is_in_no_name_and_not_in_the_audit_trail(url: str) -> None:
    read = parse_database_url(url)
    assert has_url_password(read)
    assert SECRET not in mask_database_url_password(read) + mask_url_password(read)
    assert (
        SECRET
        not in parse_config(f"database_url: {url}\n").list_non_default_settings()["database_url"]
    )


def test_url_without_a_secret_is_shown() -> None:
    read = parse_database_url("postgresql://u@h:5432/db?sslmode=require")
    assert not has_url_password(read)
    assert mask_database_url_password(read) == "postgresql://u@h:5432/db?sslmode=require"
