"""Saved programs: files that hold a program, its signature and what made them.

load              what a file holds: a Portable program, or an Executable
write_portable    the bytes of a file that holds a Portable program
write_executable  the bytes of a file that holds an Executable
write_compiled    the bytes of one that holds a CompiledForTarget
write_file        writes these bytes
"""

from .executables import write_compiled, write_executable
from .loading import load
from .portables import write_portable
from .writing import write_file

__all__ = ["load", "write_compiled", "write_executable", "write_file", "write_portable"]
