"""The engine to read and to debug with: one step after the other, each of its stages watched."""
