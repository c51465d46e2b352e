"""docs/cluster.md: cluster.yaml, its keys from the models that read it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hpctl.clusters.request import LEFT_TO_RAW
from hpctl.clusters.spec.schema import make_cluster_spec_json_schema

HEAD = """# cluster.yaml

One file describes a HyperPod cluster with Slurm. `hpctl cluster validate` checks it,
`hpctl cluster create` creates the cluster, and `hpctl cluster update` changes it.
[Operating a cluster](cluster-operate.md) is the guide.

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

- Keys are CreateCluster's in snake_case, with short names for daily ones; values are the API's.
- What the file leaves out, the service decides, and `hpctl cluster update` leaves alone.
- Quote what YAML reads as something else: `"1.10"`. `node_recovery: None` is the API's word.
- `slurm_config: api` (the default): each group has a `role`, compute groups a `partition`, and the
  service writes slurm.conf. `provisioning_parameters`: lifecycle scripts write it, from a file that
  `hpctl cluster provisioning-parameters` prints; several head nodes need this style.
- A group without `lifecycle` is set up by its AMI. `on_init_complete` runs a script after that,
  `on_create` instead of it.
- [cluster.schema.json](cluster.schema.json) is the JSON schema, for editors.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *_describe_raw(), *_describe_sections()])


def _describe_raw() -> Iterator[str]:
    yield "## raw"
    yield ""
    yield "`raw` of a group, and of the cluster, is merged into the request in the API's own words."
    yield "These have no key of their own:"
    yield ""
    yield from (f"- `{path}`: {why}" for path, why in LEFT_TO_RAW.items())
    yield ""


def _describe_sections() -> Iterator[str]:
    schema = make_cluster_spec_json_schema()
    parts: Mapping[str, Any] = schema["$defs"]
    places: dict[str, str] = {}
    _find_sections(schema, "", parts, places)
    yield "## Keys"
    yield ""
    yield "\\*: needed."
    yield ""
    yield from _make_table(schema, places)
    for name, place in places.items():
        yield f"### {place}"
        yield ""
        yield " ".join(parts[name]["description"].split())
        yield ""
        yield from _make_table(parts[name], places)


def _find_sections(
    part: Mapping[str, Any], place: str, parts: Mapping[str, Any], places: dict[str, str]
) -> None:
    """Record each section's name and its first place, in the order of the file."""
    for key, answer in part["properties"].items():
        for one in (answer, *answer.get("anyOf", ()), *_list_entries(answer)):
            name = one.get("$ref", "").rpartition("/")[2]
            if name and name not in places:
                places[name] = f"{place}.{key}".lstrip(".")
                _find_sections(parts[name], places[name], parts, places)


def _list_entries(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    lists = [answer, *answer.get("anyOf", ())]
    return [one["items"] for one in lists if "items" in one]


def _make_table(part: Mapping[str, Any], places: Mapping[str, str]) -> Iterator[str]:
    needed = part.get("required", ())
    yield "| key | value | meaning |"
    yield "|---|---|---|"
    for key, answer in part["properties"].items():
        must = " \\*" if key in needed else ""
        value = _describe_value(answer, places)
        yield f"| `{key}`{must} | {value} | {answer.get('description', '')} |"
    yield ""


def _describe_value(answer: Mapping[str, Any], places: Mapping[str, str]) -> str:
    """Return what stands behind a key, in a few words."""
    if choices := answer.get("anyOf"):
        return " or ".join(
            _describe_value(one, places) for one in choices if one.get("type") != "null"
        )
    if "$ref" in answer:
        place = places[answer["$ref"].rpartition("/")[2]]
        return f"[{place.rpartition('.')[2]}](#{place.replace('.', '')})"
    if "const" in answer:
        return f"`{answer['const']}`"
    if "enum" in answer:
        return ", ".join(f"`{one}`" for one in answer["enum"])
    kind = answer.get("type", "")
    if kind == "array":
        inner = _describe_value(answer["items"], places)
        return f"list, {inner}" if inner.startswith("such as") else f"list of {inner}"
    if kind == "integer":
        return f"{answer['minimum']} to {answer['maximum']}"
    if kind == "string" and "examples" in answer:
        return _format_example(answer["examples"][0])
    args = {"string": "text", "boolean": "`true`, `false`", "object": "a map"}
    return str(args.get(kind, kind))


def _format_example(text: str) -> str:
    """Return a value as it looks; what is long by the name of its kind."""
    if text.startswith("arn:"):
        return "ARN"
    if re.fullmatch(r"[a-z]+-[0-9a-f]{17}", text):
        return f"such as `{text.partition('-')[0]}-...`"
    return "host name" if text.endswith(".amazonaws.com") else f"such as `{text}`"
