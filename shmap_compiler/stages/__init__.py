"""The handles that a user holds after tracing: Lowered, Executable, Portable, and what compiles
them."""
