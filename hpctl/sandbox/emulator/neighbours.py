"""What hpctl asks of SSM and Service Quotas that moto does not have: sessions and SageMaker's
quotas.

Requests and answers are held against these services' own models. A session is only recorded: its
stream leads nowhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpctl.core.model import InstanceStatus
from hpctl.sandbox.emulator import shapes
from hpctl.sandbox.emulator.capacity import Capacity
from hpctl.sandbox.emulator.errors import ApiError
from hpctl.sandbox.emulator.pages import page
from hpctl.sandbox.emulator.shapes import Body
from hpctl.sandbox.emulator.state import World, new_operation_id

PLENTY = 1000.0
"""The quota of whatever no test has bounded."""

TOTALS = (
    "Maximum number instances allowed per SageMaker HyperPod cluster",
    "Total number of instances allowed across SageMaker HyperPod clusters",
    "Maximum size of EBS volume in GB for a SageMaker HyperPod cluster instance",
)
"""Quotas of HyperPod that are not for one instance type, by their names in Service Quotas."""


@dataclass(slots=True)
class Sessions:
    """SSM's sessions with instances of clusters: `sagemaker-cluster:<id>_<group>-<instance id>`."""

    world: World
    started: list[Body] = field(default_factory=list)
    """StartSession's requests, with the SessionId that each was given."""

    def start(self, request: Body) -> Body:
        """StartSession. TargetNotConnected for what is no running instance of a cluster here."""
        target = request["Target"]
        running = {
            f"sagemaker-cluster:{c.arn.rpartition('/')[2]}_{n.group.name}-{n.state.instance_id}"
            for c in self.world.clusters.values()
            for n in c.nodes.values()
            if n.state.status is InstanceStatus.RUNNING
        }
        if target not in running:
            raise ApiError("TargetNotConnected", f"{target} is not connected.")
        session = f"sandbox-{new_operation_id()[-12:]}"
        self.started.append({**request, "SessionId": session})
        stream = f"wss://ssmmessages.{self.world.region}.amazonaws.com/v1/data-channel/{session}"
        return {"SessionId": session, "TokenValue": "sandbox", "StreamUrl": stream}

    def terminate(self, request: Body) -> Body:
        """TerminateSession, of whatever session."""
        return {"SessionId": request["SessionId"]}


@dataclass(slots=True)
class Quotas:
    """SageMaker's quotas for clusters, as `Capacity.quotas` bounds them."""

    world: World
    capacity: Capacity

    def list(self, request: Body) -> Body:
        """ListServiceQuotas and ListAWSDefaultServiceQuotas."""
        quotas, token = page(list(self._all(request["ServiceCode"])), request)
        body: Body = {"Quotas": list(quotas)}
        return {**body, "NextToken": token} if token else body

    def get(self, request: Body) -> Body:
        """GetServiceQuota."""
        for quota in self._all(request["ServiceCode"]):
            if quota["QuotaCode"] == request["QuotaCode"]:
                return {"Quota": quota}
        raise ApiError("NoSuchResourceException", f"There is no quota {request['QuotaCode']}.")

    def _all(self, service: str) -> Iterator[Body]:
        if service != "sagemaker":
            raise ApiError("NoSuchResourceException", f"There are no quotas of {service} here.")
        bounds = self.capacity.quotas
        for kind in shapes.enumeration("ClusterInstanceType"):
            yield self._quota(f"{kind} for cluster usage", bounds.get(kind, PLENTY))
            yield self._quota(f"{kind} for cluster spot instance usage", bounds.get(kind, PLENTY))
        for name in TOTALS:
            yield self._quota(name, bounds.get(name, 16384.0 if "EBS" in name else PLENTY))

    def _quota(self, name: str, value: float) -> Body:
        code = f"L-{zlib.crc32(name.encode()):08X}"
        place = f"{self.world.region}:{self.world.account}"
        return {
            "ServiceCode": "sagemaker",
            "ServiceName": "Amazon SageMaker",
            "QuotaArn": f"arn:aws:servicequotas:{place}:sagemaker/{code}",
            "QuotaCode": code,
            "QuotaName": name,
            "Value": float(value),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }
