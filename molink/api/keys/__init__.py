"""Keys of the user's API: who has one, what it may ask, how much it has asked."""
