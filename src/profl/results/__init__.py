"""What a run leaves behind: the record, its figures, tables and plots."""
