"""The `hpctl` program: its table of commands, and the commands that belong to no feature.

The room promises that `hpctl --help` answers without loading anything heavy, that every command
has the same exit codes, and that JSON and text of a command come from the same view.

`main` names every command with the module that holds it, under the headings of the help, and the
earlier names of commands; the module is imported when the command is called. The command of a
feature lies in the room of the feature (`hpctl/jobs/sbatch/command.py`). Here are:

- what shows everything: `status`, `top`, `nodes`, `recoveries`, `explain`, `events`, `audit`;
- what concerns the installation: `install`, `uninstall_steps`, `doctor`, `daemon_user`;
- `journal`, `failover` and `help_command`;
- `agent`, which puts the agent of a node together and runs it;
- `features`, the list of what the rooms of features add to these commands.

A command reads its options, gathers a world (`hpctl/engine/world_reader.py`), makes a view and
prints it through `hpctl/toolkit/output.py`. Adapters come from `hpctl/engine/adapters.py`.

Begin with `main.py` and `status.py`. A command that concerns recoveries changes nothing itself:
it appends a request, and the daemon acts. `install`, `uninstall` and `journal` act on this
machine.
"""
