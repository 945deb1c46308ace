"""What tests share: scenarios and other data, the oracle, filesystems and servers that fail, ways to run a query."""
