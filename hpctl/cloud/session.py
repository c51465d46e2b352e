"""Sessions of boto3 that read the services' models once for a process.

A model is megabytes of JSON: a session with a loader of its own takes 0.1 to 0.2 s for its first
client of a service, one that shares the loader 0.01 s.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Any

import boto3
from botocore.loaders import Loader, create_loader
from botocore.session import get_session
from botocore.utils import parse_timestamp


def open_session(region: str | None, profile: str | None) -> boto3.session.Session:
    """A session with its own credentials. Raises ProfileNotFound, also for AWS_PROFILE."""
    core = get_session()
    if profile is not None:
        core.set_config_variable("profile", profile)
    models = loader(core.get_config_variable("data_path"))
    core.register_component("data_loader", models)
    parsers = core.get_component("response_parser_factory")
    parsers.set_parser_defaults(timestamp_parser=_timestamp)
    session = boto3.session.Session(region_name=region, botocore_session=core)
    # Each session names boto3's own folder to its loader once more.
    models.search_paths[:] = dict.fromkeys(models.search_paths)
    return session


def _timestamp(value: Any) -> datetime:
    """A time in an answer. dateutil takes minutes for a text of megabytes: ValueError instead."""
    if isinstance(value, str) and len(value) > 64:
        raise ValueError(f"a time of {len(value)} characters")
    parsed: datetime = parse_timestamp(value)
    return parsed


@cache
def loader(data_path: str | None) -> Loader:
    """What reads botocore's models, and those of the user's data_path before them."""
    return create_loader(data_path)
