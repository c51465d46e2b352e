"""Objects of an S3 bucket: listings of a thousand, ranged reads of one version, and small uploads.

Reads are retried by botocore's standard mode, which knows S3's throttling; a body that breaks
off after its answer began is asked for again here, because botocore leaves that to its caller.
Errors leave as OSError, in the words of a file system, so that who proves a checkpoint needs to
know one kind of failure: not there (FileNotFoundError), another object by now (ESTALE), not
allowed (PermissionError), no answer (EIO).
"""

import errno
import hashlib
import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import islice
from typing import IO, Any, NamedTuple, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from botocore.parsers import ResponseParserError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from hpctl.sagemaker.aws import make_client_config, open_aws_session
from hpctl.sagemaker.classify import (
    DENIED,
    EXPIRED,
    NEVER_SENT,
    NO_CREDENTIALS,
    UNREADABLE,
    UNSIGNED,
    read_aws_error_code,
)
from hpctl.toolkit.errors import HpctlError

CONNECTIONS = 20
"""More than the requests that are under way at once: an idle one is reused, none is waited for."""

_GONE = frozenset({"NoSuchKey", "404", "NotFound"})
_CHANGED = frozenset({"PreconditionFailed", "412", "InvalidRange", "416"})
_NOT_ALLOWED = DENIED | {"403", "AllAccessDisabled", "Forbidden"}
_NOT_KNOWN = UNSIGNED | EXPIRED | {"InvalidAccessKeyId", "InvalidToken"}
_BROKEN_BODY = (IncompleteReadError, ReadTimeoutError, ResponseStreamingError)
_BATCH = 1000
"""Objects that one request may delete, as the S3 API reference has it."""
_PARTS = re.compile(r'"?[0-9a-f]{32}-(\d+)"?')
_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}

Answer = TypeVar("Answer")


class S3Object(NamedTuple):
    """One object as a listing shows it; of a common prefix only the key, which ends in a slash."""

    key: str
    size: int = 0
    modified_ns: int = 0
    etag: str = ""


def _parse_object_listing(page: Mapping[str, Any]) -> list[S3Object]:
    """Return the objects of one page of a listing. Raises LookupError, AttributeError, TypeError,
    ValueError where it is not one of S3's."""
    return [
        S3Object(
            entry["Key"],
            int(entry["Size"]),
            int(entry["LastModified"].timestamp() * 1000) * 10**6,
            str(entry["ETag"]),
        )
        for entry in page.get("Contents", ())
    ]


class S3Bucket:
    """One bucket, for several threads. Raises HpctlError where no client can be made."""

    def __init__(  # noqa: PLR0913 -- settings of the client, by keyword with defaults
        self,
        bucket: str,
        *,
        profile: str | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        read_timeout_s: float = 30.0,
        attempts: int = 5,
    ) -> None:
        self._bucket = bucket
        session = open_aws_session(region, profile)
        config = make_client_config(attempts, read_timeout_s, CONNECTIONS)
        try:
            self.client: Any = session.client("s3", endpoint_url=endpoint_url, config=config)
        except (BotoCoreError, ValueError) as error:
            raise HpctlError(
                f"cannot create a client for S3: {error}", "check --region and --endpoint-url"
            ) from error
        self._again = Retrying(
            stop=stop_after_attempt(3),
            wait=wait_random_exponential(multiplier=0.2, max=2.0),
            retry=retry_if_exception_type(_BROKEN_BODY),
            reraise=True,
        )

    @property
    def url(self) -> str:
        """`s3://bucket`."""
        return f"s3://{self._bucket}"

    def list(self, prefix: str, *, recursive: bool) -> Iterator[S3Object]:
        """Objects whose key begins so; unless `recursive`, keys are cut after the next slash.

        One request for each 1000. Raises OSError.
        """
        asked = {"Bucket": self._bucket, "Prefix": prefix}
        if not recursive:
            asked["Delimiter"] = "/"
        while True:
            page = self._call_s3(prefix, "ListBucket", lambda: self.client.list_objects_v2(**asked))
            for entry in page.get("CommonPrefixes", ()):
                yield S3Object(entry["Prefix"])
            yield from self._call_s3(prefix, "ListBucket", partial(_parse_object_listing, page))
            if not page.get("IsTruncated"):
                return
            token = page.get("NextContinuationToken")
            if not token:
                raise OSError(errno.EIO, "the listing goes no further, and is not complete", prefix)
            asked["ContinuationToken"] = token

    def read(self, listed: Any, offset: int, length: int) -> tuple[bytes, int | None]:
        """At most `length` bytes of that version, and its noted file time. Raises OSError."""

        def get_object() -> tuple[bytes, int | None]:
            answer = self.client.get_object(
                Bucket=self._bucket,
                Key=listed.key,
                Range=f"bytes={offset}-{offset + length - 1}",
                IfMatch=listed.etag,
            )
            with answer["Body"] as body:
                return body.read(), parse_original_file_time(answer.get("Metadata", {}))

        return self._call_s3(listed.key, "GetObject", lambda: self._again(get_object))

    def find(self, key: str) -> S3Object:
        """Return one object as a listing shows it. One HEAD. Raises OSError."""

        def read_head() -> S3Object:
            answer = self.client.head_object(Bucket=self._bucket, Key=key)
            return S3Object(key, int(answer["ContentLength"]), 0, str(answer["ETag"]))

        return self._call_s3(key, "GetObject", read_head)

    def put(self, key: str, body: IO[bytes], size: int, sha256: bytes) -> None:
        """Write an object in one request, which S3 refuses where the digest differs. `body` is at
        its begin and may seek. Raises OSError."""

        def put_object() -> None:
            self.client.put_object(
                Bucket=self._bucket,
                Key=key,
                Body=body,
                ContentLength=size,
                ChecksumSHA256=b64encode(sha256).decode(),
            )

        self._call_s3(key, "PutObject", put_object)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is not there is no error. Raises OSError."""
        left = iter(keys)
        while batch := [{"Key": key} for key in islice(left, _BATCH)]:
            self._delete_object_batch(batch)

    def _delete_object_batch(self, batch: Sequence[Mapping[str, str]]) -> None:
        def delete_objects() -> Sequence[Mapping[str, Any]]:
            wanted = {"Objects": batch, "Quiet": True}
            answer = self.client.delete_objects(Bucket=self._bucket, Delete=wanted)
            found: Sequence[Mapping[str, Any]] = answer.get("Errors", ())
            return found

        for failed in self._call_s3(batch[0]["Key"], "DeleteObject", delete_objects):
            key, code = str(failed.get("Key", "")), str(failed.get("Code", ""))
            if code in _NOT_ALLOWED:
                raise PermissionError(
                    errno.EACCES, self._explain_access_denial("DeleteObject"), key
                )
            raise OSError(errno.EIO, f"S3 answers {code}", key)

    def read_original_mtime_ns(self, listed: Any) -> int | None:
        """Return the file time that the uploader noted with an object. One HEAD. Raises OSError."""

        def read_head() -> int | None:
            answer = self.client.head_object(
                Bucket=self._bucket, Key=listed.key, IfMatch=listed.etag
            )
            return parse_original_file_time(answer.get("Metadata", {}))

        return self._call_s3(listed.key, "GetObject", read_head)

    def get_part_size(self, listed: Any) -> int:
        """Return the size of the parts that an object was uploaded in: its own for a single one.

        A HEAD for an object of several. Raises OSError.
        """
        whole: int = max(1, listed.size)
        if not _PARTS.fullmatch(listed.etag):
            return whole

        def read_head() -> int:
            # The reads that follow ask for this version; here some stores compare the part's tag.
            answer = self.client.head_object(Bucket=self._bucket, Key=listed.key, PartNumber=1)
            return int(answer["ContentLength"])

        size: int = self._call_s3(listed.key, "GetObject", read_head)
        return min(whole, max(1, size))

    def matches(self, listed: Any, digests: Sequence[bytes]) -> bool | None:
        """Return whether the parts' MD5 digests make up the object's ETag. Raises OSError.

        None where the ETag is no MD5: another number of parts, or encryption with KMS or a key
        of the customer's (a HEAD, which only a difference costs).
        """
        etag = listed.etag.strip('"')
        match = _PARTS.fullmatch(listed.etag)
        if match:
            if int(match[1]) != len(digests):
                return None
            made = hashlib.md5(b"".join(digests), usedforsecurity=False).hexdigest()
            made = f"{made}-{len(digests)}"
        else:
            empty = hashlib.md5(b"", usedforsecurity=False).digest()
            made = (digests[0] if digests else empty).hex()
        if made == etag:
            return True

        def read_head() -> bool | None:
            answer = self.client.head_object(
                Bucket=self._bucket, Key=listed.key, IfMatch=listed.etag
            )
            kms = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
            return None if kms or "SSECustomerAlgorithm" in answer else False

        return self._call_s3(listed.key, "GetObject", read_head)

    def _call_s3(self, key: str, action: str, ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except ClientError as error:
            raise self._make_os_error(error, key, action) from error
        except NO_CREDENTIALS as error:
            why = "no AWS credentials: set AWS_PROFILE or --profile, or use an instance role"
            raise PermissionError(errno.EACCES, why, key) from error
        except NEVER_SENT as error:
            endpoint = self.client.meta.endpoint_url
            why = f"no connection to {endpoint}: check --region, --endpoint-url and the network"
            raise OSError(errno.EIO, why, key) from error
        except (BotoCoreError, HTTPClientError) as error:
            raise OSError(errno.EIO, f"S3 does not answer: {error}", key) from error
        except (ResponseParserError, *UNREADABLE) as error:
            raise OSError(errno.EIO, f"the answer is not one of S3: {error}", key) from error

    def _make_os_error(self, error: ClientError, key: str, action: str) -> OSError:
        code, text = (
            read_aws_error_code(error),
            str(error.response.get("Error", {}).get("Message", "")),
        )
        if code == "NoSuchBucket":
            return OSError(errno.ENXIO, f"there is no bucket {self._bucket}", key)
        if code in _GONE:
            return FileNotFoundError(errno.ENOENT, "there is no such object", key)
        if code in _CHANGED:
            return OSError(errno.ESTALE, os.strerror(errno.ESTALE), key)
        if code in _NOT_ALLOWED:
            return PermissionError(errno.EACCES, self._explain_access_denial(action), key)
        if code in _NOT_KNOWN:
            why = f"the AWS credentials are wrong or have expired ({code})"
            return PermissionError(errno.EACCES, why, key)
        if code == "InvalidObjectState":
            return OSError(errno.EIO, "archived (Glacier): restore the object first", key)
        return OSError(errno.EIO, f"S3 answers {code}: {text}", key)

    def _explain_access_denial(self, action: str) -> str:
        on = f"arn:aws:s3:::{self._bucket}" + ("" if action == "ListBucket" else "/*")
        return f"access denied: allow s3:{action} on {on} to this role"


def parse_original_file_time(metadata: Mapping[str, str]) -> int | None:
    """Return a file's modification time as an uploader keeps it in an object's metadata, in ns.

    `file-mtime` is FSx for Lustre's and DataSync's (`1595002920000000000ns`), `mtime` rclone's
    and s3fs's (`1595002920.123456789`, seconds). None for anything else.
    """
    text = metadata.get("file-mtime") or metadata.get("mtime") or ""
    number = text.rstrip("nums")
    try:
        value = Decimal(number) * _UNITS[text[len(number) :] or "s"]
        return int(value) if value.is_finite() else None
    except (InvalidOperation, KeyError):
        return None
