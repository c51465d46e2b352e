"""An FSx endpoint for tests: file systems and data repository associations over real HTTP.

moto has no data repository associations. Every request and every answer is checked against
botocore's own model of the service, so that this cannot drift from what clients are built for.
"""

import json
import threading
from collections.abc import Callable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import botocore.session
from botocore.validate import ParamValidator

from hpctl.core.compat import UTC

Body = dict[str, Any]
MODEL = botocore.session.get_session().get_service_model("fsx")
BORN = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Fsx:
    """The service. `file_systems` and `associations` are what it has; `looks` are still to come
    before a new association is AVAILABLE, or `fails` with a message."""

    def __init__(self) -> None:
        self.file_systems: dict[str, Body] = {}
        self.associations: dict[str, Body] = {}
        self.looks = 1
        self.fails = ""
        self.lose_reply = False
        self.calls: list[str] = []
        self.drift: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                operation = self.headers["X-Amz-Target"].partition(".")[2]
                answer = service.answer(operation, json.loads(self.rfile.read(length)))
                if answer is None:
                    self.close_connection = True
                    return
                status, body = answer
                raw = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: Any) -> None:
                """Quietly."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        assert self.drift == []

    def lustre(self, name: str, **more: Any) -> str:
        self.file_systems[name] = {
            "FileSystemId": name,
            "FileSystemType": "LUSTRE",
            "FileSystemTypeVersion": "2.15",
            "Lifecycle": "AVAILABLE",
            "LustreConfiguration": {"DeploymentType": "PERSISTENT_2"},
            **more,
        }
        return name

    def answer(self, operation: str, request: Body) -> tuple[int, Body] | None:
        self.calls.append(operation)
        self._check(operation, request, answer=False)
        handlers: dict[str, Callable[[Body], Body]] = {
            "DescribeFileSystems": self._file_systems,
            "DescribeDataRepositoryAssociations": self._describe,
            "CreateDataRepositoryAssociation": self._create,
        }
        try:
            body = handlers[operation](request)
        except LookupError as error:
            code, message = error.args
            return 400, {"__type": code, "message": message}
        self._check(operation, body, answer=True)
        if operation.startswith("Create") and self.lose_reply:
            self.lose_reply = False
            return None
        return 200, body

    def _check(self, operation: str, body: Body, *, answer: bool) -> None:
        model = MODEL.operation_model(operation)
        report = ParamValidator().validate(
            body, model.output_shape if answer else model.input_shape
        )
        if report.has_errors():
            self.drift.append(f"{operation}: {report.generate_report()}")

    def _file_systems(self, request: Body) -> Body:
        wanted = request.get("FileSystemIds", list(self.file_systems))
        missing = [name for name in wanted if name not in self.file_systems]
        if missing:
            raise LookupError("FileSystemNotFound", f"File system '{missing[0]}' does not exist.")
        return {"FileSystems": [self.file_systems[name] for name in wanted]}

    def _describe(self, request: Body) -> Body:
        found = list(self.associations.values())
        for each in request.get("Filters", ()):
            assert each["Name"] == "file-system-id"
            found = [a for a in found if a["FileSystemId"] in each["Values"]]
        if ids := request.get("AssociationIds"):
            found = [a for a in found if a["AssociationId"] in ids]
        for one in found:
            if one["Lifecycle"] == "CREATING":
                self.looks -= 1
                if self.looks < 0:
                    one["Lifecycle"] = "FAILED" if self.fails else "AVAILABLE"
                    if self.fails:
                        one["FailureDetails"] = {"Message": self.fails}
        return {"Associations": [dict(one) for one in found]}

    def _create(self, request: Body) -> Body:
        number = len(self.associations) + 1
        name = f"dra-{number:017x}"
        taken = [a["FileSystemPath"] for a in self.associations.values()]
        if any(p.startswith(request["FileSystemPath"] + "/") for p in taken):
            raise LookupError("BadRequest", "The file system path overlaps another association.")
        kept = ("FileSystemId", "FileSystemPath", "DataRepositoryPath", "S3")
        self.associations[name] = {
            "AssociationId": name,
            "Lifecycle": "CREATING",
            "BatchImportMetaDataOnCreate": request.get("BatchImportMetaDataOnCreate", False),
            "CreationTime": BORN.timestamp(),
            **{key: request[key] for key in kept if key in request},
        }
        return {"Association": dict(self.associations[name])}
