"""The Graph: a typechecked per-device program; its text, and keys that are equal for equal
programs."""
