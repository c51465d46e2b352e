"""Where a library that these tests need is missing, they fail; they are skipped only on request."""

import importlib
import os

import pytest

WITHOUT = "HPCTL_TEST_WITHOUT_FRAMEWORKS"


def need(name: str):
    """The library, imported. Where it is missing: a failure, or a skip where WITHOUT is 1."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        why = f"{name} does not import ({error})"
        if os.environ.get(WITHOUT) == "1":
            pytest.skip(f"NOT TESTED: {why}")
        how = f"`make test-packages` installs it; {WITHOUT}=1 leaves these tests out"
        pytest.fail(f"{why}: {how}", pytrace=False)
