"""The round loop: the contract of algorithms and engines, ``fit``, and the run that comes out."""
