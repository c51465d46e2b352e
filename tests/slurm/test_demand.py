"""What Slurm's words say that jobs ask for, and what it deals out of a node."""

import pytest

from hpctl.slurm import parse
from hpctl.slurm.records import (
    ConsumableResources,
    compute_node_tres,
    parse_consumable_resources,
    parse_gres,
    parse_mebibytes,
)
from hpctl.vocabulary.demand import NOTHING_KNOWN, JobResourceRequest, Tres

NODE = Tres(16, 1000, (("gpu", 8),))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()), ("(null)", ()), ("gpu:8", (("gpu", 8),)),
        ("gpu:h100:8(S:0-1),nvme:1", (("gpu", 8), ("nvme", 1))),
        ("gpu:a:4(S:0,2),gpu:b:4(IDX:0-3)", (("gpu", 8),)), ("gres:gpu", (("gpu", 1),)),
        ("gres:gpu:h100:2", (("gpu", 2),)), ("gres/gpu:2,gres/gpu:a100:1", (("gpu", 3),)),
        ("gres/gpu=4", (("gpu", 4),)), ("cpu=2,gres/gpu=1", (("gpu", 1),)),
    ],
)  # fmt: skip
def test_generic_resources(text, found):
    assert parse_gres(text) == found


def asked(
    tres: str, nodes: int = 1, tasks: int = 1, cpus: int = 1, **more: str
) -> JobResourceRequest:
    """What squeue's fields of a pending job ask for."""
    numbers = {"NumNodes": nodes, "NumTasks": tasks, "NumCPUs": cpus, "MinCpus": min(cpus, 2)}
    fields = dict.fromkeys(parse.FIELDS, "") | {name: str(n) for name, n in numbers.items()}
    answer = {name.replace("_", "-"): text for name, text in more.items()}
    return parse.parse_job_resource_request({**fields, "tres-alloc": tres, **answer})


def test_what_22_05_said_of_pending_jobs():
    """Each line is what its sbatch printed there."""
    one = "cpu=1,mem=1000M,node=1,billing=1"
    found = asked(one, tres_per_job="gres:gpu:4")
    assert (found.nodes, found.each.gres, found.total.gres) == (1, (), (("gpu", 4),))
    # -n3 -c2 --gpus-per-task=1: NumNodes=2 is scontrol's estimate
    six = "cpu=6,mem=1000M,node=1,billing=6"
    found = asked(six, nodes=2, tasks=3, cpus=6, tres_per_task="gres:gpu:1")
    assert (found.nodes, found.each.cpus, found.total) == (1, 2, Tres(6, 1000, (("gpu", 3),)))
    # -N2-4 --ntasks-per-node=2 --gpus-per-node=gpu:2
    four = "cpu=4,mem=2000M,node=2,billing=4"
    found = asked(four, nodes=2, tasks=4, cpus=4, tres_per_node="gres:gpu:gpu:2")
    assert (found.nodes, found.each.gres, found.total.gres) == (2, (("gpu", 2),), (("gpu", 4),))
    assert not found.whole
    assert asked(one, OverSubscribe="NO").whole
    assert asked(one, tres_per_socket="gres:gpu:1").whole


def test_what_slurm_deals_out_of_a_node():
    assert parse_consumable_resources({"SelectType": "select/linear"}).whole
    assert not parse_consumable_resources(
        {"SelectType": "select/cons_tres", "SelectTypeParameters": "CR_CPU"}
    ).memory
    assert parse_consumable_resources({"SelectTypeParameters": "CR_CORE_MEMORY"}).memory
    assert compute_node_tres(16, 1000, "gpu:8", ConsumableResources()) == NODE
    assert compute_node_tres(16, 1000, "gpu:8", ConsumableResources(memory=False)).memory == 0
    assert compute_node_tres(16, 1000, "gpu:8", ConsumableResources(whole=True)) == NOTHING_KNOWN
    assert [parse_mebibytes(t) for t in ("2000M", "1.5G", "512K", "", "x")] == [2000, 1536, 0, 0, 0]
