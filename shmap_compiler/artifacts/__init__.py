"""Saved programs: files that hold a program, its signature and what made them.

load              what a file holds: a Portable program, or an Executable
write_portable    the bytes of a file that holds a Portable program
write_executable  the bytes of a file that holds an Executable
write_compiled    the bytes of one that holds a CompiledForTarget
write_file        writes these bytes
"""

from shmap_compiler.artifacts.executables import write_compiled, write_executable
from shmap_compiler.artifacts.portables import write_portable
from shmap_compiler.artifacts.writing import write_file
from shmap_compiler.stages.loading import load

__all__ = ["load", "write_compiled", "write_executable", "write_file", "write_portable"]
