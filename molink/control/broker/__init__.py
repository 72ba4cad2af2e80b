"""The MQTT broker of the control plane: embedded, Mosquitto, or an external one."""
