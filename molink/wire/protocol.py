"""Number of the protocol that this build speaks, for those who need nothing else of it."""

PROTOCOL_VERSION = 12
"""Version that is raised with every change of the schema, of frames or of the control plane, that
builds before it would not understand."""

PROTOCOL_MIN = PROTOCOL_VERSION
"""The oldest number that this build speaks, too. Frames are written in PROTOCOL_VERSION, which an
older build does not read: below it only once all of a ring write its oldest member's number."""
