"""What the parts of hpctl send to one another: reports, job reports, credentials, readiness."""
