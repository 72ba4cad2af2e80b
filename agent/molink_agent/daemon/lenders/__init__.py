"""What lends memory of this PC beside the agent: its main memory, and a card's."""
