"""The verdicts on how programs died on a real H200: what they printed is recorded in `deaths/`."""

import pytest

from hpctl.jobs.crash import JobGpuAllocation, classify_crash, explain_missing_gpu_failure
from hpctl.jobs.run.ending import StepEndEvidence, diagnose_step_end
from hpctl.jobs.run.settings import read_run_settings
from hpctl.jobs.run.srun import SrunTaskEnd, parse_srun_command
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.values import T0 as NOW
from tests.gpu.recordings import H200, read_json, read_text

pytestmark = pytest.mark.integration

EXPECTED = {
    name: row["expected"].split("|") for name, row in read_json("deaths/verdicts.json").items()
}
PRINTED = {path.stem for path in (H200 / "deaths").glob("*.stderr")}
SIGNALS = {"segv": -11, "sigkill": -9, "abort": -6}
"""The three programs that print nothing and die of a signal (deaths/verdicts.json)."""

WHY = {
    "no_gpu": "it sees no CUDA GPU, in no_gpu (die.py)",
    "bad_ordinal": "CUDA error: invalid device ordinal (it asks for cuda:5)",
    "assert": "device-side assert, in device_assert (die.py): the assertion"
    " `srcIndex < srcSelectDimSize` of a kernel failed (Indexing.cu:1515)",
    "cublas": '`idx_dim >= 0 && idx_dim < index_size && "index out of bounds"` of a kernel failed',
    "oom": "GPU out of memory, in oom (die.py): it asked for 8.00 GiB, 2.66 GiB free",
    "jax_oom": "it asked for 4.00TiB",
    "host_oom": "it asked for 1125899906842624 bytes",
    "pinned": "GPU out of memory, or no memory of the host can be pinned, in pinned (die.py)",
    "illegal": "illegal memory access, in illegal (die.py)",
    "segv": "it died of SIGSEGV",
    "sigkill": "it was killed by SIGKILL",
}
"""What a person needs at night beside the kind: place, amount, assertion, device."""


def died(name: str) -> Trouble:
    lines = read_text(f"deaths/{name}.stderr").splitlines() if name in PRINTED else []
    return classify_crash(SIGNALS.get(name, 1), lines, at=NOW, policy=RunPolicy(), node="n1")


def test_each_recorded_program_has_its_expected_verdict_listed() -> None:
    assert PRINTED | set(SIGNALS) == set(EXPECTED)
    assert len(EXPECTED) == 18


@pytest.mark.parametrize("name", EXPECTED)
def test_the_kind_of_each_recorded_death(name: str) -> None:
    found = died(name)
    assert found.kind in EXPECTED[name], found.why
    assert WHY.get(name, "") in found.why


NO_GPU = read_text("deaths/no_gpu.stderr").splitlines()


def ended(grant: JobGpuAllocation, *nodes: str, **more: object) -> Trouble:
    """What the supervisor says of tasks on these nodes that printed deaths/no_gpu.stderr."""
    ends = [
        SrunTaskEnd(node, rank, 1, "Exited with exit code 1") for rank, node in enumerate(nodes)
    ]
    evidence = StepEndEvidence(1, ends=ends, tail=NO_GPU, gpus=grant, **more)
    trouble = diagnose_step_end(evidence, RunPolicy(), NOW, classify_crash)
    assert trouble is not None
    return trouble


def test_a_node_without_the_gpus_that_slurm_gave_is_suspect() -> None:
    found = ended(JobGpuAllocation("0,1", 2), "n1")
    assert (found.kind, found.node) == (TroubleKind.CUDA, "n1")
    assert found.why.startswith("node n1 shows no CUDA GPU although Slurm gave it 2")


@pytest.mark.parametrize(
    "grant",
    [JobGpuAllocation(visible, 2) for visible in ("", "-1", "2", "NoDevFiles", " -1,0")]
    + [JobGpuAllocation("7", 2, ("4", "5"))],
)
def test_job_that_hides_its_gpus_is_named_and_the_node_is_not(grant: JobGpuAllocation) -> None:
    found = ended(grant, "n1")
    assert (found.kind, found.node) == (TroubleKind.CRASH, None)
    assert found.why == f"the job sees no GPU: CUDA_VISIBLE_DEVICES={grant.visible}"


@pytest.mark.parametrize(
    "grant",
    [
        JobGpuAllocation("4,5", 2, ("4", "5")),
        JobGpuAllocation("GPU-8d2e", 1),
        JobGpuAllocation(None, 1),
    ],
)
def test_what_slurm_itself_sets_hides_nothing(grant: JobGpuAllocation) -> None:
    assert ended(grant, "n1").kind is TroubleKind.CUDA


def test_a_job_without_gpus_and_one_that_sees_none_on_all_nodes_are_the_users() -> None:
    assert "Slurm gave it none" in ended(JobGpuAllocation(None, 0), "n1").why
    several = ended(JobGpuAllocation(None, 8), "n1", "n2")
    assert (several.kind, several.node) == (TroubleKind.CRASH, None)
    assert "n1, n2" in several.why
    unknown = ended(JobGpuAllocation(), "n1")
    assert (unknown.kind, unknown.node) == (TroubleKind.CUDA, "n1")
    assert "does nvidia-smi answer on node n1?" in unknown.why


def test_a_job_that_has_trained_before_does_see_gpus() -> None:
    assert ended(JobGpuAllocation(None, 0), "n1", "n2", stepped=True).kind is TroubleKind.CUDA


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
        "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
        "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment,",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have one",
        "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU",
        "RuntimeError: No visible GPU/TPU devices",
    ],
)
def test_other_texts_of_a_missing_gpu_are_treated_alike(line: str) -> None:
    trouble = classify_crash(1, [line], at=NOW, policy=RunPolicy(), node="n1")
    assert (trouble.kind, explain_missing_gpu_failure(trouble, JobGpuAllocation("-1", 8)).kind) == (
        TroubleKind.CUDA,
        TroubleKind.CRASH,
    )


def test_invalid_device_is_shown_with_the_devices_of_the_job() -> None:
    trouble = explain_missing_gpu_failure(died("bad_ordinal"), JobGpuAllocation("0,1", 2))
    assert trouble.why.endswith(
        "(it asks for cuda:5); Slurm gave 2 a node, CUDA_VISIBLE_DEVICES=0,1"
    )


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.mark.parametrize(
    ("words", "environ", "in_slurm", "grant"),
    [
        (["x"], {}, 0, JobGpuAllocation()),
        (["x"], {}, 8, JobGpuAllocation(None, 0)),
        (["x"], {"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "4,5", "CUDA_VISIBLE_DEVICES": "0,1"},
         8, JobGpuAllocation("0,1", 2, ("4", "5"))),
        (["env", "CUDA_VISIBLE_DEVICES=-1", "x"], {"CUDA_VISIBLE_DEVICES": "0"}, 0,
            JobGpuAllocation("-1")),
        (["--export=ALL,CUDA_VISIBLE_DEVICES=", "x"], {}, 0, JobGpuAllocation("")),
    ],
)  # fmt: skip
def test_the_grant_is_read_from_the_jobs_environment(words, environ, in_slurm, grant) -> None:
    assert (
        read_run_settings(parse_srun_command(words), {**SLURM, **environ}).gpus(in_slurm) == grant
    )


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("new_processes", TroubleKind.CRASH, "RuntimeError in main (prog6.py): once"),
        ("in_process_oom", TroubleKind.GPU_MEMORY, "it asked for 4096.00 GiB, 138.45 GiB free"),
        ("new_processes_assert", TroubleKind.CRASH, "of a kernel failed (IndexKernel.cu:111)"),
    ],
)
def test_the_first_error_of_a_recorded_log_is_found(name: str, kind: TroubleKind, why: str) -> None:
    """The logs are in-process/*.log: two ranks under hpctl's launcher, one of which fails once."""
    lines = read_text(f"in-process/{name}.log").splitlines()
    found = classify_crash(1, lines, at=NOW, policy=RunPolicy())
    assert found.kind is kind
    assert why in found.why
