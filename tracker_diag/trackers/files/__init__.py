"""Files of finished runs, and a writer of plain ones.

Each reader takes a file, the source as people know it, and a `Progress`. It raises MissingExtra where its library is
not installed, and SourceError in one line: "file:line: what is wrong". No metrics at all are wrong too.
"""
