"""What tests of the emulator ask of a cluster `demo`, in process."""

from collections.abc import Callable
from typing import Any

from tests.contract.provider.beds import Client, cluster


def until(api: Client, done: Callable[[], bool]) -> None:
    assert api.emulator.wait_until(done, 10), "it never came to pass"


def settled(api: Client) -> None:
    api.emulator.wait_in_service("demo", 10)


def created(api: Client, *groups: dict[str, Any], continuous: bool = True, **more: Any) -> None:
    spec = cluster("demo", **more)
    if groups:
        spec["InstanceGroups"] = list(groups)
    if not continuous:
        del spec["NodeProvisioningMode"]
    api.emulator.create(spec)
    settled(api)


def update(api: Client, *groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = {"InstanceGroups": list(groups)} if groups else {}
    return api("UpdateCluster", ClusterName="demo", **given, **more)


def nodes(api: Client, name: str = "workers", **more: Any) -> list[dict[str, Any]]:
    body = api("ListClusterNodes", ClusterName="demo", InstanceGroupNameContains=name, **more)
    found: list[dict[str, Any]] = body["ClusterNodeSummaries"]
    return found


def described(api: Client, name: str = "workers") -> dict[str, Any]:
    groups = api("DescribeCluster", ClusterName="demo")["InstanceGroups"]
    return next(g for g in groups if g["InstanceGroupName"] == name)


def code(answer: dict[str, Any]) -> str:
    return str(answer.get("__type", ""))
