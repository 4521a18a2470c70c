"""TensorBoard: write, read, listen."""
