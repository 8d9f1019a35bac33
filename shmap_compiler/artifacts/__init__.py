"""Saved programs: files with a program, its signature, and the versions that wrote them.

write_portable    the bytes of a file that holds a PortableProgram
write_executable  the bytes of a file that holds a LoadedProgram
write_compiled    the bytes of one that holds a program compiled elsewhere
write_file        writes these bytes
is_same_in_file   whether a structure is one that came from a file
argument_problems, result_problems  what a file cannot hold of a signature
"""

from shmap_compiler.artifacts.executables import write_compiled, write_executable
from shmap_compiler.artifacts.portables import write_portable
from shmap_compiler.artifacts.signatures import argument_problems, result_problems
from shmap_compiler.artifacts.structures import is_same_in_file
from shmap_compiler.artifacts.writing import write_file

__all__ = [
    "argument_problems",
    "is_same_in_file",
    "result_problems",
    "write_compiled",
    "write_executable",
    "write_file",
    "write_portable",
]
