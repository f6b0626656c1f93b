"""Policies and their versions: files on disk, names, leases, retention, export."""
