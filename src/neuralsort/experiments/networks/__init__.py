"""The networks of the studies, and the methods that order what they read."""
