"""Token logs: tables, folders of them and dumps of tensors, read a few steps at a time."""
