"""What a user would pick instead, each made as fast as we know how."""
