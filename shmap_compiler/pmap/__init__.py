"""The front end `pmap`: one row of the arguments for each device."""
