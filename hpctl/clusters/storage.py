"""Links between FSx for Lustre file systems and S3: data repository associations.

Linked, a prefix of S3 appears as a directory. Its names come at once (BatchImportMetaDataOnCreate),
a file's contents at its first read (lazy loading), or before that by
`hpctl cluster storage preload`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final

from msgspec import Struct

from hpctl.toolkit.errors import (
    HpctlError,
    OrderOutcomeUnknown,
    ResourceNotFound,
    ServiceCallRefused,
)
from hpctl.vocabulary.ports import AwsClientFactory

EVENTS: Final = ("NEW", "CHANGED", "DELETED")
SETTLED: Final = ("AVAILABLE", "FAILED", "MISCONFIGURED")
POLL_S: Final = 10.0

UNLINKABLE: Final = ("SCRATCH_1",)
"""Deployment types without data repository associations (they know `ImportPath` only)."""


class DataRepositoryLink(Struct, frozen=True):
    """One association, in FSx's words. `path` is the directory below the file system's root."""

    id: str
    file_system: str
    path: str
    s3: str
    lifecycle: str
    why: str = ""
    auto_import: tuple[str, ...] = ()
    auto_export: tuple[str, ...] = ()
    created: datetime | None = None

    @property
    def is_settled(self) -> bool:
        """Return whether nothing more will happen to it without a request."""
        return self.lifecycle in SETTLED


class RequestedDataRepositoryLink(Struct, frozen=True):
    """A link to be created. Raises HpctlError from `of` where it cannot be one."""

    file_system: str
    path: str
    s3: str
    auto_import: bool = True
    auto_export: bool = False

    @classmethod
    def of(
        cls, file_system: str, s3: str, path: str, *, auto_import: bool, auto_export: bool
    ) -> RequestedDataRepositoryLink:
        """Checked and in one spelling: `/x`, `s3://bucket/prefix/`."""
        bucket = s3.removeprefix("s3://").partition("/")[0]
        if not s3.startswith("s3://") or not bucket:
            raise HpctlError(f"the S3 URL {s3!r} names no bucket", "write s3://BUCKET/PREFIX")
        if not path.startswith("/") or path.rstrip("/") == "" or ".." in path.split("/"):
            raise HpctlError(
                f"--path {path!r} is not an absolute path of a directory in the file system",
                "write a path such as /data, which the nodes see as MOUNT/data",
            )
        return cls(file_system, path.rstrip("/"), s3.rstrip("/") + "/", auto_import, auto_export)

    def request(self) -> dict[str, Any]:
        """CreateDataRepositoryAssociation's."""
        s3: dict[str, Any] = {}
        if self.auto_import:
            s3["AutoImportPolicy"] = {"Events": list(EVENTS)}
        if self.auto_export:
            s3["AutoExportPolicy"] = {"Events": list(EVENTS)}
        return {
            "FileSystemId": self.file_system,
            "FileSystemPath": self.path,
            "DataRepositoryPath": self.s3,
            "BatchImportMetaDataOnCreate": True,
            **({"S3": s3} if s3 else {}),
        }


def list_data_repository_links(
    aws: AwsClientFactory, file_system: str | None = None
) -> tuple[DataRepositoryLink, ...]:
    """Return the links of one file system, or of all. Raises as `ports.Service.read` does.

    Absent where a file system has none because it is not there itself.
    """
    request: dict[str, Any] = {}
    if file_system:
        request["Filters"] = [{"Name": "file-system-id", "Values": [file_system]}]
    operation = "describe_data_repository_associations"
    found = aws.service("fsx").pages(operation, "Associations", **request)
    listed = tuple(
        sorted(
            map(_parse_data_repository_link, found), key=lambda link: (link.file_system, link.path)
        )
    )
    if file_system and not listed:
        _describe_file_system(aws, file_system)
    return listed


def create_data_repository_link(
    aws: AwsClientFactory, wanted: RequestedDataRepositoryLink
) -> tuple[DataRepositoryLink, bool]:
    """Return the link, and whether it was made now. One that is there already is recognised.

    Raises HpctlError where the file system cannot have it or its path leads elsewhere; Refused,
    Unavailable; OrderOutcomeUnknown where it was ordered and is not to be seen.
    """
    there = find_existing_data_repository_link(aws, wanted)
    if there is not None:
        return there, False
    try:
        made = aws.service("fsx").order("create_data_repository_association", **wanted.request())
    except OrderOutcomeUnknown:
        there = _find_matching_data_repository_link(aws, wanted)
        if there is None:
            raise
        return there, True
    return _parse_data_repository_link(made["Association"]), True


def find_existing_data_repository_link(
    aws: AwsClientFactory, wanted: RequestedDataRepositoryLink
) -> DataRepositoryLink | None:
    """Return the link where it is there already. Raises where it cannot be made, as `link` does."""
    _require_linkable_file_system(aws, wanted.file_system)
    return _find_matching_data_repository_link(aws, wanted)


def watch_data_repository_link(
    aws: AwsClientFactory,
    known: DataRepositoryLink,
    *,
    timeout_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[DataRepositoryLink]:
    """Yield the link each time that it was looked at, until it is settled or the time is up."""
    until = clock() + timeout_s
    yield known
    while not known.is_settled and clock() < until:
        sleep(min(POLL_S, max(0.0, until - clock())))
        answer = aws.service("fsx").read(
            "describe_data_repository_associations", AssociationIds=[known.id]
        )
        found = answer.get("Associations") or ()
        if not found:
            raise ResourceNotFound(
                f"the link to S3 (data repository association {known.id}) was deleted "
                "while hpctl waited for it",
                "another user or tool deleted it; run the command again to create it",
            )
        known = _parse_data_repository_link(found[0])
        yield known


def _find_matching_data_repository_link(
    aws: AwsClientFactory, wanted: RequestedDataRepositoryLink
) -> DataRepositoryLink | None:
    """Return the link that is wanted, if it is there. Raises Refused where its path is taken."""
    for there in list_data_repository_links(aws, wanted.file_system):
        if there.path.rstrip("/") != wanted.path or there.lifecycle == "DELETING":
            continue
        if there.s3.rstrip("/") == wanted.s3.rstrip("/"):
            return there
        raise ServiceCallRefused(
            f"the path {wanted.path} of file system {wanted.file_system} is already linked to "
            f"{there.s3} (association {there.id})",
            "choose another --path, or delete that association first "
            f"(aws fsx delete-data-repository-association --association-id {there.id})",
        )
    return None


def _require_linkable_file_system(aws: AwsClientFactory, file_system: str) -> None:
    """Whether a file system can be linked. Raises HpctlError, with what would have to be."""
    known = _describe_file_system(aws, file_system)
    kind, state = known.get("FileSystemType", ""), known.get("Lifecycle", "")
    if kind != "LUSTRE":
        raise ServiceCallRefused(
            f"file system {file_system} is of the type {kind}, but only FSx for Lustre can be "
            "linked to S3",
            "name the id of an FSx for Lustre file system",
        )
    deployment = known.get("LustreConfiguration", {}).get("DeploymentType", "")
    version = str(known.get("FileSystemTypeVersion", ""))
    if deployment in UNLINKABLE or version == "2.10":
        raise ServiceCallRefused(
            f"{file_system} is {deployment or 'Lustre'} {version}".rstrip()
            + ": this type of file system cannot be linked to S3",
            "use a file system of the type PERSISTENT_2, PERSISTENT_1 or SCRATCH_2 with Lustre "
            "2.12 or later",
        )
    if state and state not in ("AVAILABLE", "UPDATING"):
        raise ServiceCallRefused(f"{file_system} is {state}", "wait until it is AVAILABLE")


def _describe_file_system(aws: AwsClientFactory, file_system: str) -> Mapping[str, Any]:
    """Return a file system in FSx's words. Raises ResourceNotFound with the nearest that there
    are."""
    fsx = aws.service("fsx")
    try:
        found = fsx.read("describe_file_systems", FileSystemIds=[file_system]).get("FileSystems")
    except ResourceNotFound:
        found = ()
    if found:
        one: Mapping[str, Any] = found[0]
        return one
    try:
        every = [
            str(fs["FileSystemId"]) for fs in fsx.pages("describe_file_systems", "FileSystems")
        ]
    except HpctlError:
        # Who may ask for one may not for all: the answer is the same without them.
        every = []
    near = get_close_matches(file_system, every, n=2) or every[:5]
    there = f"is it {' or '.join(near)}? " if near else ""
    raise ResourceNotFound(
        f"FSx has no file system {file_system} in the region {aws.region}",
        f"{there}check its id and --region",
    )


def _parse_data_repository_link(answer: Mapping[str, Any]) -> DataRepositoryLink:
    s3 = answer.get("S3", {})
    return DataRepositoryLink(
        id=str(answer.get("AssociationId", "")),
        file_system=str(answer.get("FileSystemId", "")),
        path=str(answer.get("FileSystemPath", "")),
        s3=str(answer.get("DataRepositoryPath", "")),
        lifecycle=str(answer.get("Lifecycle", "")),
        why=str(answer.get("FailureDetails", {}).get("Message", "")),
        auto_import=tuple(s3.get("AutoImportPolicy", {}).get("Events", ())),
        auto_export=tuple(s3.get("AutoExportPolicy", {}).get("Events", ())),
        created=answer.get("CreationTime"),
    )
