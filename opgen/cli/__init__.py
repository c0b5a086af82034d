"""The commands of `opgen` that are more than a call of the compiler, one module each."""
