"""Tools that check ops: property tests and the references they compare with."""
