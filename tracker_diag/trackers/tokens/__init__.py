"""Token logs: tables, folders of them and dumps of tensors, read a few steps at a time.

What is wrong with a log is raised as SourceError. It names the file, its row group or line, and the column.
"""
