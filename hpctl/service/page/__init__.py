"""The read-only web page: a separate process that reads as the commands do (docs/adr/0066).

`process` is how the daemon starts it, and `serve` is that process. `app` serves GET requests to
those whom `access` allows, `follow` keeps the newest world, `render` makes the parts that changed,
with `node_map` and `training`. Texts and numbers come from the views of `hpctl.engine`.
"""
