"""Programs that parts start by their path. They import nothing of hpctl."""
