"""The command-line tools: `shmap` (cli) and `shmap-opt` (opt)."""
