"""All of them."""

from tests.golden import (
    values_agent,
    values_api,
    values_cli,
    values_cluster,
    values_control,
    values_files,
    values_joining,
    values_mqtt,
    values_placement,
    values_rings,
    values_told,
    values_transport,
    values_weights,
    values_wire,
)

CODECS = (
    *values_wire.CODECS,
    *values_transport.CODECS,
    *values_control.CODECS,
    *values_told.CODECS,
    *values_joining.CODECS,
    *values_mqtt.CODECS,
    *values_rings.CODECS,
    *values_cluster.CODECS,
    *values_placement.CODECS,
    *values_agent.CODECS,
    *values_weights.CODECS,
    *values_api.CODECS,
    *values_cli.CODECS,
    *values_files.CODECS,
)
