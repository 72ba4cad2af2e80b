"""The MQTT broker of the control plane: embedded, or an external one."""
