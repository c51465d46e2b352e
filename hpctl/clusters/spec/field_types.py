"""The types of a cluster file's values: names, ARNs, ids, as the service accepts them.

Patterns and lengths are those of botocore's service model; a test holds them against it.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct


class TextPattern(Struct, frozen=True):
    """Text that matches a pattern as a whole. `means` says in words what it is, with an example."""

    pattern: str
    means: str
    longest: int
    shortest: int = 0

    def check(self, text: str) -> str:
        """Return the text. Raises ValueError."""
        if not re.fullmatch(self.pattern, text):
            raise ValueError(f"is not {self.means}")
        if not self.shortest <= len(text) <= self.longest:
            raise ValueError(f"has {len(text)} characters, not {self.shortest} to {self.longest}")
        return text


ClusterName = Annotated[
    str,
    TextPattern(
        "[a-zA-Z0-9](-*[a-zA-Z0-9])*",
        "a name of letters, digits and single dashes inside, such as h100-a",
        63,
        1,
    ),
]
GroupName = ClusterName
API_PARTITION = "[a-zA-Z0-9](-*[a-zA-Z0-9])*"
"""A partition's name where the API configures Slurm. Slurm itself takes `ml.p5.48xlarge` too."""
PartitionName = Annotated[
    str,
    TextPattern(
        r"[a-zA-Z0-9][a-zA-Z0-9._-]*", "a partition's name of letters, digits, dashes", 1024
    ),
]
InstanceType = Annotated[
    str, TextPattern(r"ml\.[a-z0-9-]+\.[a-z0-9]+", "an instance type such as ml.p5.48xlarge", 63, 1)
]
"""Which types there are changes with every release of the service: `cluster validate` asks it."""
RoleArn = Annotated[
    str,
    TextPattern(
        r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+",
        "a role's ARN such as arn:aws:iam::111122223333:role/hyperpod",
        2048,
        20,
    ),
]
SubnetId = Annotated[
    str, TextPattern("[-0-9a-zA-Z]+", "a subnet's id such as subnet-0123456789abcdef0", 32)
]
SecurityGroupId = Annotated[
    str, TextPattern("[-0-9a-zA-Z]+", "a security group's id such as sg-0123456789abcdef0", 32)
]
S3Uri = Annotated[
    str,
    TextPattern(
        "(https|s3)://([^/]+)/?(.*)", "an S3 prefix such as s3://sagemaker-my-bucket/scripts", 1024
    ),
]
FileName = Annotated[str, TextPattern(r"[\S\s]+", "a file's name", 128, 1)]
KmsKeyId = Annotated[str, TextPattern("[a-zA-Z0-9:/_-]*", "a KMS key's id or ARN", 2048)]
FsxDnsName = Annotated[
    str,
    TextPattern(
        r"((fs|fc)i?-[0-9a-f]{8,}\..{4,253})",
        "a file system's DNS name such as fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
        275,
        16,
    ),
]
MountName = Annotated[
    str, TextPattern("([A-Za-z0-9_-]{1,8})", "a Lustre mount name such as abcdefgh", 8, 1)
]
MountPath = Annotated[
    str, TextPattern("/[a-zA-Z0-9._/-]+", "an absolute path such as /fsx", 1024, 1)
]
TrainingPlanArn = Annotated[
    str,
    TextPattern(
        r"arn:aws[a-z\-]*:sagemaker:[a-z0-9\-]*:[0-9]{12}:training-plan/.*",
        "a training plan's ARN such as"
        " arn:aws:sagemaker:us-east-1:111122223333:training-plan/p5-in-may",
        2048,
        50,
    ),
]
ImageId = Annotated[
    str,
    TextPattern(
        "(ami-[0-9a-fA-F]{8,17}|default)", "an AMI's id such as ami-0123456789abcdef0", 21, 7
    ),
]
ImageReleaseVersion = Annotated[
    str, TextPattern(r"[0-9]+\.[0-9]+\.[0-9]+", "a release such as 1.2.3 (quote it)", 64)
]
AlarmName = Annotated[str, TextPattern(r"(?!\s*$).+", "an alarm's name", 255, 1)]
CronExpression = Annotated[str, TextPattern(".+", "a schedule such as cron(0 3 ? * SUN *)", 256, 1)]
DatabaseHost = Annotated[
    str,
    TextPattern(
        r"(?=.{1,255}$)([a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?)"
        r"(\.[a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?)*",
        "a host name such as slurm.abc123.us-east-1.rds.amazonaws.com",
        255,
        1,
    ),
]
DatabaseName = Annotated[
    str, TextPattern("[a-zA-Z0-9$_]+", "a schema's name such as slurm_acct_db", 64, 1)
]
SecretArn = Annotated[
    str,
    TextPattern(
        r"arn:aws[a-z\-]*:secretsmanager:[a-z0-9\-]*:[0-9]{12}:secret:.+",
        "a secret's ARN such as arn:aws:secretsmanager:us-east-1:111122223333:secret:slurmdb-Ab12",
        2048,
        20,
    ),
]
# Of the letters, blanks and numbers of Unicode that the service takes Python's re knows the \w.
TagKey = Annotated[str, TextPattern(r"[\w\s.:/=+\-@]*", "a tag's key", 128, 1)]
TagValue = Annotated[str, TextPattern(r"[\w\s.:/=+\-@]*", "a tag's value", 256)]


def make_integer_bounds(least: int, most: int) -> Meta:
    """Return the bounds of a whole number, both included."""
    return Meta(ge=least, le=most)


InstanceCount = Annotated[int, make_integer_bounds(0, 6758)]
Raw = Mapping[str, Any]
"""Merged into the request unchanged: the API's own words."""


class SpecSection(Struct, frozen=True):
    """A part of the file. Its fields' docstrings are the reference that people read."""


class ApiSection(SpecSection, frozen=True):
    """A part that the API has as well, in its own spelling: one field for one field.

    People write `volume_kms_key_id`; `request` says VolumeKmsKeyId.
    """

    API_NAMES: ClassVar[Mapping[str, str]] = {}
    """The API's names of fields that are not their own names in capitals."""

    @classmethod
    def api_names(cls) -> dict[str, str]:
        """Return the API's name of each field."""
        plain = {name: name.title().replace("_", "") for name in cls.__struct_fields__}
        return plain | dict(cls.API_NAMES)

    def request(self) -> dict[str, Any]:
        """Return this section in the API's words, without what the file does not say."""
        values = {theirs: getattr(self, ours) for ours, theirs in self.api_names().items()}
        return {
            theirs: _convert_field_value_to_api(value)
            for theirs, value in values.items()
            if value is not None
        }


def _convert_field_value_to_api(value: Any) -> Any:
    if isinstance(value, ApiSection):
        return value.request()
    return tuple(map(_convert_field_value_to_api, value)) if isinstance(value, tuple) else value
