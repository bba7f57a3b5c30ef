"""What a row of the column ``label_digests`` holds, for who writes it and who reads it."""

KIND_BITS = 12
"""The lowest bits of a digest: the number of classes that the label is one of, without what is beyond. Labels of
different kinds are answers to different questions, and are not compared.
"""
