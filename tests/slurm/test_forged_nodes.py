"""A node's root writes its OS, with newlines in it: no other node is hidden, and no read ends."""

import os
import sys
from datetime import datetime

import pytest

from hpctl.slurm.read import SlurmCommandReader
from hpctl.slurm.run import SlurmCommandRunner
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ReadInterrupted
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.vocabulary.identity import NodeName
from tests.fakes.slurm_text import node_text

NAMES = [f"n{number}" for number in range(1, 41)]
PROGRAM = f"""#!{sys.executable} -S
import pathlib, sys
here, words = pathlib.Path(__file__).parent, sys.argv[1:]
with (here / "asked").open("a") as asked:
    asked.write(" ".join(words) + "\\n")
if sys.argv[0].endswith("sinfo"):
    glance = [w.removeprefix("--nodes=") for w in words if w.startswith("--nodes=")]
    print(f"{{glance[0]}}|idle|Unknown|Unknown|none" if glance else (here / "hosts").read_text())
elif words[:2] == ["show", "node"]:
    sys.path.insert(0, {os.getcwd()!r})
    from hpctl.toolkit.hostlist import expand_hostlist
    names = (
        expand_hostlist(words[2]) if words[2] != "-o"
        else [p.stem for p in sorted(here.glob("*.node"))]
    )
    missing = [n for n in names if not (here / f"{{n}}.node").exists()]
    for name in names:
        path = here / f"{{name}}.node"
        print(f"Node {{name}} not found" if name in missing else path.read_text())
    sys.exit(bool(missing))
elif words == ["--version"]:
    print("slurm 25.11.7")
"""


@pytest.fixture
def reader(tmp_path) -> SlurmCommandReader:
    for name in ("scontrol", "squeue", "sinfo"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "hosts").write_text(fold_hostlist(NAMES))
    for name in NAMES:
        (tmp_path / f"{name}.node").write_text(node_text(name, "IDLE"))
    return SlurmCommandReader(SlurmCommandRunner(bin_dir=tmp_path), lambda: datetime.now(UTC))


def lies(reader: SlurmCommandReader, liar: str, *forged: str) -> None:
    """Let a node's record hold whole lines of others."""
    lines = [node_text(liar, "IDLE"), *(node_text(name, "DOWN") for name in forged)]
    assert reader.runner.bin_dir is not None
    (reader.runner.bin_dir / f"{liar}.node").write_text("\n".join(lines))


def test_an_event_interrupts_every_second_whole_at_most(reader: SlurmCommandReader) -> None:
    reader.event = lambda: True
    for _ in range(2):
        assert reader.view().nodes.keys() == set(NAMES)
        with pytest.raises(ReadInterrupted):
            reader.view()


@pytest.mark.parametrize(
    "forged",
    [["n1"], [n for n in NAMES if n != "n7"], NAMES, ["nobody", "nobody"], ["n1", "n1", "nobody"]],
    ids=["one", "all others", "itself too", "nobody, twice", "both"],
)
def test_every_node_is_read_as_slurmctld_has_it(
    reader: SlurmCommandReader, forged: list[str]
) -> None:
    lies(reader, "n7", *forged)
    for view in (reader.view(), reader.part([*NAMES[:20], "nobody"], {})):
        assert set(view.nodes) in (set(NAMES), set(NAMES[:20]))
        assert {node.state for node in view.nodes.values()} == {"IDLE"}
    assert reader.runner.bin_dir is not None
    asked = (reader.runner.bin_dir / "asked").read_text().count("show node")
    assert asked < 40, "not one command for each node"


def test_known_nodes_are_read_again_without_the_whole_of_them(reader: SlurmCommandReader) -> None:
    whole = reader.view().nodes
    asked = reader.runner.bin_dir / "asked"
    asked.unlink()
    name = NodeName("n1")
    assert reader.part([name], whole).nodes == {name: whole[name]}
    assert "--nodes=n1" in asked.read_text()
    assert "show node" not in asked.read_text()
    assert reader.part([name], {}).nodes == {name: whole[name]}, "not known: read in full"
    assert "show node" in asked.read_text()
