"""Blobs over Flower: a SuperLink with TLS, registered keys, a resident process beside the rows of every site."""
