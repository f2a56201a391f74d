"""The life of a runner of workflow jobs in stories, for the real program and for a stand-in of it."""
