"""From lines of results to tables, figures and pages. Nothing here trains."""
