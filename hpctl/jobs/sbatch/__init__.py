"""`hpctl sbatch`: sbatch, with a job that resumes.

`options` reads hpctl's and sbatch's options, `submit` decides from values only what is submitted,
`context` gathers what the submission depends on, and `preamble` writes the shell lines of
`preamble.sh` into the script. Those lines run at every start of the job, find the checkpoint, and
never fail a job because hpctl cannot run. `command` is the command.
"""
