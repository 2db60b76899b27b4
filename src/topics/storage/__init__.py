"""What is on disk: the file system seam, the data directory, and the codecs of the files in it."""
