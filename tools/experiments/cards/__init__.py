"""What a graphics card will compute, proven without one."""
