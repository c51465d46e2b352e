"""`hpctl report`: a period of the fleet, as text, JSON or one page of HTML.

`decide` computes failures, lost and saved GPU-hours from the journal and is pure; `html` renders
the page; `command` is the command.
"""
