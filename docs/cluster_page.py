"""docs/cluster.md: cluster.yaml, its keys from the models that read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpctl.clusters.request import LEFT_TO_RAW
from hpctl.clusters.spec.reading import json_schema

HEAD = """# cluster.yaml

One file says what a HyperPod cluster with Slurm is. `hpctl cluster validate` checks it before it
costs money, `hpctl cluster create` makes it, and `hpctl cluster update` shows what a change of
the file would add, change and destroy before it does so
([why](adr/0026-one-file-in-the-api-s-words.md)).

```yaml
name: llm-prod
vpc:
  subnets: [subnet-0123456789abcdef0]
  security_groups: [sg-0123456789abcdef0]
node_recovery: None               # hpctl replaces nodes
hpctl:
  mode: own
  spares: {h100: 1}
instance_groups:
  - name: controller
    instance_type: ml.m5.4xlarge
    count: 1
    role: controller
    execution_role: arn:aws:iam::111122223333:role/hyperpod
  - name: h100
    instance_types: [ml.p5.48xlarge, ml.p5en.48xlarge]    # the first that there is
    count: 8
    role: compute
    partition: h100
    execution_role: arn:aws:iam::111122223333:role/hyperpod
    lifecycle:
      source_s3_uri: s3://sagemaker-my-bucket/lifecycle
      on_init_complete: on_init_complete.sh
    storage:
      - fsx_lustre:
          dns_name: fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com
          mount_name: abcdefgh
```

```
hpctl cluster init                 a first file, commented, by asking or from flags
hpctl cluster import CLUSTER -o FILE  the file of a living cluster: `update` with it changes nothing
hpctl cluster import --from-json FILE  the same of a create-cluster request (- reads standard input)
hpctl cluster schema               the JSON schema, for editors
hpctl cluster provisioning-parameters    provisioning_parameters.json, where the scripts read it
```

- **Words.** Keys are CreateCluster's own in snake_case. Shorter than there are `name`, `count`,
  `min_count`, `storage`, `ebs`, `fsx_lustre`, `fsx_openzfs`, `lifecycle`, `deep_health_checks`
  (OnStartDeepHealthChecks), `training_plan`, `scheduled_update`, `auto_patch`, `tiered_storage`,
  `security_groups`; `instance_types` is InstanceRequirements, `role` with `partition` SlurmConfig,
  `subnets` with `security_groups` of a group OverrideVpcConfig. Values are the API's own.
- **Problems** are told all at once, each with its line and, where a word is nearly right, the
  right one. What the service refuses is refused here first: OnCreate with OnInitComplete, two
  controller groups, a partition for a login node, a strategy under continuous provisioning.
- **Defaults** are the service's: what it fills in where the file says nothing, `update` leaves
  alone.
- **Quote** what YAML would read as something else: `"1.10"`, `"on"`. A key that stands twice is an
  error. `node_recovery: None` is the API's word; nothing at all is `null` or no key.

## Who tells Slurm

`slurm_config: api` (the default): each group has a `role`, compute groups a `partition`, and the
service writes slurm.conf. `slurm_config_strategy` says what an update does with what was edited by
hand. `node_provisioning_mode: Continuous` needs this style, and no strategy.

`slurm_config: provisioning_parameters`: the lifecycle scripts write slurm.conf, from
`provisioning_parameters.json` in their own directory. `hpctl cluster provisioning-parameters` makes
that file of the groups' roles and partitions and of `provisioning_parameters`. Several head nodes
need this style. The two cannot be mixed; `hpctl cluster update`
[migrates](cluster-operate.md#migrate-to-api-driven-slurm-configuration) to `api`, and there is no
way back. Where no group has a role, the file is yours.

## Scripts

A group without `lifecycle` is set up by its AMI alone: no scripts, no S3, no internet. With
`on_init_complete` your script runs after that; with `on_create` your script does all of it.

## What `import` cannot know

The service does not tell whether a group's AMI was chosen or was just the latest (it stands in a
comment), nor hpctl's own settings and `max_count`; the date of the next patch is set anew for each
and is left out. Tags come from ListTags, roles in the `provisioning_parameters` style from the file
beside the scripts in S3; where either cannot be read, the written file says so at its top.

Of a request (`--from-json`, as `aws sagemaker create-cluster --cli-input-json` takes it) the AMI is
a wish and stays in the file; `create` sends the same request again.

## Extensions

```
hpctl cluster extension add sagemaker-observability [--version 1.0.0] [--settings FILE.json]
hpctl cluster extension list | describe EXTENSION | remove EXTENSION
```

AWS's own software on every node, for Slurm with `node_provisioning_mode: Continuous`; `add` on one
that is there brings it to the version and settings, and tries it again where it has failed.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_raw(), *_sections()])


def _raw() -> Iterator[str]:
    yield "## raw"
    yield ""
    yield "`raw` of a group, and of the cluster, is merged into the request as it stands, in the"
    yield "API's own words: structures key by key, everything else replaced. It is for what a new"
    yield "release of the service takes. No key of this file stands for:"
    yield ""
    yield from (f"- `{path}`: {why}" for path, why in LEFT_TO_RAW.items())
    yield ""


def _sections() -> Iterator[str]:
    schema = json_schema()
    parts: Mapping[str, Any] = schema["$defs"]
    places: dict[str, str] = {}
    _find(schema, "", parts, places)
    yield "## Keys"
    yield ""
    yield from _table(schema, places)
    for name, place in places.items():
        yield f"### {place}"
        yield ""
        yield " ".join(parts[name]["description"].split())
        yield ""
        yield from _table(parts[name], places)


def _find(
    part: Mapping[str, Any], place: str, parts: Mapping[str, Any], places: dict[str, str]
) -> None:
    """Each section's name and the first place where it stands, as the file is read."""
    for key, said in part["properties"].items():
        for one in (said, *said.get("anyOf", ()), *_entries(said)):
            name = one.get("$ref", "").rpartition("/")[2]
            if name and name not in places:
                places[name] = f"{place}.{key}".lstrip(".")
                _find(parts[name], places[name], parts, places)


def _entries(said: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    lists = [said, *said.get("anyOf", ())]
    return [one["items"] for one in lists if "items" in one]


def _table(part: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[str]:
    needed = part.get("required", ())
    yield "| key | value | meaning |"
    yield "|---|---|---|"
    for key, said in part["properties"].items():
        must = " (needed)" if key in needed else ""
        yield f"| `{key}`{must} | {_value(said, places)} | {said.get('description', '')} |"
    yield ""


def _value(said: Mapping[str, Any], places: Mapping[str, str]) -> str:
    """What stands behind a key, in a few words."""
    if choices := said.get("anyOf"):
        return " or ".join(_value(one, places) for one in choices if one.get("type") != "null")
    if "$ref" in said:
        place = places[said["$ref"].rpartition("/")[2]]
        return f"[{place}](#{place.replace('.', '')})"
    if "const" in said:
        return f"`{said['const']}`"
    if "enum" in said:
        return ", ".join(f"`{one}`" for one in said["enum"])
    kind = said.get("type", "")
    if kind == "array":
        inner = _value(said["items"], places)
        return f"list, {inner}" if inner.startswith("such as") else f"list of {inner}"
    if kind == "integer":
        return f"{said['minimum']} to {said['maximum']}"
    if kind == "string" and "examples" in said:
        return f"such as `{said['examples'][0]}`"
    words = {"string": "text", "boolean": "`true`, `false`", "object": "a map"}
    return words.get(kind, kind)
