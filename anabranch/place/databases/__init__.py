"""Databases: two protocols, one file each. The only room that imports a database driver."""
