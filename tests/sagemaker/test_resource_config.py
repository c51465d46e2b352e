"""The addresses of instances from a head node's resource_config.json, before any call is made."""

import json
import os
import time

import pytest

from hpctl.sagemaker.provider import LONGEST, InstanceAddressResolver
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from tests.clusters.lifecycle.node import resources


def listed(*ids: str) -> list[Instance]:
    return [Instance(key, InstanceStatus.RUNNING) for key in ids]


class Api:
    """Counts what DescribeClusterNode is asked, and answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, **request):
        self.asked.append(request["NodeId"])
        return {"NodeDetails": {"PrivatePrimaryIp": "10.8.8.8"}}


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def one(**instance):
    return resources(InstanceGroups=[{"Name": "g", "Instances": [instance]}])


KEY = "i-00000000000000001"


def test_ten_thousand_addresses_are_there_at_once_without_a_call(tmp_path):
    """CustomerIpAddress is the address in the VPC, as AWS's lifecycle_script.py reads the file."""
    ids = [f"i-{number:017x}" for number in range(10_000)]
    instances = [
        {
            "InstanceName": f"h100-{number}",
            "AgentIpAddress": "172.16.0.9",
            "CustomerIpAddress": f"10.{number >> 8}.{number & 255}.7",
            "InstanceId": key,
            "InstanceLabel": {f"network-node-layer-{n}": "nn-0123456789abcdef0" for n in (1, 2, 3)},
        }
        for number, key in enumerate(ids)
    ]
    groups = [{"Name": "h100", "InstanceType": "ml.p5.48xlarge", "Instances": instances}]
    path, api = write(tmp_path / "rc.json", resources(InstanceGroups=groups)), Api()
    assert path.stat().st_size < LONGEST // 10
    details = InstanceAddressResolver("demo", api, path)
    began = time.perf_counter()
    done = details.complete(listed(*ids, "i-new"))
    print(f"{time.perf_counter() - began:.3f} s for {path.stat().st_size / 1e6:.1f} MB")
    assert [i.address for i in done[:-1]] == [f"10.{n >> 8}.{n & 255}.7" for n in range(10_000)]
    assert done[1].node == "ip-10-0-1-7"
    assert api.asked == ["i-new"], "what is younger than the file is asked for"
    assert done[-1].address == "10.8.8.8"
    details.complete(listed(*ids, "i-new"))
    assert api.asked == ["i-new"]


def test_a_file_that_is_rewritten_is_read_again(tmp_path):
    path, api = tmp_path / "rc.json", Api()
    details = InstanceAddressResolver("demo", api, path)
    details.complete(listed(KEY))
    assert api.asked == [KEY], "there is no file yet"
    write(path, one(InstanceId="i-second", CustomerIpAddress="10.1.1.1"))
    assert details.complete(listed(KEY, "i-second"))[1].address == "10.1.1.1"
    write(path, "{")
    write(tmp_path / "new", one(InstanceId="i-third", CustomerIpAddress="10.1.1.2"))
    os.replace(tmp_path / "new", path)
    done = details.complete(listed(KEY, "i-second", "i-third"))
    assert ([i.address for i in done], api.asked) == (["10.8.8.8", "10.1.1.1", "10.1.1.2"], [KEY])


GOOD = {"InstanceId": KEY, "CustomerIpAddress": "10.1.1.1"}
TWICE = [GOOD, {**GOOD, "CustomerIpAddress": "10.1.1.2"}]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        '{"ClusterConfig": 1, "InstanceGroups": {}}',
        {**one(**GOOD), "ClusterConfig": {"ClusterName": "another"}},
        {**one(**GOOD), "InstanceGroups": [None, 7, {"Instances": None}, {"Instances": ["x"]}]},
        resources(InstanceGroups=[{"Instances": TWICE}]),
        one(InstanceId=KEY, CustomerIpAddress="head; reboot"),
        one(InstanceId=KEY, CustomerIpAddress=["10.1.1.1"]),
        one(InstanceId={}, CustomerIpAddress="10.1.1.1"),
        one(InstanceId=KEY, CustomerIpAddress="1" * 100_000),
    ],
)
def test_what_cannot_be_read_or_is_in_doubt_costs_one_call(tmp_path, content):
    api = Api()
    (done,) = InstanceAddressResolver("demo", api, write(tmp_path / "rc.json", content)).complete(
        listed(KEY)
    )
    assert (done.address, api.asked) == ("10.8.8.8", [KEY])


def test_neither_a_pipe_nor_a_file_without_end_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "long").open("wb") as file:
        file.truncate(LONGEST + 1)
    for name in ("pipe", "long"):
        api = Api()
        InstanceAddressResolver("demo", api, tmp_path / name).complete(listed(KEY))
        assert api.asked == [KEY]
