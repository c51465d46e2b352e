"""What tests of the emulator ask of a cluster `demo`, in process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.contract.provider.beds import Client


def until(api: Client, done: Callable[[], bool]) -> None:
    assert api.emulator.wait_until(done, 10), "it never came to pass"


def settled(api: Client) -> None:
    api.emulator.wait_in_service("demo", 10)


def nodes(api: Client, name: str = "workers", **more: Any) -> list[dict[str, Any]]:
    body = api("ListClusterNodes", ClusterName="demo", InstanceGroupNameContains=name, **more)
    found: list[dict[str, Any]] = body["ClusterNodeSummaries"]
    return found


def statuses(api: Client) -> set[str]:
    return {str(n["InstanceStatus"]["Status"]) for n in nodes(api)}


def described(api: Client, name: str = "workers") -> dict[str, Any]:
    groups = api("DescribeCluster", ClusterName="demo")["InstanceGroups"]
    return next(g for g in groups if g["InstanceGroupName"] == name)


def code(answer: dict[str, Any]) -> str:
    return str(answer.get("__type", ""))
