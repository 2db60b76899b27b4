"""Delta tables of any content: commits, the facts in their log, and their files. The lake's topics are made of these.

`output` is a table with the results of a pipeline. Modules here import nothing of a lake but its storage and errors.
"""
