"""Every run of the report: which there are, and doing them, here or on other machines."""
