"""Notices as webhooks take them, and how they are sent."""
