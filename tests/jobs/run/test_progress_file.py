"""`hpctl checkpoint progress`: the file reports progress in a Python without hpctl."""

import ast
import socket
import subprocess
import sys
from pathlib import Path


def test_a_python_without_hpctl_reports_its_progress(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hpctl", "checkpoint", "progress"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    ast.parse(printed, feature_version=(3, 8))
    (tmp_path / "hpctl_progress.py").write_text(printed)
    program = tmp_path / "train.py"
    program.write_text(
        "import sys\nimport hpctl_progress as progress\n"
        "progress.step(12, loss=0.5)\n"
        "with progress.saving():\n    progress.checkpoint('/ck/step-12', 12)\n"
        "assert progress.dropped() == 0\n"
        "assert not any(name.partition('.')[0] == 'hpctl' for name in sys.modules)\n"
    )
    reader = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with reader:
        reader.bind(str(tmp_path / "progress"))
        reader.settimeout(30)
        # -I and -S: neither this checkout nor any site-packages is on the path.
        run = "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2])"
        command = [sys.executable, "-I", "-S", "-c", run, str(tmp_path), str(program)]
        subprocess.run(command, check=True, env={"HPCTL_PROGRESS": f"unix:{tmp_path}/progress"})
        said = [reader.recv(2000).decode() for _ in range(4)]
    starts = ["step=12 loss=0.5", "saving=1", "checkpoint=/ck/step-12 step=12", "saving=0"]
    assert [line.startswith(start) for line, start in zip(said, starts, strict=True)] == [True] * 4
