"""A legacy cluster with its roles in provisioning_parameters.json, and the bucket of that file."""

import io
import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from hpctl.sagemaker.aws import AwsAccount
from hpctl.toolkit.errors import ResourceNotFound, ServiceCallRefused
from tests.clusters.bed import AwsBed

BUCKET = "sagemaker-x"
KEY = "scripts/provisioning_parameters.json"
FILE: dict[str, Any] = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "controller",
    "worker_groups": [{"instance_group_name": "workers", "partition_name": "gpu"}],
}
SCRIPTS = {"SourceS3Uri": f"s3://{BUCKET}/scripts", "OnCreate": "a.sh"}


class Bucket:
    """S3 as far as hpctl uses it here, the one place of two that the emulator reads as well."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.reset()

    def reset(self) -> None:
        self.objects.clear()
        self.denied = self.comes_back = False
        self.calls: list[str] = []
        self.put({})

    def put(self, more: Mapping[str, Any]) -> None:
        self.objects[KEY] = json.dumps({**FILE, **more}).encode()

    def read(self, operation: str, *, Bucket: str, Key: str) -> dict[str, Any]:
        assert (operation, Bucket) == ("get_object", BUCKET)
        if Key not in self.objects:
            raise ResourceNotFound("no such key", code="NoSuchKey")
        return {"Body": io.BytesIO(self.objects[Key])}

    def order(self, operation: str, *, Bucket: str, Key: str, Body: bytes = b"") -> dict[str, Any]:
        self.calls.append(operation)
        if self.denied:
            raise ServiceCallRefused("no identity-based policy allows it", code="AccessDenied")
        if operation == "put_object":
            self.objects[Key] = Body
        else:
            del self.objects[Key]
            if self.comes_back:  # another lifecycle push, say, before the service looks
                self.put({})
        return {}

    def parameters(self, group) -> dict[str, Any] | None:
        found = self.objects.get(KEY) if group.get("LifeCycleConfig") else None
        return json.loads(found) if found and found[:2] == b'{"' else None


class Account(Struct):
    """AwsAccount, but for S3."""

    real: AwsAccount
    s3: Bucket

    @property
    def region(self) -> str:
        return self.real.region

    def service(self, name: str):
        return self.s3 if name == "s3" else self.real.service(name)


class LegacyBed(AwsBed):
    def __init__(self) -> None:
        self.s3 = Bucket()
        super().__init__(3, parameters=self.s3.parameters, NodeProvisioningMode=None)

    def _create(self) -> None:
        self.machines.edited = False
        self.emulator.world.outdated = frozenset()
        self.emulator.world.managed_by_default = False
        self.s3.reset()
        for group in self.spec["InstanceGroups"]:
            group.pop("SlurmConfig", None)
            group |= {"ThreadsPerCore": 1, "LifeCycleConfig": SCRIPTS}
        super()._create()
