"""Jobs that resume: submission, supervision inside the job, and recovery by the daemon.

The room promises that a job whose node or process fails starts again from its last complete
checkpoint on healthy nodes, or is held with a reason that its owner can read. A daemon that is
stopped neither ends nor holds a job.

Three places run this code:

- In the user's shell: `sbatch` adds the preamble and the registration to a script; `resume_command`
  has a job continue from an earlier checkpoint; `hangs`, `logs` and `policy_command` are commands
  for looking and rehearsing (`rehearsal`); `spank` answers the SPANK plugin.
- In the job, as its owner: `run` supervises steps, and reads why a script without it failed
  (`run/script_end.py`); `elastic` restarts ranks inside one step; `logs` judges log lines; `crash`
  classifies how a program ended; `job_processes` reads the processes of the job on one node.
- In the daemon: `plan` names the jobs that a faulty node hit (`plan_hits`) and the runs that failed
  without a node fault (`run_cases`, behind `run_gates`); `facts` and `advance` move each open
  recovery; `hangs` watches jobs without a supervisor; `report_intake` takes the reports of
  supervisors. `kind` hands these to the engine.

`explain` and `other_actors` are what `hpctl explain` and `hpctl doctor` report on jobs.

`restart` chooses how the ranks of each kind of job are restarted. `decide` joins them: one pure
function from a trouble, a policy and the history to an action. The supervisor, the daemon and
`hpctl policy test` all call it. `advance`, `plan`, `plan_hits`, `restart`, `run_cases` and
`run_gates` are pure as well. The record and its transition table are in
`hpctl.vocabulary.get_open_job_recovery`, run policies in `hpctl.vocabulary.run_policy`.

Begin with `decide.py`, then `advance.py` for the daemon and `run/supervise.py` for the job. The
order of steps that Slurm survives is in `hpctl/slurm/rules.py`. Daemon-side code here sends no
order: the engine executes the steps. What a job reports of itself decides about that job only.
"""
