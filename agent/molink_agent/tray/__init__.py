"""The tray icon: what this PC does, on its owner's desktop, with a pause button."""
