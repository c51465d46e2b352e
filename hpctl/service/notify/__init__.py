"""Notifications: which users are notified of what, through Apprise.

`decide` turns journal events into notices and `outbox` groups them into messages; both are pure.
`daemon` runs one thread that reads the journal and one for each sink; a sink gets each message at
least once. `sinks` sends by a separate process, so that a service that hangs costs nothing else.
`command` is `hpctl notify`.
"""
