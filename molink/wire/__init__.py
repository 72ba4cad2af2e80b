"""Wire format of the network: frames of a fixed schema, and the raw buffers behind them."""
