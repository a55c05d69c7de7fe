"""Problems: what is learned, how the data react, and the answers known in advance."""
