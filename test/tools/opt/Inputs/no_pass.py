"""Defines no pass, for tests of shmap-opt's --load-pass."""
