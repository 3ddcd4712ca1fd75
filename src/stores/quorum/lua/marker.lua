-- The marker tells a node that has all its data from one that has lost some. It is the text
--   'FORMAT runId maxTtlMs fsync since'
-- where runId names the server process that was last examined, fsync is 'always' if each write was on the
-- disk before its reply, and since is 0, or the time in µs at which data were found to be missing: the node
-- then stays out of the vote for maxTtl.
--
-- ARGV[1] is the marker as the client last saw it, if the node was in service. A request that finds the
-- same marker needs no further look. A server that has restarted may find it again in old data, but does
-- not know the script any more, and a script that has to be loaded has an empty ARGV[1].
-- ARGV[2] is 'maxTtlMs fsync' as the client knows it; its fsync may be 'unknown'.
--
-- KEYS[1] is the marker.
local marker = redis.call('GET', KEYS[1])
local isKnown = marker == ARGV[1]
-- How long the node stays out of the vote, in µs.
local recoveringFor = 0
local runId = ''
-- A number that a client proposes may differ from the node's clock by this, in µs: a quarter of maxTtl.
local spread = tonumber(string.match(ARGV[2], '^%d+')) * 250

if not isKnown then
  local maxTtl, fsync = string.match(ARGV[2], '^(%d+) (%a+)$')
  local info = redis.call('INFO', 'server')
  runId = string.match(info, '\nrun_id:(%w+)')
  local since, seenMaxTtl = micros, tonumber(maxTtl)
  if marker then
    local format, seenRunId, seenTtl, seenFsync, seenSince =
      string.match(marker, '^(%d+) (%w+) (%d+) (%a+) (%d+)$')
    if tonumber(format) ~= FORMAT then return redis.error_reply('HOLDFAST FORMAT ' .. tostring(format)) end
    seenMaxTtl = math.max(seenMaxTtl, seenTtl)
    if seenRunId == runId then
      since = math.min(tonumber(seenSince), micros)
      if fsync == 'unknown' then fsync = seenFsync end
    elseif seenSince == '0' and seenFsync == 'always' and fsync == 'always'
      and string.find(redis.call('INFO', 'replication'), '\nsecond_repl_offset:-1', 1, true) then
      -- The same server with all its data: a replica that was promoted would have a second offset.
      since = 0
    end
  end
  if since > 0 and micros - since >= seenMaxTtl * 1000 then since = 0 end
  if since > 0 then recoveringFor = since + seenMaxTtl * 1000 - micros end
  local present = string.format('%d %s %.0f %s %.0f', FORMAT, runId, seenMaxTtl, fsync, since)
  if present ~= marker then
    redis.call('SET', KEYS[1], present)
    marker = present
  end
end

-- A reply that begins with '@' tells the client the marker.
local function withMarker(reply)
  return isKnown and reply or '@' .. marker .. '\n' .. reply
end
