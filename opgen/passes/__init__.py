"""Passes: a module with one public function from IR to IR."""
