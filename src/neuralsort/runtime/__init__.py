"""What the programs of this project share: whole files, progress, facts of the machine, settings.

It imports no framework: a program may ask for settings before it loads one.
"""
