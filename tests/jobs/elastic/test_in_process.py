"""NVIDIA's in-process restart under the launchers: real PyTorch, and the same processes go on."""

import json

import pytest

from tests.jobs.elastic.elastic_bed import Launchers, until_gone, with_torch

__all__ = ["with_torch"]

pytest.importorskip(
    "nvidia_resiliency_ext", reason="NVIDIA'S WRAPPER NOT TESTED: it is not installed"
)
pytestmark = [pytest.mark.nightly, pytest.mark.integration]

RANK = """
import json, os, pathlib, sys, time, torch, torch.distributed as dist
rank, save = int(os.environ["RANK"]), pathlib.Path(os.environ["HPCTL_CHECKPOINT_DIR"])

def tell(**what):
    with (save / f"told-{rank}").open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), "at": time.time(), **what}) + "\\n")

def step(state, number):
    total = torch.full((8,), float(number * (rank + 1)))
    dist.all_reduce(total)
    state["weights"] = 0.9 * state["weights"] + total
    state["step"] = number
    tell(step=number)

def main():
    whence = os.environ.get("HPCTL_RESUME_FROM")
    tell(whence=whence)
    state = torch.load(whence) if whence else {"step": 0, "weights": torch.zeros(8)}
    dist.init_process_group("gloo")
    for number in range(state["step"] + 1, 31):
        step(state, number)
        time.sleep(0.05)
        if rank == 0 and number % 5 == 0:
            torch.save(state, save / f"step-{number}.pt.tmp")
            (save / f"step-{number}.pt.tmp").rename(save / f"step-{number}.pt")
        @trouble@
    dist.destroy_process_group()
    if rank == 0:
        (save / "final.json").write_text(json.dumps({"sha256": state["weights"].tolist()}))

main()
"""
ONCE = "if rank == 1 and number == 17 and not (save / 'hit').exists(): (save / 'hit').touch(); {}"


def read_notes(run, rank):
    return [json.loads(line) for line in (run.save / f"told-{rank}").read_text().splitlines()]


@pytest.fixture
def group(tmp_path):
    """Starts two launchers of one rank each; `trouble` is the program's, once, at step 17."""
    made = []

    def start(name, trouble="pass", *options):
        script = tmp_path / f"{name}.py"
        script.write_text(RANK.replace("@trouble@", trouble))
        made.append(Launchers(tmp_path / name, [str(script)], nproc=1, options=options))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_an_exception_costs_no_process(group):
    calm = group("calm")
    assert calm.wait(90) == [0, 0], calm.text()
    run = group("kept", ONCE.format("raise RuntimeError('no CUDA error')"), "--in-process")
    assert run.wait(120) == [0, 0], run.text()
    assert "restart 1 in the same processes, from" in run.text()
    assert len(run.account().generations) == 1, "the launcher started nobody again"
    for rank in (0, 1):
        lines = read_notes(run, rank)
        assert len({line["pid"] for line in lines}) == 1
        places = [line["whence"] for line in lines if "whence" in line]
        assert places == [None, str(run.save / "step-15.pt")]
    assert run.weights() == calm.weights()
    assert until_gone(run) == []


@pytest.mark.parametrize("trouble", ["os.kill(os.getpid(), 9)", "sys.exit(5)"])
def test_a_rank_that_ends_is_the_launchers_matter(group, trouble):
    run = group("ended", ONCE.format(trouble), "--in-process")
    assert run.wait(120) == [0, 0], run.text()
    assert len(run.account().generations) == 2
    assert read_notes(run, 0)[-1]["step"] == 30
    assert until_gone(run) == []


def test_a_rank_that_does_not_come_costs_new_processes_and_no_hang(group):
    once = (
        "if number == 17 and not (save / f'hit-{rank}').exists(): (save / f'hit-{rank}').touch(); "
    )
    trouble = "time.sleep(600) if rank == 0 else [].pop()"
    run = group("alone", once + trouble, "--in-process")
    assert run.wait(120) == [0, 0], run.text()
    assert "does not come to the restart" in run.text()
    assert len(run.account().generations) == 2
    assert read_notes(run, 0)[-1]["step"] == 30
    assert until_gone(run) == []


def test_what_raises_again_and_again_gets_new_processes(group):
    always = "if number == 7 and rank == 1: raise RuntimeError('always')"
    run = group("again", always, "--in-process", "--max-restarts=1")
    assert 0 not in run.wait(240), run.text()
    assert len({line["pid"] for line in read_notes(run, 1)}) == 2
    assert run.text().count("in the same processes") == 2 * 2, run.text()
    assert until_gone(run) == []


def test_damaged_checkpoints_do_not_restart_at_step_0(group, tmp_path):
    import torch

    save = tmp_path / "damaged" / "save"
    save.mkdir(parents=True)
    torch.save({"step": 2, "weights": torch.zeros(8)}, save / "step-2.pt")
    damage = "[p.write_bytes(p.read_bytes()[:99]) for p in save.glob('*.pt')]; raise RuntimeError()"
    run = group("damaged", ONCE.format(damage), "--in-process")
    assert run.wait(120) == [93, 93], run.text()
    assert "nothing to resume from" in run.text()
    assert until_gone(run) == []
