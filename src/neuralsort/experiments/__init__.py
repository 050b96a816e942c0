"""The paper's studies: data, networks, training, records and the report. Uses the public API only.

`neuralsort --help` is the way in; it needs the extra `experiments`.
"""
