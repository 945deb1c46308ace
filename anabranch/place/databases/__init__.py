"""Databases: one protocol, one file each. The only room that imports a database driver."""
