"""Identity tokens of workflow jobs, and the documents with which outsiders verify them."""
