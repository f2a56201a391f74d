"""The agent endpoints of runners: the channel, the claim by long poll, and the socket of one job."""
