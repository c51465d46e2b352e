"""Data repository associations for moto's FSx, and of its file systems what it leaves out.

An association is CREATING when it is made and AVAILABLE when it is next asked for.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

KEPT = ("FileSystemId", "FileSystemPath", "DataRepositoryPath", "BatchImportMetaDataOnCreate", "S3")


def install() -> None:
    """Let moto's FSx answer the calls, in this process."""
    from moto.fsx.models import FileSystem
    from moto.fsx.responses import FSxResponse

    FSxResponse.create_data_repository_association = _create  # type: ignore[attr-defined]
    FSxResponse.describe_data_repository_associations = _describe  # type: ignore[attr-defined]
    FSxResponse.delete_data_repository_association = _delete  # type: ignore[attr-defined]
    if FileSystem.to_dict.__module__ != __name__:
        FileSystem.to_dict = _completed(FileSystem.to_dict)  # type: ignore[method-assign]


def _completed(to_dict: Any) -> Any:
    def whole(self: Any) -> dict[str, Any]:
        told: dict[str, Any] = to_dict(self)
        told["Lifecycle"] = "AVAILABLE"
        told["FileSystemTypeVersion"] = "2.15"
        lustre = told.get("LustreConfiguration")
        if lustre is not None:
            told["LustreConfiguration"] = {**lustre, "MountName": self.file_system_id[-8:]}
        return told

    return whole


def _known(response: Any) -> dict[str, dict[str, Any]]:
    """The backend's associations, by id."""
    backend = response.fsx_backend
    if not hasattr(backend, "associations"):
        backend.associations = {}
    found: dict[str, dict[str, Any]] = backend.associations
    return found


def _create(response: Any) -> Any:
    """A method of moto's FSxResponse."""
    wanted = json.loads(response.body)
    if wanted["FileSystemId"] not in response.fsx_backend.file_systems:
        return _error("FileSystemNotFound", f"File system {wanted['FileSystemId']} not found.")
    path = wanted.get("FileSystemPath", "/").rstrip("/") + "/"
    for other in _known(response).values():
        theirs = other["FileSystemPath"].rstrip("/") + "/"
        same = other["FileSystemId"] == wanted["FileSystemId"]
        if same and (path.startswith(theirs) or theirs.startswith(path)):
            return _error("BadRequest", f"{path} overlaps {theirs} of {other['AssociationId']}.")
    name = f"dra-{secrets.token_hex(9)[:17]}"
    made = {
        "AssociationId": name,
        "ResourceARN": f"arn:aws:fsx:{response.region}:{response.current_account}:association/"
        f"{wanted['FileSystemId']}/{name}",
        "Lifecycle": "CREATING",
        "CreationTime": time.time(),
        **{key: wanted[key] for key in KEPT if key in wanted},
    }
    _known(response)[name] = made
    return json.dumps({"Association": made})


def _describe(response: Any) -> Any:
    """A method of moto's FSxResponse: a fitting page, all in one."""
    asked = json.loads(response.body)
    ids = asked.get("AssociationIds")
    wanted = {f["Name"]: set(f["Values"]) for f in asked.get("Filters", ())}
    systems = wanted.get("file-system-id")
    found = [
        a
        for a in _known(response).values()
        if (not ids or a["AssociationId"] in ids)
        and (systems is None or a["FileSystemId"] in systems)
    ]
    told = json.dumps({"Associations": found})
    for association in found:
        association["Lifecycle"] = "AVAILABLE"
    return told


def _delete(response: Any) -> Any:
    """A method of moto's FSxResponse."""
    name = json.loads(response.body)["AssociationId"]
    if _known(response).pop(name, None) is None:
        return _error("DataRepositoryAssociationNotFound", f"{name} not found.")
    return json.dumps({"AssociationId": name, "Lifecycle": "DELETING"})


def _error(code: str, message: str) -> tuple[int, dict[str, str], str]:
    body = json.dumps({"__type": code, "Message": message})
    return 400, {"status": "400"}, body
