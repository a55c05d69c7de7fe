"""Tables and figures of the ProFL paper and of the field's papers, run by ``profl reproduce``; ``items`` lists them."""
