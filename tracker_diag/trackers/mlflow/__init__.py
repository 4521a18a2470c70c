"""MLflow: write, read, listen, view."""
