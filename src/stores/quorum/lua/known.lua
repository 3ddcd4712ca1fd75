-- What the caller knows, a line each: the marker of the node, empty unless the node was in service, 'maxTtlMs
-- fsync', and a channel.
local knownMarker, limits, channel = string.match(ARGV[1], '^(.-)\n(.-)\n(.*)$')
local marker
-- A proposed number may differ from the node's clock by this, in µs: a quarter of maxTtl.
local spread

-- Whether the node has the marker that the caller knows: then it needs no further look. A server that has
-- restarted may find that marker again in old data, but it no longer knows the script, and the caller of a
-- script that has to be loaded knows no marker.
local function isInService()
  if marker == nil then
    readTime()
    marker = redis.call('GET', prefix .. 'marker')
    spread = tonumber(string.match(limits, '^%d+')) * 250
  end
  return marker == knownMarker
end

local function isPlausible(number)
  return number <= MAX_TOKEN and math.abs(number - micros) <= spread
end
