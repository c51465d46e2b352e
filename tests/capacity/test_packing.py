"""How many nodes jobs need that share them."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.capacity.autoscale import ScalingNodePool
from hpctl.vocabulary.demand import NOTHING_KNOWN, JobResourceRequest, Tres
from tests.examples import examples

NODE = Tres(16, 1000, (("gpu", 8),))
FAR = 10**6


def gpus(count: int, nodes: int = 1) -> JobResourceRequest:
    total = Tres(count * nodes, 0, (("gpu", count * nodes),))
    return JobResourceRequest(nodes=nodes, each=Tres(1, 0, (("gpu", count),)), total=total)


def nodes_for(*jobs: JobResourceRequest, like: Tres = NODE, free: int = 0) -> int:
    pool = ScalingNodePool(like, [like] * free)
    return sum(n for n in [pool.place(job, FAR, FAR) for job in jobs] if n is not None)


def test_jobs_of_one_gpu_share_a_node_and_the_ninth_needs_another():
    assert nodes_for(*[gpus(1)] * 8) == 1
    assert (nodes_for(*[gpus(1)] * 9), nodes_for(*[gpus(1)] * 9, free=1)) == (2, 1)
    assert nodes_for(gpus(5), gpus(5), gpus(3), gpus(3)) == 2
    assert nodes_for(gpus(4, nodes=3), *[gpus(4)] * 3) == 3


def test_what_is_exclusive_or_unknown_is_taken_whole():
    assert nodes_for(*[replace(gpus(1), whole=True)] * 3) == 3
    assert (
        nodes_for(*[JobResourceRequest()] * 3),
        nodes_for(*[gpus(1)] * 3, like=NOTHING_KNOWN),
    ) == (3, 3)


def test_a_job_sized_by_its_sum_is_spread_over_as_many_nodes_as_it_takes():
    assert nodes_for(JobResourceRequest(total=Tres(1, 0, (("gpu", 20),)))) == 3
    assert nodes_for(JobResourceRequest(total=Tres(100, 0))) == 7


def test_a_job_that_asks_for_no_memory_has_all_of_it_where_memory_is_dealt_out():
    job = JobResourceRequest(total=Tres(1, 4000))
    assert (nodes_for(job, job), nodes_for(job, job, like=replace(NODE, memory=0))) == (2, 1)


def test_what_no_such_node_could_serve():
    pool = ScalingNodePool(NODE, [])
    assert pool.fits(gpus(8))
    for job in (
        gpus(9),
        JobResourceRequest(each=Tres(17)),
        JobResourceRequest(total=Tres(1, 0, (("tpu", 1),))),
    ):
        assert not pool.fits(job)
        assert ScalingNodePool(NOTHING_KNOWN, []).fits(job)


def test_no_more_than_there_is_room_for_and_a_refusal_changes_nothing():
    pool = ScalingNodePool(NODE, [NODE])
    assert pool.place(gpus(8, nodes=3), 1, FAR) is None
    assert pool.place(gpus(8), 0, FAR) == 0, "the free node is free still"
    assert ScalingNodePool(NODE, []).place(gpus(8, nodes=4), 1, 3) == 1, (
        "large enough, whatever ends"
    )


JOBS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 3), st.booleans(), st.integers(0, 1000)),
    max_size=25,
)


@settings(max_examples=examples(80), deadline=None)
@given(jobs=JOBS, free=st.integers(0, 5))
def test_never_fewer_than_their_sum_nor_more_than_a_node_for_each(jobs, free):
    pool = ScalingNodePool(NODE, [NODE] * free)
    wanted = 0
    for count, nodes, whole, memory in jobs:
        job = replace(gpus(count, nodes), whole=whole)
        job = replace(job, each=replace(job.each, memory=memory))
        new = pool.place(job, FAR, FAR)
        assert new is not None
        assert 0 <= new <= nodes
        wanted += 8 * nodes if whole else count * nodes
    assert -(-wanted // 8) <= pool.busy_count <= sum(nodes for _, nodes, _, _ in jobs)
    for node in pool._nodes:
        assert all(0 <= r <= h for r, h in zip(node.rest, node.has, strict=True))
        assert node.free == (node.rest == node.has)
