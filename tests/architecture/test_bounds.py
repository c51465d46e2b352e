"""Times, durations and numbers from outside pass through hpctl/toolkit/bounds.py alone.

What is counted here is about hpctl's own values or is bounded by a pattern beside it.
"""

import ast
from collections import Counter
from pathlib import Path

from tests.architecture.source import python_files, tree

BOUNDS = Path("hpctl/toolkit/bounds.py")
FOLDERS = (
    "hpctl/toolkit", "hpctl/vocabulary", "hpctl/faults", "hpctl/slurm", "hpctl/sagemaker",
    "hpctl/engine", "hpctl/nodes", "hpctl/capacity", "hpctl/insight", "hpctl/service",
    "hpctl/daemon",
)  # fmt: skip
FOUND = ("hpctl/wire/reports.py", "hpctl/wire/job_reports.py", "hpctl/vocabulary/policy_file.py")
FILES = tuple(map(Path, FOUND))
BANNED = ("fromtimestamp", "utcfromtimestamp", "fromisoformat", "strptime", "astimezone")

ALLOWED = {
    "hpctl/sagemaker/objects.py int": 6,
    "hpctl/sagemaker/provider.py int": 3,
    "hpctl/capacity/autoscale.py int": 2,
    "hpctl/faults/table.py int": 2,
    "hpctl/toolkit/compat.py fromisoformat": 1,
    "hpctl/faults/decode.py int": 1,
    "hpctl/toolkit/hostlist.py int": 7,
    "hpctl/nodes/kind.py int": 1,
    "hpctl/service/intake/child.py int": 3,
    "hpctl/service/intake/process.py int": 2,
    "hpctl/engine/config.py astimezone": 1,
    "hpctl/engine/instance_resolver.py int": 1,
    "hpctl/engine/request_client.py int": 1,
    "hpctl/engine/views.py timedelta": 1,
    "hpctl/engine/world_offline.py timedelta": 2,
    "hpctl/engine/explain_view.py int": 1,
    "hpctl/insight/report/command.py timedelta": 1,
    "hpctl/nodes/acceptance/culprit_command.py int": 1,
    "hpctl/nodes/acceptance/preflight.py int": 3,
    "hpctl/nodes/acceptance/speed.py int": 6,
    "hpctl/nodes/gpu_reset.py int": 1,
    "hpctl/service/page/app.py int": 1,
    "hpctl/service/page/serve.py int": 1,
    "hpctl/service/page/render.py timedelta": 1,
    "hpctl/toolkit/socket_owner.py int": 1,
    "hpctl/toolkit/output.py astimezone": 1,
    "hpctl/toolkit/output.py int": 1,
    "hpctl/toolkit/output.py timedelta": 1,
    "hpctl/toolkit/yaml_files.py int": 1,
    "hpctl/slurm/hazards.py int": 1,
    "hpctl/slurm/parse.py int": 3,
    "hpctl/slurm/pyslurm.py int": 1,
    "hpctl/engine/journal/rows.py fromtimestamp": 1,
    "hpctl/engine/journal/store.py astimezone": 2,
    "hpctl/engine/journal/store.py int": 1,
}


def _looked_at() -> list[Path]:
    found = [path for folder in FOLDERS for path in python_files(folder)]
    return [path for path in (*found, *FILES) if path != BOUNDS]


def _unbounded(node: ast.AST) -> str:
    """The name of a call that raises for some value of its type; empty for every other node."""
    if not isinstance(node, ast.Call):
        return ""
    name = ast.unparse(node.func).rpartition(".")[2]
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    constant = all(isinstance(value, ast.Constant) for value in given)
    return name if name in BANNED or (name in ("int", "timedelta") and not constant) else ""


def test_what_raises_for_some_values_is_called_in_the_bounding_module_alone() -> None:
    found = Counter(
        f"{path} {name}"
        for path in _looked_at()
        for node in ast.walk(tree(path))
        if (name := _unbounded(node))
    )
    assert found == ALLOWED
