"""docs/validate.md from the checks of `hpctl cluster validate`."""

from hpctl.clusters.iam_policies import PERSONAS
from hpctl.clusters.validate import FAMILIES
from hpctl.clusters.validate.facts import SpecCheckFamily

HEAD = """# Cluster validation

`hpctl cluster validate [FILE]` checks a [cluster.yaml](cluster.md) before an instance is paid for
and reports every problem with its place and its fix. `hpctl cluster create` and `update` run the
same checks on the CreateCluster request that the file becomes, `raw` included.

| level | meaning | exit code |
|---|---|---|
| `OK` | as it should be; shown by `--verbose` | 0 |
| `WARN` | may not work as intended | 0, with `--strict` 1 |
| `FAIL` | the service refuses it, or the cluster is broken | 1 |
| `UNKNOWN` | a call failed; never taken for OK | 3 where nothing failed |
"""

SECURITY = """## Security groups

Every node must reach every other on all ports.

- A rule is needed inbound and outbound. The outbound rule of a new security group is enough for IP.
- EFA traffic passes only by a rule for *all traffic* that names the security group itself, in both
  directions; address ranges do not match it.
- Groups with security groups of their own must admit each other on all of TCP.
"""

IAM = """## IAM policies

`hpctl cluster iam policy WHO` prints the policy of least privilege for what the configuration uses.
`--file cluster.yaml` adds the alarms and the accounting secret, and narrows the policy to the
bucket and the role; `--config hpctl.yaml` adds autoscaling where it is on. `--cluster ARN`,
`--bucket` and `--role` narrow it by hand, and `--trust` prints the trust policy.
`hpctl cluster iam check ROLE-ARN --as WHO` asks `iam:SimulatePrincipalPolicy` whether a role has
it.

| who | what for |
|---|---|
| `head-node` | the daemon, on the controller group's role |
| `execution-role` | HyperPod's agents and lifecycle scripts on every node |
| `operator` | who runs `hpctl cluster` |

HyperPod's sample execution role has no `sagemaker` action: without `head-node` the daemon can treat
nothing.
"""


def page() -> str:
    """Return the page: a table for each family of checks."""
    assert len(PERSONAS) == IAM.count("\n| `"), "say what each policy is for"
    parts = [HEAD, "## The checks\n\nA check is named after its family: `spec.rolling`.\n"]
    for family in FAMILIES:
        parts += _describe_family(family)
    return "\n".join([*parts, SECURITY, IAM])


def _describe_family(family: SpecCheckFamily) -> list[str]:
    offline = " Needs no credentials." if family.offline else ""
    rows = [f"| `{check.id}` | {check.asks} |" for check in family.checks]
    return [
        f"### {family.name}\n",
        f"{family.about}{offline}\n",
        "| check | holds |",
        "|---|---|",
        *rows,
        "",
    ]
