"""docs/validate.md from the checks of `hpctl cluster validate`."""

from __future__ import annotations

from hpctl.clusters.policies import PERSONAS
from hpctl.clusters.validate import FAMILIES
from hpctl.clusters.validate.facts import Family

HEAD = """# Checked before it costs money

`hpctl cluster validate [FILE]` says everything that can be known of a cluster's file before an
instance is paid for: every problem at once, with its place in the file, its line and its mend.
`hpctl cluster create` asks the same checks first, and orders nothing where one fails.

```
hpctl cluster validate cluster.yaml             # everything
hpctl cluster validate --offline                # only what needs no credentials
hpctl cluster validate --only network --only s3 # some of it
hpctl cluster validate --scripts my_scripts/    # the lifecycle scripts on this machine as well
hpctl cluster validate --strict --json          # in CI: a warning is a problem too
```

| level | means | exit code |
|---|---|---|
| `OK` | looked at, and as it should be; `--verbose` shows it | 0 |
| `WARN` | works, or may work, but not as its author thinks | 0, with `--strict` 1 |
| `FAIL` | the service refuses it, or the cluster comes up broken | 1 |
| `UNKNOWN` | a call failed: shown as CANNOT TELL, with what to allow | 3 where nothing failed |

Where a field of the file is wrong, the rest is checked all the same, but for what rests on it.
A check that does not apply says nothing. What cannot be read is never taken for fine: without the
right to simulate a role's policies, for example, `iam.allowed` is UNKNOWN. Nothing is changed, and
the calls run side by side: some seconds for a cluster of any size.

The checks read the CreateCluster request that comes of the file, and not the file: so `raw` is
checked as everything else is. `network`, `security-groups`, `storage` and `capacity` look at each
group's own subnets and security groups where it has some, else at the cluster's.
"""

SECURITY = """## Security groups, and why they fail here

Every node of a cluster must reach every other: slurmctld, slurmd and srun talk on ports of their
choice. A security group that "references itself" in one direction, or that references another
group, is not enough:

- **Both ways.** A rule is needed inbound and outbound. A new security group of AWS lets everything
  out to `0.0.0.0/0`, which is enough for IP.
- **EFA is not IP.** Its traffic is let through only by a rule for *all traffic* that names a
  security group that the other node carries; no block of addresses matches it. Types with EFA
  therefore need that rule inbound and outbound; without, HyperPod's health check of a node fails.
- **Between groups.** Where groups have security groups of their own (`security_groups` of a group),
  each must let the others in on all of TCP, and be let out to them.
"""

IAM = """## IAM policies of least privilege

`hpctl iam WHO` prints a policy as IAM takes it; what is not named stays `*`:

```
hpctl iam head-node --cluster arn:aws:sagemaker:us-east-1:111122223333:cluster/abcd1234efgh
hpctl iam execution-role --cluster h100-a --account 111122223333 --region us-east-1 \\
    --bucket sagemaker-ours > policy.json
hpctl iam execution-role --trust > trust.json
hpctl iam operator --cluster ARN --bucket sagemaker-ours --role hyperpod
hpctl iam check arn:aws:iam::111122223333:role/hyperpod --as execution-role
```

| who | what for |
|---|---|
| `head-node` | hpctl's daemon, and `--secret`: on the controller group's role, beside its own |
| `autoscale` | the same where autoscaling is on |
| `execution-role` | what HyperPod's agents and lifecycle scripts do on every node |
| `operator` | who runs `hpctl cluster`, `lifecycle`, `storage` and `capacity` |
| `buyer` | who runs `hpctl capacity buy` and `extend`, beside the operator's |

The actions of all but `execution-role` are those of the operations that the code
calls, and a test fails where a call is added without its action, or an action is left that nobody
needs. `execution-role --alarm NAME` adds what alarms need that roll an update back.
A cluster's ARN holds its id and not its name, so only `--cluster ARN` narrows what may be
done to it; by name the log groups are narrowed. `iam check` asks `iam:SimulatePrincipalPolicy`.

HyperPod's sample execution role has no `sagemaker` action at all: without `head-node` the daemon
can see and treat nothing.
"""


def page() -> str:
    """The page: a table for each family of checks."""
    assert len(PERSONAS) == IAM.count("\n| `"), "say what each policy is for"
    parts = [HEAD, "## The checks\n"]
    for family in FAMILIES:
        parts += _family(family)
    return "\n".join([*parts, SECURITY, IAM])


def _family(family: Family) -> list[str]:
    offline = " Needs no credentials." if family.offline else ""
    rows = [f"| `{family.name}.{check.id}` | {check.asks} |" for check in family.checks]
    return [
        f"### {family.name}\n",
        f"{family.about}{offline}\n",
        "| check | holds |",
        "|---|---|",
        *rows,
        "",
    ]
