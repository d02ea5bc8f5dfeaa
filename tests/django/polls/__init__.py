"""The polls of the site."""
