"""The types of a cluster file's values: names, ARNs, ids, as the service accepts them.

Patterns and lengths are those of botocore's service model; a test holds them against it.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_pascal
from pydantic.aliases import AliasGenerator
from pydantic_core import CoreSchema, core_schema


class Like(Struct, frozen=True):
    """Text that matches a pattern as a whole. `means` says in words what it is, with an example."""

    pattern: str
    means: str
    longest: int
    shortest: int = 0

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Strict: what YAML reads as a number is no name."""
        return core_schema.no_info_after_validator_function(
            self.checked, core_schema.str_schema(strict=True)
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """What an editor checks while the file is written."""
        example = self.means.partition(" such as ")[2].removesuffix(" (quote it)")
        return {
            **handler(schema),
            **({"examples": [example]} if example else {}),
            "pattern": f"^({self.pattern})$",
            "minLength": self.shortest,
            "maxLength": self.longest,
        }

    def checked(self, text: str) -> str:
        """The text. Raises ValueError."""
        if not re.fullmatch(self.pattern, text):
            raise ValueError(f"is not {self.means}")
        if not self.shortest <= len(text) <= self.longest:
            raise ValueError(f"has {len(text)} characters, not {self.shortest} to {self.longest}")
        return text


ClusterName = Annotated[
    str,
    Like(
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
    str, Like(r"[a-zA-Z0-9][a-zA-Z0-9._-]*", "a partition's name of letters, digits, dashes", 1024)
]
InstanceType = Annotated[
    str, Like(r"ml\.[a-z0-9-]+\.[a-z0-9]+", "an instance type such as ml.p5.48xlarge", 63, 1)
]
"""Which types there are changes with every release of the service: `cluster validate` asks it."""
RoleArn = Annotated[
    str,
    Like(
        r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+",
        "a role's ARN such as arn:aws:iam::111122223333:role/hyperpod",
        2048,
        20,
    ),
]
SubnetId = Annotated[
    str, Like("[-0-9a-zA-Z]+", "a subnet's id such as subnet-0123456789abcdef0", 32)
]
SecurityGroupId = Annotated[
    str, Like("[-0-9a-zA-Z]+", "a security group's id such as sg-0123456789abcdef0", 32)
]
S3Uri = Annotated[
    str,
    Like(
        "(https|s3)://([^/]+)/?(.*)", "an S3 prefix such as s3://sagemaker-my-bucket/scripts", 1024
    ),
]
FileName = Annotated[str, Like(r"[\S\s]+", "a file's name", 128, 1)]
KmsKeyId = Annotated[str, Like("[a-zA-Z0-9:/_-]*", "a KMS key's id or ARN", 2048)]
FsxDnsName = Annotated[
    str,
    Like(
        r"((fs|fc)i?-[0-9a-f]{8,}\..{4,253})",
        "a file system's DNS name such as fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
        275,
        16,
    ),
]
MountName = Annotated[
    str, Like("([A-Za-z0-9_-]{1,8})", "a Lustre mount name such as abcdefgh", 8, 1)
]
MountPath = Annotated[str, Like("/[a-zA-Z0-9._/-]+", "an absolute path such as /fsx", 1024, 1)]
TrainingPlanArn = Annotated[
    str,
    Like(
        r"arn:aws[a-z\-]*:sagemaker:[a-z0-9\-]*:[0-9]{12}:training-plan/.*",
        "a training plan's ARN such as"
        " arn:aws:sagemaker:us-east-1:111122223333:training-plan/p5-in-may",
        2048,
        50,
    ),
]
ImageId = Annotated[
    str, Like("(ami-[0-9a-fA-F]{8,17}|default)", "an AMI's id such as ami-0123456789abcdef0", 21, 7)
]
ImageReleaseVersion = Annotated[
    str, Like(r"[0-9]+\.[0-9]+\.[0-9]+", "a release such as 1.2.3 (quote it)", 64)
]
AlarmName = Annotated[str, Like(r"(?!\s*$).+", "an alarm's name", 255, 1)]
CronExpression = Annotated[str, Like(".+", "a schedule such as cron(0 3 ? * SUN *)", 256, 1)]
DatabaseHost = Annotated[
    str,
    Like(
        r"(?=.{1,255}$)([a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?)"
        r"(\.[a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?)*",
        "a host name such as slurm.abc123.us-east-1.rds.amazonaws.com",
        255,
        1,
    ),
]
DatabaseName = Annotated[
    str, Like("[a-zA-Z0-9$_]+", "a schema's name such as slurm_acct_db", 64, 1)
]
SecretArn = Annotated[
    str,
    Like(
        r"arn:aws[a-z\-]*:secretsmanager:[a-z0-9\-]*:[0-9]{12}:secret:.+",
        "a secret's ARN such as arn:aws:secretsmanager:us-east-1:111122223333:secret:slurmdb-Ab12",
        2048,
        20,
    ),
]
# Of the letters, blanks and numbers of Unicode that the service takes Python's re knows the \w.
TagKey = Annotated[str, Like(r"[\w\s.:/=+\-@]*", "a tag's key", 128, 1)]
TagValue = Annotated[str, Like(r"[\w\s.:/=+\-@]*", "a tag's value", 256)]


def between(least: int, most: int) -> Any:
    """A whole number: not a word, not yes or no."""
    return Field(strict=True, ge=least, le=most)


InstanceCount = Annotated[int, between(0, 6758)]
Raw = Mapping[str, Any]
"""Merged into the request as it stands: the API's own words."""


class Section(BaseModel):
    """A part of the file. Its fields' docstrings are the reference that people read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ApiSection(Section):
    """A part that the API has as well, in its own spelling: one field for one field.

    People write `volume_size_in_gb`; `request` says VolumeSizeInGB.
    """

    model_config = ConfigDict(
        validate_by_name=True,
        validate_by_alias=False,
        alias_generator=AliasGenerator(alias=to_pascal),
    )

    def request(self) -> dict[str, Any]:
        """This section in the API's words, without what the file does not say."""
        return self.model_dump(by_alias=True, exclude_none=True)
