"""Pages of the dashboard: lines of styled text made from the model. Pure, without a terminal."""
