"""Saved programs: files that hold a program, its signature and what made them.

load              what a file holds: a Portable program, or an Executable
read_compiled     a compiled program whose devices need not be here
write_portable    the bytes of a file that holds a Portable program
write_executable  the bytes of a file that holds an Executable
"""

from .executables import read_compiled, write_executable
from .loading import load
from .portables import write_portable

__all__ = ["load", "read_compiled", "write_executable", "write_portable"]
