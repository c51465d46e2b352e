"""A lifecycle bundle: the scripts of every node, what they need without a network, a MANIFEST, and
its way to S3.

MANIFEST is what `sha256sum` writes and checks, so that a node needs nothing else to verify it. The
bundle's digest is that of its MANIFEST; the same content gives the same digest anywhere.

On the way to S3 what is there already is not sent, and MANIFEST goes last: a node that comes up
meanwhile finds files that its MANIFEST does not vouch for, and says so; it never runs half of one
bundle and half of another.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpctl.toolkit.errors import HpctlError, OrderOutcomeUnknown, ResourceNotFound
from hpctl.vocabulary.ports import AwsClientFactory, AwsServiceClient

_HERE = Path(__file__).resolve().parent.parent


def find_lifecycle_script_directory() -> Path:
    """Return the directory of what HyperPod runs on a node at birth. Raises HpctlError."""
    return _find_resource_directory("lifecycle_scripts")


def find_slurm_plugin_directory() -> Path:
    """Return the directory of hpctl's plugins for Slurm. Raises HpctlError."""
    return _find_resource_directory("slurm_plugins")


def _find_resource_directory(name: str) -> Path:
    for place in (_HERE / "_shipped" / name, _HERE.parent / name):
        if place.is_dir():
            return place
    raise HpctlError(
        f"this installation of hpctl is incomplete: it has no file {name}",
        "install hpctl again, from its wheel or source tree",
    )


MANIFEST = "MANIFEST"
ENTRY_POINTS = ("on_create.sh", "on_init_complete.sh")
WHEELS = "wheels"
PYTHON = "python.tar.gz"
_LEFT_OUT = ("__pycache__", ".git", ".DS_Store", MANIFEST)


class LifecycleBundleFile(Struct, frozen=True):
    """One file: its path in the bundle, bytes and SHA-256."""

    path: str
    size: int
    sha256: str


class LifecycleBundle(Struct, frozen=True):
    """A bundle as it lies in a directory."""

    directory: Path
    files: tuple[LifecycleBundleFile, ...]

    @property
    def manifest(self) -> str:
        """Return the text of MANIFEST."""
        return "".join(f"{file.sha256}  {file.path}\n" for file in self.files)

    @property
    def digest(self) -> str:
        """Return which bundle this is."""
        return hashlib.sha256(self.manifest.encode()).hexdigest()

    @property
    def size(self) -> int:
        """Return bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def wheels(self) -> tuple[str, ...]:
        """Return the names of the wheels in it."""
        inside = (file.path for file in self.files if file.path.startswith(f"{WHEELS}/"))
        return tuple(path.removeprefix(f"{WHEELS}/") for path in inside)


class LifecycleBundleAdditions(Struct, frozen=True):
    """What a site adds to the lifecycle scripts."""

    config: Path | None = None
    additions: Sequence[Path] = ()
    """Files and directories for the top: provisioning_parameters.json, shared_users.txt, site.d,
    debs, hpctl.yaml."""
    wheels: Sequence[Path] = ()
    python: Path | None = None
    made_for: Mapping[str, str] | None = None
    """What the wheels are for, in the words of bundle_fit.Target."""


def write_bundle_files(target: Path, parts: LifecycleBundleAdditions) -> None:
    """Put a bundle's files into an empty directory. Raises HpctlError."""
    _copy_directory_into_bundle(find_lifecycle_script_directory(), target)
    _copy_directory_into_bundle(find_slurm_plugin_directory(), target / "slurm_plugins")
    for source in parts.additions:
        if source.is_dir():
            _copy_directory_into_bundle(source, target / source.resolve().name)
        else:
            _copy_file_into_bundle(source, target / source.name)
    if parts.config is not None:
        _copy_file_into_bundle(parts.config, target / "config.json")
    for wheel in parts.wheels:
        _copy_file_into_bundle(wheel, target / WHEELS / wheel.name)
    if parts.wheels and parts.made_for:
        (target / "target.json").write_text(json.dumps(parts.made_for) + "\n")
    if parts.python is not None:
        _copy_file_into_bundle(parts.python, target / PYTHON)


def write_bundle_manifest(directory: Path) -> LifecycleBundle:
    """Write the MANIFEST of what lies in a directory."""
    bundle = LifecycleBundle(directory, tuple(_list_bundle_files(directory)))
    (directory / MANIFEST).write_text(bundle.manifest)
    return bundle


def read_lifecycle_bundle(directory: Path) -> LifecycleBundle:
    """Return a bundle that is as its MANIFEST says. Raises HpctlError with every file that is
    not."""
    try:
        signed = (directory / MANIFEST).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise HpctlError(
            f"{directory} is not a lifecycle bundle: {MANIFEST} is missing",
            "make a bundle: hpctl cluster lifecycle bundle",
        ) from error
    bundle = LifecycleBundle(directory, tuple(_list_bundle_files(directory)))
    if bundle.manifest != signed:
        before = _parse_bundle_manifest(signed)
        now = {file.path: file.sha256 for file in bundle.files}
        changed = sorted(p for p in before.keys() | now.keys() if before.get(p) != now.get(p))
        raise HpctlError(
            f"the lifecycle bundle {directory} was changed after it was made; it differs from "
            f"{MANIFEST} in {', '.join(changed[:10]) or 'its order'}",
            "make the bundle again: hpctl cluster lifecycle bundle",
        )
    return bundle


def require_replaceable_bundle_directory(target: Path) -> None:
    """Raise HpctlError where writing a bundle there would destroy something else."""
    if target.is_dir() and ((target / MANIFEST).exists() or not any(target.iterdir())):
        return
    if target.exists():
        raise HpctlError(
            f"cannot write the bundle: {target} exists and is not a lifecycle bundle, so hpctl "
            "does not replace it",
            "give another directory with --output",
        )


def replace_bundle_directory(made: Path, target: Path) -> None:
    """Put a bundle that was made beside its place into it."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        target.rename(old)
    made.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _parse_bundle_manifest(manifest: str) -> dict[str, str]:
    pairs = (line.split("  ", 1) for line in manifest.splitlines() if "  " in line)
    return {path: digest for digest, path in pairs}


def _list_bundle_files(directory: Path) -> Iterator[LifecycleBundleFile]:
    paths = (
        p
        for p in directory.rglob("*")
        if p.is_file() and not _is_excluded_from_bundle(p, directory)
    )
    for path in sorted(paths, key=lambda one: one.relative_to(directory).as_posix()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        yield LifecycleBundleFile(
            path.relative_to(directory).as_posix(), path.stat().st_size, digest
        )


def _is_excluded_from_bundle(path: Path, top: Path) -> bool:
    return any(part in _LEFT_OUT for part in path.relative_to(top).parts)


def _copy_directory_into_bundle(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file() and not _is_excluded_from_bundle(path, source):
            _copy_file_into_bundle(path, target / path.relative_to(source))


def _copy_file_into_bundle(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise HpctlError(
            f"{source} cannot be copied to {target}: {error.strerror}",
            "check both paths, and the free space at the second",
        ) from error
    # S3 forgets modes, and nothing here depends on them; a bundle tried in place has them.
    target.chmod(0o755 if target.suffix == ".sh" else 0o644)


TRIES = 3

_URI = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")


class S3Prefix(Struct, frozen=True):
    """`s3://bucket/prefix`, without a slash at its end."""

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, uri: str) -> S3Prefix:
        """Raises HpctlError."""
        match = _URI.fullmatch(uri.rstrip("/"))
        if not match:
            raise HpctlError(f"{uri!r} is not a place in S3", "write it as s3://BUCKET/PREFIX")
        if len(uri) > 1024:
            raise HpctlError(
                "the S3 prefix is too long: at most 1024 characters are allowed",
                "choose a shorter prefix",
            )
        return cls(match[1], (match[2] or "").strip("/"))

    def key(self, path: str) -> str:
        """Return the key of a bundle's file."""
        return f"{self.prefix}/{path}" if self.prefix else path

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


class BundleUploadPlan(Struct, frozen=True):
    """What a push sends, leaves and finds left over, by path."""

    send: tuple[str, ...]
    unchanged: tuple[str, ...]
    left_over: tuple[str, ...]


def plan_bundle_upload(
    aws: AwsClientFactory, bundle: LifecycleBundle, to: S3Prefix
) -> BundleUploadPlan:
    """Compare a bundle with what its prefix holds. Raises ResourceNotFound, Refused,
    Unavailable."""
    s3 = aws.service("s3")
    there: dict[str, str] = {}
    try:
        for item in s3.pages("list_objects_v2", "Contents", Bucket=to.bucket, Prefix=to.key("")):
            there[str(item["Key"])] = str(item["ETag"]).strip('"')
    except ResourceNotFound as error:
        raise ResourceNotFound(
            f"the S3 bucket {to.bucket} does not exist",
            "create the bucket in the cluster's region, and run the command again",
        ) from error
    send: list[str] = []
    unchanged: list[str] = []
    for path in [*(file.path for file in bundle.files), MANIFEST]:
        same = there.pop(to.key(path), None) == _compute_bundle_file_etag(bundle, path)
        (unchanged if same else send).append(path)
    start = len(to.key(""))
    return BundleUploadPlan(
        tuple(send), tuple(unchanged), tuple(sorted(key[start:] for key in there))
    )


def upload_bundle_to_s3(
    aws: AwsClientFactory,
    bundle: LifecycleBundle,
    to: S3Prefix,
    planned: BundleUploadPlan,
    notify: Callable[[str], None] = lambda _path: None,
) -> None:
    """Send what a plan names, in its order. Raises ResourceNotFound, Refused,
    OrderOutcomeUnknown."""
    s3 = aws.service("s3")
    for path in planned.send:
        notify(path)
        _upload_bundle_file(s3, bundle, to, path)


def delete_stale_bundle_objects(
    aws: AwsClientFactory, to: S3Prefix, planned: BundleUploadPlan
) -> None:
    """Delete what lies in the prefix and in no bundle. Raises Refused, OrderOutcomeUnknown."""
    s3 = aws.service("s3")
    for path in planned.left_over:
        s3.order("delete_object", Bucket=to.bucket, Key=to.key(path))


def _compute_bundle_file_etag(bundle: LifecycleBundle, path: str) -> str:
    """Return what S3 calls the ETag of an object that was put whole; with KMS keys it is
    another."""
    content = (bundle.directory / path).read_bytes()
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _upload_bundle_file(
    s3: AwsServiceClient, bundle: LifecycleBundle, to: S3Prefix, path: str
) -> None:
    content = (bundle.directory / path).read_bytes()
    # S3 itself compares: what arrives otherwise is refused.
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    key = to.key(path)
    send_idempotent_s3_request(
        s3, "put_object", Bucket=to.bucket, Key=key, Body=content, ChecksumSHA256=digest
    )


def send_idempotent_s3_request(s3: AwsServiceClient, operation: str, **request: Any) -> None:
    """An order that is sent again where it may have been taken: the second is the same as the
    first. Raises Refused, and OrderOutcomeUnknown in the end.
    """
    for left in range(TRIES, 0, -1):
        try:
            s3.order(operation, **request)
        except OrderOutcomeUnknown:
            if left == 1:
                raise
        else:
            return
