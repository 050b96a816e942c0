"""The paper's studies: data, networks, training, records and the report.

`neuralsort --help` is the way in; it needs the extra `experiments`.
"""
