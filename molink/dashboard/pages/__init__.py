"""What the dashboard shows: lines of styled text made from the model. Pure, without a terminal."""
