"""Engines run a program on every site, carry its messages and count the bytes."""

from kinfolk.engines.inprocess import InProcess

__all__ = ["InProcess"]
