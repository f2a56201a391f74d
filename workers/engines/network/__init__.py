"""Network access of a job: the egress proxy and its rules, and fake sockets."""
