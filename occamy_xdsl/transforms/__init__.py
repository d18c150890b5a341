"""Passes from dialect to dialect and within `dnn`: one pass a file, the file named as the pass."""
