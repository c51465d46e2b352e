"""expand and fold are inverse, and no name that is not one comes through."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctl.toolkit.hostlist import (
    HostlistError,
    expand_hostlist,
    fold_hostlist,
    is_host_name,
    split_names_into_batches,
)
from tests.process import run_text

names = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.-]{0,12}\Z")
numbered = st.builds(
    lambda prefix, number, width: f"{prefix}{number:0{width}d}",
    st.sampled_from(["n", "gpu-", "ip-10-0-", "rack1n", "a.b-"]),
    st.integers(0, 250),
    st.integers(1, 5),
)
name_sets = st.sets(st.one_of(names, numbered), max_size=60)


@given(name_sets)
def test_expand_undoes_fold(some: set[str]) -> None:
    assert set(expand_hostlist(fold_hostlist(some))) == some
    assert len(expand_hostlist(fold_hostlist(some))) == len(some)


@given(name_sets)
def test_fold_is_one_text_for_one_set(some: set[str]) -> None:
    assert (
        fold_hostlist(sorted(some))
        == fold_hostlist(sorted(some, reverse=True))
        == fold_hostlist([*some, *some])
    )


@given(st.text(alphabet="nab[]-,0129. ;$'\"\n", max_size=30))
def test_whatever_the_text_only_names_come_out_or_an_error(text: str) -> None:
    try:
        out = expand_hostlist(text)
    except HostlistError:
        return
    assert all(is_host_name(name) for name in out)


@given(st.text(max_size=20))
def test_fold_takes_names_only(text: str) -> None:
    if is_host_name(text):
        assert expand_hostlist(fold_hostlist([text])) == (text,)
    else:
        with pytest.raises(HostlistError):
            fold_hostlist([text])


@given(st.lists(numbered, max_size=50), st.integers(1, 7))
def test_batches_lose_nothing(some: list[str], size: int) -> None:
    parts = list(split_names_into_batches(some, size))
    assert [name for part in parts for name in part] == some
    assert all(0 < len(part) <= size for part in parts)


@pytest.mark.slurm
@pytest.mark.parametrize(
    "text",
    [
        "n1", "n[1-3]", "n[01-03,7],login", "n[1-2],n[09-11],n[9-11]", "rack[1-2]n[1-3]", "a,b,a",
        "n[3,1-2]", "n0[8-11]",
    ],
)  # fmt: skip
def test_as_scontrol_reads_it(text: str, tmp_path) -> None:
    assert list(expand_hostlist(text)) == _scontrol(text, str(tmp_path))


@pytest.mark.slurm
def test_scontrol_reads_what_fold_writes(tmp_path) -> None:
    some = {f"n{i}" for i in range(1, 30, 3)} | {f"ip-10-1-{i:03d}" for i in range(90, 120)}
    some |= {"login", "n007", "n07", "n7"}
    assert set(_scontrol(fold_hostlist(some), str(tmp_path))) == some


def _scontrol(text: str, directory: str) -> list[str]:
    """`scontrol show hostnames`, which needs a slurm.conf and no slurmctld."""
    conf = f"{directory}/slurm.conf"
    with open(conf, "w") as file:
        file.write("ClusterName=x\nSlurmctldHost=x(127.0.0.1)\nNodeName=x\n")
    scontrol = shutil.which("scontrol")
    assert scontrol
    done = run_text(
        [scontrol, "show", "hostnames", text],
        env={"SLURM_CONF": conf, "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        check=True,
    )
    return done.stdout.split()
