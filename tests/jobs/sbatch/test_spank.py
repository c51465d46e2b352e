"""The SPANK plugin on a real Slurm: it does what the wrappers do, and never stands in the way."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctl.sandbox.api import Sandbox
from hpctl.vocabulary.registration import parse_registration_comment
from tests.jobs.last_lines import BUILD, HEADERS, count_lost
from tests.process import room, run_text
from tests.sandbox.test_training_slurm import field, requeue, wait, wait_for_text

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
ROOT = Path(__file__).resolve().parents[3]
AT_ONCE_S = 20.0
"""A submission without hpctl's help takes 20 ms; a busy machine is slower. One that waited for the
hpctl that hangs would take minutes."""
# HyperPod's plugin, as far as a command line can tell: srun --auto-resume=1.
AUTO_RESUME = """\
#include <slurm/spank.h>
SPANK_PLUGIN(auto_resume, 1);
static int set(int val, const char *arg, int remote) { return (void)val, (void)arg, remote * 0; }
static struct spank_option option = { "auto-resume", "n", "resume", 1, 0, set };
int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    if (spank_context() == S_CTX_LOCAL)
        spank_option_register(spank, &option);
    return (void)argc, (void)argv, 0;
}
"""


class Cluster:
    """A Slurm whose plugstack.conf the tests write."""

    def __init__(self, slurm: Sandbox, base: Path) -> None:
        self.slurm = slurm
        self.base = base
        self.plugin = base / "hpctl_spank.so"
        self.plugstack(f"optional {self.plugin} python={sys.executable} timeout=60")

    def plugstack(self, *lines: str) -> None:
        """Commands read it each time they start, and so do steps."""
        (self.base / "plugstack.conf").write_text("".join(f"{line}\n" for line in lines))

    def script(self, body: str, name: str = "job.sh", head: str = "#SBATCH -N1") -> str:
        path = self.base / name
        path.write_text(f"#!/bin/sh\n{head}\n{body}\n")
        return str(path)

    def sbatch(self, *args: str, **more) -> subprocess.CompletedProcess[str]:
        environment = {
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(self.base / "tmp"),
            # hpctl run keeps a job's history there, by its number, which other sandboxes use too.
            "XDG_STATE_HOME": str(self.base / "state"),
        }
        return self.slurm.run(["sbatch", "--parsable", *args], check=False, env=environment, **more)

    def ended(self, job: str) -> str:
        """What the job printed, once it is over."""
        out = self.base / "out" / job
        try:
            wait(self.slurm, job, "COMPLETED", "FAILED", timeout=90)
        except AssertionError as error:
            shown = self.slurm.run(["scontrol", "show", "job", job]).stdout
            text = out.read_text() if out.exists() else "no output"
            raise AssertionError(f"{error}\n{shown}\n{text}") from None
        return out.read_text()

    def submit(self, *args: str) -> tuple[str, str]:
        """The job's id, and what sbatch said on stderr."""
        (self.base / "out").mkdir(exist_ok=True)
        done = self.sbatch("-o", f"{self.base}/out/%j", *args)
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"\d+\n", done.stdout)
        return done.stdout.strip(), done.stderr

    def registered(self, job: str) -> bool:
        return parse_registration_comment(field(self.slurm, job, "Comment")) is not None


@pytest.fixture(scope="module")
def cluster():
    with room() as base:
        (base / "tmp").mkdir()
        conf = f"PlugStackConfig={base}/plugstack.conf\nSchedulerParameters=batch_sched_delay=0\n"
        subprocess.run(
            [str(BUILD), str(base / "hpctl_spank.so"), str(HEADERS)], check=True, timeout=60
        )
        settings = {"nodes": 2, "agents": False, "emulator": False, "slurm_conf": conf}
        (base / "plugstack.conf").touch()
        with Sandbox("spank", state_dir=base / "s", **settings) as slurm:
            yield Cluster(slurm, base)


@pytest.fixture(autouse=True)
def restored(cluster: Cluster):
    """Each test begins with the plugin as it is installed, and leaves no files of the plugin's."""
    cluster.__init__(cluster.slurm, cluster.base)
    yield
    assert list((cluster.base / "tmp").glob("hpctl-spank-*")) == []


def test_a_resilient_job_is_registered_and_resumes(cluster: Cluster) -> None:
    saved = cluster.base / "ck/{job_id}"
    body = 'exec "$HPCTL_PYTHON" -m hpctl.sandbox.training --steps 30 --step-s 0.05 "$@"'
    script = cluster.script(body, head=f"#SBATCH -N1\n#HPCTL --checkpoint-dir {saved}")
    job, output = cluster.submit("--resilient", script, "--checkpoint-every", "5")
    assert "hpctl: added --requeue --open-mode=append" in output
    assert field(cluster.slurm, job, "Requeue") == "1"
    assert field(cluster.slurm, job, "JobName") == "job.sh"
    assert cluster.registered(job)
    wait_for_text(cluster.base / "out" / job, "step 7 ", timeout=30)
    requeue(cluster.slurm, job)
    text = cluster.ended(job)
    assert re.search(rf"hpctl: resuming from {cluster.base}/ck/{job}/step-0*[1-9]", text)
    assert "done: 30 steps" in text


@pytest.mark.nightly
def test_the_option_in_the_script_and_a_policy(cluster: Cluster) -> None:
    policy = cluster.base / "policy.yaml"
    policy.write_text("restarts: 4\n")
    body = (
        'echo "$# args: $*"; env | grep SPANK_PARENT; echo "policy $HPCTL_POLICY";'
        " sbatch --wrap=true"
    )
    script = cluster.script(body, head=f"#SBATCH -N1\n#SBATCH --resilient={policy}")
    job, output = cluster.submit(script, "a", "--resilient", "", "b c")
    assert "going on without it" not in output
    assert cluster.registered(job)
    lines = cluster.ended(job).splitlines()
    assert "4 args: a --resilient  b c" in lines
    assert not any("SPANK_PARENT" in line for line in lines)
    assert 'policy {"restarts":4}' in lines
    nested = lines[-1].split()[-1]
    assert not cluster.registered(nested), "the option is not the job's own sbatch's"


def test_what_sbatch_says_and_its_exit_code_are_the_users(cluster: Cluster) -> None:
    script = cluster.script("exit 7")
    done = cluster.sbatch("--resilient", "-p", "nowhere", script)
    assert done.returncode == 1
    assert "invalid partition" in done.stderr
    done = cluster.sbatch("--resilient", "--wait", "-o", "/dev/null", script)
    assert done.returncode == 7


def broken(cluster: Cluster, how: str) -> str:
    """A plugstack line whose hpctl is out of order."""
    python = cluster.base / "python"
    python.unlink(missing_ok=True)
    if text := BROKEN[how]:
        python.write_text(text)
        python.chmod(0o755)
    return f"optional {cluster.plugin} python={python} timeout=1"


BROKEN = {
    "not there": "", "not a program": "garbage", "fails": "#!/bin/sh\nexit 1\n",
    "crashes": "#!/bin/sh\nkill -SEGV $$\n", "hangs": "#!/bin/sh\ntrap '' TERM\nsleep 300 & wait\n",
    "answers nothing": "#!/bin/sh\nexit 0\n",
    "answers half": '#!/bin/sh\nprintf sbatch >"$5/.hpctl-command"\n',
    "cannot import": f'#!/bin/sh\nPYTHONPATH=/nowhere exec {sys.executable} -S "$@"\n',
}  # fmt: skip


@pytest.mark.parametrize("how", BROKEN)
def test_hpctl_out_of_order_neither_fails_nor_delays_a_job(cluster: Cluster, how: str) -> None:
    cluster.plugstack(broken(cluster, how))
    script = cluster.script("srun --resilient echo hello; echo rc $?")
    begun = time.monotonic()
    job, output = cluster.submit("--resilient", script)
    assert time.monotonic() - begun < 1 + AT_ONCE_S
    assert output.count("going on without it") == 1
    assert not cluster.registered(job)
    begun = time.monotonic()
    text = cluster.ended(job)
    assert time.monotonic() - begun < 1 + 2 * AT_ONCE_S
    assert text.splitlines()[-2:] == ["hello", "rc 0"]
    assert text.count("going on without it") == 1


@pytest.mark.nightly
def test_hyperpods_own_option_is_left_to_it(cluster: Cluster) -> None:
    source, other = cluster.base / "auto.c", cluster.base / "auto.so"
    source.write_text(AUTO_RESUME)
    args = ["cc", "-shared", "-fPIC", f"-I{HEADERS}", "-o", str(other), str(source)]
    subprocess.run(args, check=True, timeout=60)
    cluster.plugstack(
        f"required {other}", f"optional {cluster.plugin} python={sys.executable} timeout=60"
    )  # fmt: skip
    script = cluster.script(
        "srun --auto-resume=1 echo theirs\nsrun --auto-resume=1 --resilient echo both"
    )
    job, output = cluster.submit("--resilient", script)
    assert "--auto-resume=1 is HyperPod's own" in output
    text = cluster.ended(job)
    assert [line for line in text.splitlines() if line in ("theirs", "both")] == ["theirs", "both"]
    assert "HyperPod's --auto-resume is asked for as well" in text


@pytest.mark.nightly
def test_a_resilient_step_gets_signals(cluster: Cluster) -> None:
    """srun has blocked nearly all of them when the plugin makes another program of it."""
    ready = cluster.base / "ready"
    (cluster.base / "rank.sh").write_text(
        f"trap 'echo saved; exit 0' USR1; touch {ready}; n=0;"
        " while [ $n -lt 200 ]; do sleep 0.1; n=$((n + 1)); done\n"
    )
    script = cluster.script(
        f"srun --resilient -n1 sh {cluster.base}/rank.sh & pid=$!\n"
        f"until [ -e {ready} ]; do sleep 0.1; done\nkill -USR1 $pid\nwait $pid; echo $?"
    )
    job, _ = cluster.submit(script)
    assert "saved" in cluster.ended(job)


@pytest.mark.nightly
def test_installing_it_keeps_what_plugstack_has(tmp_path) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "SLURM_ETC": str(etc),
        "HPCTL_SPANK": str(tmp_path / "lib/hpctl_spank.so"),
        "HPCTL_PYTHON": "/new/python",
    }
    line = f"optional {tmp_path}/lib/hpctl_spank.so python=/new/python\n"
    conf = etc / "plugstack.conf"

    def install() -> str:
        done = run_text(
            ["sh", str(ROOT / "lifecycle_scripts/install_spank.sh")], env=environment, check=True
        )
        return done.stdout

    assert "configless" in install()
    assert (tmp_path / "lib/hpctl_spank.so").exists()
    assert not conf.exists()
    (etc / "slurm.conf").touch()
    install()
    assert conf.read_text() == line
    conf.write_text("required auto_resume.so\noptional /old/hpctl_spank.so python=/old\n# end")
    conf.chmod(0o640)
    install()
    assert conf.read_text() == "required auto_resume.so\n# end\n" + line
    assert conf.stat().st_mode & 0o777 == 0o640
    assert "names it already" in install()
    assert sorted(path.name for path in etc.iterdir()) == ["plugstack.conf", "slurm.conf"]


def test_the_last_lines_of_a_failing_task_are_not_lost(cluster: Cluster) -> None:
    lines = cluster.base / "lines"
    lines.mkdir()
    assert count_lost(cluster.slurm, lines, runs=20)[0] == 0
