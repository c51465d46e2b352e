"""The HTTP endpoint, port 8470: reports of agents, reports of jobs, requests, alerts, metrics.

`process` is the daemon's side: it keeps the listening socket, starts the intake and answers it.
`child` is the process of the intake; `app` holds its routes, `server` the bounds on connections,
and `channel` the frames between the two. A report is acknowledged after the daemon has stored it.
"""
