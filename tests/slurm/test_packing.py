"""How many nodes jobs need that share them, and what Slurm's words say that they ask for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.capacity.autoscale import Pool
from hpctl.slurm import parse
from hpctl.slurm.records import Dealt, dealt, gres_of, mebibytes, node_tres
from hpctl.vocabulary.demand import NOTHING_KNOWN, Demand, Tres
from tests.examples import examples

NODE = Tres(16, 1000, (("gpu", 8),))
FAR = 10**6


def gpus(count: int, nodes: int = 1) -> Demand:
    total = Tres(count * nodes, 0, (("gpu", count * nodes),))
    return Demand(nodes=nodes, each=Tres(1, 0, (("gpu", count),)), total=total)


def nodes_for(*jobs: Demand, like: Tres = NODE, free: int = 0) -> int:
    pool = Pool(like, [like] * free)
    return sum(n for n in [pool.place(job, FAR, FAR) for job in jobs] if n is not None)


def test_jobs_of_one_gpu_share_a_node_and_the_ninth_needs_another():
    assert nodes_for(*[gpus(1)] * 8) == 1
    assert (nodes_for(*[gpus(1)] * 9), nodes_for(*[gpus(1)] * 9, free=1)) == (2, 1)
    assert nodes_for(gpus(5), gpus(5), gpus(3), gpus(3)) == 2
    assert nodes_for(gpus(4, nodes=3), *[gpus(4)] * 3) == 3


def test_what_is_exclusive_or_unknown_is_taken_whole():
    assert nodes_for(*[replace(gpus(1), whole=True)] * 3) == 3
    assert (nodes_for(*[Demand()] * 3), nodes_for(*[gpus(1)] * 3, like=NOTHING_KNOWN)) == (3, 3)


def test_a_job_sized_by_its_sum_is_spread_over_as_many_nodes_as_it_takes():
    assert nodes_for(Demand(total=Tres(1, 0, (("gpu", 20),)))) == 3
    assert nodes_for(Demand(total=Tres(100, 0))) == 7


def test_a_job_that_asks_for_no_memory_has_all_of_it_where_memory_is_dealt_out():
    job = Demand(total=Tres(1, 4000))
    assert (nodes_for(job, job), nodes_for(job, job, like=replace(NODE, memory=0))) == (2, 1)


def test_what_no_such_node_could_serve():
    pool = Pool(NODE, [])
    assert pool.fits(gpus(8))
    for job in (gpus(9), Demand(each=Tres(17)), Demand(total=Tres(1, 0, (("tpu", 1),)))):
        assert not pool.fits(job)
        assert Pool(NOTHING_KNOWN, []).fits(job)


def test_no_more_than_there_is_room_for_and_a_refusal_changes_nothing():
    pool = Pool(NODE, [NODE])
    assert pool.place(gpus(8, nodes=3), 1, FAR) is None
    assert pool.place(gpus(8), 0, FAR) == 0, "the free node is free still"
    assert Pool(NODE, []).place(gpus(8, nodes=4), 1, 3) == 1, "large enough, whatever ends"


JOBS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 3), st.booleans(), st.integers(0, 1000)),
    max_size=25,
)


@settings(max_examples=examples(80), deadline=None)
@given(jobs=JOBS, free=st.integers(0, 5))
def test_never_fewer_than_their_sum_nor_more_than_a_node_for_each(jobs, free):
    pool = Pool(NODE, [NODE] * free)
    wanted = 0
    for count, nodes, whole, memory in jobs:
        job = replace(gpus(count, nodes), whole=whole)
        job = replace(job, each=replace(job.each, memory=memory))
        new = pool.place(job, FAR, FAR)
        assert new is not None
        assert 0 <= new <= nodes
        wanted += 8 * nodes if whole else count * nodes
    assert -(-wanted // 8) <= pool.used <= sum(nodes for _, nodes, _, _ in jobs)
    for node in pool._nodes:
        assert all(0 <= r <= h for r, h in zip(node.rest, node.has, strict=True))
        assert node.free == (node.rest == node.has)


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
    assert gres_of(text) == found


def asked(tres: str, nodes: int = 1, tasks: int = 1, cpus: int = 1, **more: str) -> Demand:
    """What squeue's fields of a pending job ask for."""
    numbers = {"NumNodes": nodes, "NumTasks": tasks, "NumCPUs": cpus, "MinCpus": min(cpus, 2)}
    fields = dict.fromkeys(parse.FIELDS, "") | {name: str(n) for name, n in numbers.items()}
    answer = {name.replace("_", "-"): text for name, text in more.items()}
    return parse.demand({**fields, "tres-alloc": tres, **answer})


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
    assert dealt({"SelectType": "select/linear"}).whole
    assert not dealt({"SelectType": "select/cons_tres", "SelectTypeParameters": "CR_CPU"}).memory
    assert dealt({"SelectTypeParameters": "CR_CORE_MEMORY"}).memory
    assert node_tres(16, 1000, "gpu:8", Dealt()) == NODE
    assert node_tres(16, 1000, "gpu:8", Dealt(memory=False)).memory == 0
    assert node_tres(16, 1000, "gpu:8", Dealt(whole=True)) == NOTHING_KNOWN
    assert [mebibytes(t) for t in ("2000M", "1.5G", "512K", "", "x")] == [2000, 1536, 0, 0, 0]
