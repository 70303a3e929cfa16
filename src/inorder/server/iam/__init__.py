"""Policies of access: kept and returned, not enforced, as the server knows no users."""
