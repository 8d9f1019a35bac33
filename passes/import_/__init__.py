"""Modules of other producers -> body form: what passes/export/ does, the other way round."""
