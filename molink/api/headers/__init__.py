"""What requests and answers carry beside their bodies."""
