"""Identity tokens of workflow jobs (OpenID Connect): keys, the tokens that request them, and their claims."""
