"""FSx on paper: file systems and data repository associations, held against botocore's model."""

from datetime import datetime
from typing import Any

import botocore.session
from botocore import xform_name
from botocore.validate import ParamValidator

from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import OrderOutcomeUnknown, ResourceNotFound, ServiceCallRefused

Body = dict[str, Any]
MODEL = botocore.session.get_session().get_service_model("fsx")
NAMES = {xform_name(name): name for name in MODEL.operation_names}
LUSTRE = {
    "FileSystemType": "LUSTRE",
    "FileSystemTypeVersion": "2.15",
    "Lifecycle": "AVAILABLE",
    "LustreConfiguration": {"DeploymentType": "PERSISTENT_2"},
}


class Fsx:
    """`ports.AwsClientFactory` with this service alone. `looks` are still to come before a new
    association is AVAILABLE, or `fails` with a message."""

    region = "us-west-2"

    def __init__(self) -> None:
        self.file_systems: dict[str, Body] = {}
        self.associations: dict[str, Body] = {}
        self.looks = 1
        self.fails = ""
        self.lose_reply = False
        self.orders = 0

    def service(self, name: str) -> "Fsx":
        assert name == "fsx"
        return self

    def lustre(self, name: str, **more) -> None:
        self.file_systems[name] = {"FileSystemId": name, **LUSTRE, **more}

    def read(self, operation: str, **request) -> Body:
        model = MODEL.operation_model(NAMES[operation])
        body: Body = getattr(self, f"_{operation}")(request)
        for value, shape in ((request, model.input_shape), (body, model.output_shape)):
            report = ParamValidator().validate(value, shape)
            assert not report.has_errors(), report.generate_report()
        return body

    def pages(self, operation: str, key: str, **request):
        return self.read(operation, **request)[key]

    def order(self, operation: str, **request) -> Body:
        self.orders += 1
        body = self.read(operation, **request)
        if self.lose_reply:
            self.lose_reply = False
            raise OrderOutcomeUnknown("no reply")
        return body

    def _describe_file_systems(self, request) -> Body:
        wanted = request.get("FileSystemIds", self.file_systems)
        if not set(wanted) <= self.file_systems.keys():
            raise ResourceNotFound("file system does not exist", code="FileSystemNotFound")
        return {"FileSystems": [self.file_systems[name] for name in wanted]}

    def _describe_data_repository_associations(self, request) -> Body:
        systems = [each["Values"] for each in request.get("Filters", ())]
        ids = request.get("AssociationIds", self.associations)
        found = [self.associations[name] for name in ids]
        found = [a for a in found if all(a["FileSystemId"] in values for values in systems)]
        for one in found:
            if one["Lifecycle"] == "CREATING":
                self.looks -= 1
                if self.looks < 0:
                    one["Lifecycle"] = "FAILED" if self.fails else "AVAILABLE"
                    one |= {"FailureDetails": {"Message": self.fails}} if self.fails else {}
        return {"Associations": [dict(one) for one in found]}

    def _create_data_repository_association(self, request) -> Body:
        below = request["FileSystemPath"] + "/"
        if any(a["FileSystemPath"].startswith(below) for a in self.associations.values()):
            raise ServiceCallRefused("The file system path overlaps another association.")
        name = f"dra-{len(self.associations) + 1:017x}"
        born = datetime(2026, 3, 1, 12, tzinfo=UTC)
        own = {"AssociationId": name, "Lifecycle": "CREATING", "CreationTime": born}
        self.associations[name] = {**request, **own}
        return {"Association": dict(self.associations[name])}
