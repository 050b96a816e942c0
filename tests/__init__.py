"""Laws first: one table of methods, one oracle, one file per law or room."""
