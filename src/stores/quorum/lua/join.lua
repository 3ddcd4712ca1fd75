-- Tells a client the marker and the time of the node, and whether it is in service.
isKnown = false
return withMarker(string.format('%s %.0f %.0f', runId, recoveringFor / 1000, micros))
