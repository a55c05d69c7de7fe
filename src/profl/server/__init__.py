"""The server: who takes part in a round, and how their models become one."""
