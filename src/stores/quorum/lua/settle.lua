-- Puts a node into service that nobody has used: the client has seen that no node of the quorum has data.
-- ARGV[4] is the marker that the client has seen. Another loss of data has another one.
if marker == ARGV[4] then
  marker = string.gsub(marker, ' new%d+$', ' 0')
  redis.call('SET', prefix .. 'marker', marker)
end
isKnown = false
return withMarker('yes')
