"""Pure data about programs, which the stages and what describes or stores programs share."""
