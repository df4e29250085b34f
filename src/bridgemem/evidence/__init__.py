"""What the memory says about a relation: tokens, examples, counts, reader, mixture, gate."""
