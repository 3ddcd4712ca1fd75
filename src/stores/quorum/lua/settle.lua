-- Puts a node into service that nobody has used: the client has seen that no node of the quorum has data.
-- KEYS[1] is the marker; ARGV[3] is the marker that the client has seen. Another loss of data has another one.
if marker == ARGV[3] then
  marker = string.gsub(marker, ' %d+$', ' 0')
  redis.call('SET', KEYS[1], marker)
end
isKnown = false
return withMarker('yes')
