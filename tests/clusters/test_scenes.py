"""The operator's commands as a person runs them, over HTTP: the scenes of scenes.yaml.

A scene has steps, and a step is what is done (Stage's methods), a command line that is run, and
what must be true then (Stage's methods of the names in CHECKS). Each of `with` adds to its first
step, and is a scene of its own.
"""

import itertools
import json
import shlex
from collections.abc import Callable, Mapping
from string import Template
from typing import Any

import pytest
import yaml
from click.testing import Result

from hpctl.toolkit.errors import HpctlError
from tests.clusters.bed import CLUSTER
from tests.clusters.legacy import FILE, KEY, SCRIPTS, Account, LegacyBed
from tests.clusters.shell import FAST, SPEC, Shell
from tests.tables import beside

pytestmark = pytest.mark.integration

ORDERS = ("Create", "Update", "Delete", "Batch", "Add", "Extend")
CHECKS = ("out", "err", "error", "whole", "view", "orders", "asked", "left", "facts")
WORDS = {"fast": shlex.join(FAST), "here": f"--cluster {CLUSTER}"}
Body = dict[str, Any]
LONG = ("$long", "x" * (1 << 20))
SCENES = [
    (name, [{**scene["steps"][0], **case}, *scene["steps"][1:]], scene.get("stage", "cluster"))
    for name, scene in beside(__file__, "scenes.yaml").items()
    for case in scene.get("with", [{}])
]


def texts(found: str | list[str]) -> list[str]:
    return [found] if isinstance(found, str) else found


def at(data, place: str):
    for key in place.split("."):
        data = data[int(key)] if isinstance(data, list) else data.get(key)
    return data


class Stage:
    """One cluster, a shell, and what the last command did."""

    def __init__(self, shell: Shell, played) -> None:
        self.shell, self.bed, self.played = shell, shell.bed, played
        self.spec: dict[str, Any] = json.loads(json.dumps(SPEC))
        self.settings = shell.file.with_name("settings.json")
        self.backup = shell.file.with_suffix(".legacy")
        self.checked: list[int] = []
        self.result: Result

    def step(self, step: Mapping[str, Any]) -> None:
        for name in (n for n in step if n not in (*CHECKS, "run", "type", "exit")):
            getattr(self, f"do_{name}")(step[name])
        if "run" in step:
            files = {"file": str(self.shell.file), "settings": str(self.settings)}
            of, *text = shlex.split(Template(step["run"]).substitute(WORDS | files))
            self.result = self.shell.run(*text, of=of, stdin=step.get("type", ""))
            output = f"{self.result.output}\n{self.result.exception!r}"
            assert self.result.exit_code == step.get("exit", 0), output
        for name in (n for n in step if n in CHECKS):
            getattr(self, name)(step[name])

    # What is done.

    def do_gone(self, _: bool) -> None:
        self.bed.emulator.delete(CLUSTER)
        assert self.bed.emulator.wait_until(lambda: not self.bed.emulator.world.clusters, 10)
        self.bed.forget_calls()

    def do_spec(self, fields: Mapping[str, Any]) -> None:
        self.spec |= fields
        self.shell.file.write_text(yaml.safe_dump(self.spec))

    def do_groups(self, groups: list[Mapping[str, Any]]) -> None:
        """The file's groups beside the controller: each the workers but for these fields."""
        head, workers, *_ = self.spec["instance_groups"]
        self.do_spec({"instance_groups": [head, *({**workers, **group} for group in groups)]})

    def do_legacy(self) -> None:
        """The file with the API's configuration of a legacy cluster."""
        self.do_spec({"node_provisioning_mode": None})
        for group in self.spec["instance_groups"]:
            group["lifecycle"] = {"source_s3_uri": SCRIPTS["SourceS3Uri"], "on_create": "a.sh"}
        self.do_groups([{"partition": "gpu", "count": 3}])

    def do_invalid(self, _: bool) -> None:
        def fail(_file, spec, _aws) -> None:
            self.checked.append(spec.groups[1].count)
            raise HpctlError(
                "1 check of the cluster file cluster.yaml failed, so nothing was created or changed"
            )

        self.shell.patch.setattr("hpctl.clusters.commands.validate.validate_spec_or_exit", fail)

    def do_jobs(self, jobs: Mapping[int, list[int]]) -> None:
        """Be on the head node, with these jobs on the nodes of these numbers."""
        self.slurm = self.shell.head_node()
        for job, nodes in jobs.items():
            self.slurm.run(job, *(f"ip-127-0-1-{n}" for n in nodes))

    def do_ends(self, job: int) -> None:
        """A job, after a few looks at Slurm."""
        self.slurm.at_look += [lambda: None] * 3 + [lambda: self.slurm.end(job)]

    def do_fault(self, fault: Mapping[str, Any]) -> None:
        self.bed.emulator.faults.add(**fault)

    def do_others(self, _: str) -> None:
        """Somebody else deletes a node, after a few looks at Slurm."""
        request = {"ClusterName": CLUSTER, "NodeIds": [self.bed.worker()]}
        self.slurm.at_look += [lambda: None] * 3
        self.slurm.at_look.append(
            lambda: self.bed.emulator.handle("BatchDeleteClusterNodes", request)
        )

    def do_description(self, fields: Mapping[str, Any]) -> None:
        def other(before: Body) -> Body:
            return {k: v for k, v in {**before, **fields}.items() if v is not None}

        self._describes(other)

    def do_stale(self, _: bool) -> None:
        """DescribeCluster goes on to show what is there now."""
        before = self.bed.emulator.handlers["DescribeCluster"]({"ClusterName": CLUSTER})
        self._describes(lambda _: before)

    def do_restless(self, _: bool) -> None:
        """The controller's group has another count at each look."""
        looks = itertools.count()

        def other(before: Body) -> Body:
            counts = dict.fromkeys(("TargetCount", "CurrentCount"), next(looks))
            before["InstanceGroups"][0] |= counts
            return before

        self._describes(other)

    def _describes(self, other: Callable[[Body], Body]) -> None:
        handlers = self.bed.emulator.handlers
        before = handlers["DescribeCluster"]
        self.shell.patch.setattr("hpctl.clusters.progress.LAG_S", 0.0)
        self.shell.patch.setitem(handlers, "DescribeCluster", lambda body: other(before(body)))

    def do_simulated(self, fields: Mapping[str, Any]) -> None:
        """What the played service, or the bucket, is from now on."""
        for name, value in fields.items():
            old = getattr(self.played, name)
            setattr(self.played, name, {**old, **value} if isinstance(old, dict) else value)

    def do_world(self, fields: Mapping[str, Any]) -> None:
        for name, value in fields.items():
            setattr(self.bed.emulator.world, name, value)

    def do_plan(self, fields: Mapping[str, Any]) -> None:
        for plan in self.played.capacity.plans.values():
            plan |= fields

    def do_settings(self, text: str) -> None:
        self.settings.write_text(text.replace(*LONG))

    def do_parameters(self, fields: Mapping[str, Any]) -> None:
        self.played.put(fields)

    def do_objects(self, objects: Mapping[str, str]) -> None:
        self.played.objects |= {k: v.replace(*LONG).encode() for k, v in objects.items()}

    def do_edited(self, _: bool) -> None:
        self.bed.machines.edited = True

    def do_killed(self, _: bool) -> None:
        """The command before, after it had taken the file away: its backup stands for it."""
        self.backup.mkdir()
        name = "sagemaker-x%2Fscripts%2Fprovisioning_parameters.json"
        taken = self.played.objects.pop(KEY)
        (self.backup / name).write_bytes(taken)

    def do_forget(self, _: bool) -> None:
        self.bed.forget_calls()

    # What must be true.

    def _has(self, text: str, found: str | list[str]) -> None:
        squeezed = " ".join(text.split())
        for one in texts(found):
            assert one in squeezed, text

    def out(self, found: str | list[str]) -> None:
        self._has(self.result.stdout, found)

    def err(self, found: str | list[str]) -> None:
        self._has(self.result.stderr, found)

    def error(self, found: str | list[str]) -> None:
        error = self.result.exception
        assert isinstance(error, HpctlError)
        self._has(f"{type(error).__name__}: {error} {error.hint}", found)

    def whole(self, text: str) -> None:
        assert self.result.stdout == f"{text}\n"

    def view(self, fields: Mapping[str, Any]) -> None:
        view = json.loads(self.result.stdout)
        assert {place: at(view, place) for place in fields} == fields

    def orders(self, names: list[str]) -> None:
        assert [name for name in self.bed.operations() if name.startswith(ORDERS)] == names

    def asked(self, requests: Mapping[str, Mapping[str, Any]]) -> None:
        """What the last request of an operation had."""
        for name, fields in requests.items():
            request = self.bed.emulator.calls.all(name)[-1].request
            assert {place: at(request, place) for place in fields} == fields

    def left(self, groups: Mapping[str, list[int]]) -> None:
        world = self.bed.emulator.world
        with world.lock:
            nodes = list(world.cluster(CLUSTER).nodes.values())
        found = {name: sorted(n.node for n in nodes if n.group.name == name) for name in groups}
        assert found == {name: [f"ip-127-0-1-{n}" for n in ids] for name, ids in groups.items()}

    def facts(self, facts: Mapping[str, Any]) -> None:
        assert {name: getattr(self, f"is_{name}")() for name in facts} == facts

    def is_cluster(self) -> bool:
        return CLUSTER in self.bed.emulator.world.clusters

    def is_groups(self) -> list[str]:
        return list(self.bed.emulator.world.cluster(CLUSTER).groups)

    def is_workers(self) -> int:
        """How many there are when what was ordered is done: two at the least."""
        assert self.bed.emulator.wait_until(lambda: len(self.bed.instances()) <= 2, 10)
        return len(self.bed.instances())

    def is_drained(self) -> list[str]:
        return [name for name, node in self.slurm.nodes.items() if node.drained]

    def is_checked(self) -> list[int]:
        return self.checked

    def is_mode(self) -> str:
        return str(self.bed.emulator.world.cluster(CLUSTER).spec["NodeProvisioningMode"])

    def is_migrated(self) -> bool:
        request = {"ClusterName": CLUSTER}
        groups = self.bed.emulator.handlers["DescribeCluster"](request)["InstanceGroups"]
        return all("SlurmConfig" in group for group in groups)

    def is_in_the_bucket(self) -> bool:
        found = self.played.objects.get(KEY)
        return found is not None and json.loads(found) == FILE

    def is_kept(self) -> bool:
        return [json.loads(f.read_bytes()) for f in self.backup.iterdir()] == [FILE]

    def is_edited(self) -> bool:
        return self.bed.machines.edited

    def is_tried(self) -> list[str]:
        return list(self.played.calls)


@pytest.fixture(scope="module")
def _legacy():
    made = LegacyBed()
    yield made
    made.close()


@pytest.fixture
def legacy(_legacy: LegacyBed, tmp_path, monkeypatch) -> Shell:
    _legacy.reset()
    return Shell(_legacy, tmp_path, monkeypatch)


@pytest.mark.parametrize(("name", "steps", "on"), SCENES, ids=lambda v: v if " " in v else "")
def test_scene(name: str, steps: list[Any], on: str, request) -> None:
    shell: Shell = request.getfixturevalue("legacy" if on == "legacy" else "shell")
    played: Any = None
    bed = shell.bed
    handlers = dict(bed.emulator.handlers)
    aws = Account(bed.aws, bed.s3) if isinstance(bed, LegacyBed) else bed.aws
    shell.patch.setattr("hpctl.engine.adapters.make_aws_account_client", lambda *_: aws)
    for place in ("context", "capacity"):
        shell.patch.setattr(
            f"hpctl.clusters.commands.{place}.make_aws_client_for_command", lambda *_: aws
        )
    if isinstance(bed, LegacyBed):
        played = bed.s3
    stage = Stage(shell, played)
    if on == "legacy":
        stage.do_legacy()
    bed.forget_calls()
    try:
        for step in steps:
            stage.step(step)
    finally:
        bed.emulator.handlers = handlers
        bed.emulator.capacity.plans.clear()
