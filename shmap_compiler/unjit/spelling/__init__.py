"""How operations of StableHLO are spelled in Python: one table, from the name to the spelling.

A row is a function from an operation, with its operands spelled already, to an expression. It
returns None for an operation that it cannot spell exactly; that, and what has no row, is embedded
as StableHLO.
"""
