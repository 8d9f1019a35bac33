"""Mistakes planted in the product one at a time: see README.md."""
