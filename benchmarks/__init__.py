"""What developers of profl measure: ``python -m benchmarks NAME``. Not in the wheel."""
