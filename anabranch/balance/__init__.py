"""How rows are spread over slots."""
