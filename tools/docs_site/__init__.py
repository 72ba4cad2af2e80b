"""What makes the site of the documents: mkdocs' hooks, and the pages that come from the code."""
