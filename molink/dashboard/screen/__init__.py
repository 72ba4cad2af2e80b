"""The terminal application: Textual widgets that draw the pages and take keys."""
