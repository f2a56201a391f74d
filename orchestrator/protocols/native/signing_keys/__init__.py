"""The public keys of signatures on evidence: `/v1/keys`."""
