-- The marker tells a node that has all its data from one that has lost some. It is the text
--   'FORMAT runId maxTtlMs fsync since'
-- where runId names the server process that was last examined ('unexamined': the server has restarted, and nobody
-- has read its settings yet), fsync is 'always' if each write was on the
-- disk before its reply, and since is 0, or 'lost' or 'new' and the time in µs at which data, or any trace of
-- use, were found to be missing: the node then stays out of the vote for maxTtl. A node without a marker that has
-- counters has lost its data and was given leases again by renewals, which leave the marker alone.
--
-- The first three arguments describe the caller: the marker that it knows, empty unless the node was in service;
-- its maxTtl in ms; 'fsync channel'.
readTime()
local marker = redis.call('GET', prefix .. 'marker')
local maxTtl = tonumber(ARGV[2])
local fsync, channel = string.match(ARGV[3], '^(%a+) (.*)$')
-- Whether the node has the marker that the caller knows: then it needs no further look.
local isKnown = marker == ARGV[1]
-- How long the node stays out of the vote, in µs.
local recoveringFor = 0
local runId = ''

local function hasCounters()
  local keys = {}
  for bucket = 0, BUCKETS - 1 do keys[bucket + 1] = prefix .. 'last:' .. bucket end
  for _, stored in ipairs(redis.call('MGET', unpack(keys))) do
    if stored then return true end
  end
  return false
end

-- Before version 7, a snapshot may hold the scripts, and a server that has restarted with it knows them.
local forgetsScripts = true

if not isKnown then
  local info = redis.call('INFO', 'server')
  runId = string.match(info, '\nrun_id:(%w+)')
  forgetsScripts = tonumber(string.match(info, '\nredis_version:(%d+)')) >= 7
  local state, since, longestTtl = (marker or hasCounters()) and 'lost' or 'new', micros, maxTtl
  if marker then
    local format, rest = string.match(marker, '^(%d+) (.*)$')
    if format and tonumber(format) ~= FORMAT then return redis.error_reply('HOLDFAST FORMAT ' .. format) end
    local seenRunId, seenTtl, seenFsync, seenState, seenSince =
      string.match(rest or '', '^(%w+) (%d+) (%a+) (%a*)(%d+)$')
    if not seenRunId then return redis.error_reply('HOLDFAST STRANGER') end
    longestTtl = math.max(longestTtl, seenTtl)
    if seenRunId == runId then
      state, since = seenState, math.min(tonumber(seenSince), micros)
      if fsync == 'unknown' or fsync == 'unread' then fsync = seenFsync end
    elseif seenSince == '0' and seenFsync == 'always' then
      -- The caller has yet to read the settings with which the server has restarted. Until somebody does, the
      -- marker is one that no caller knows: the script is loaded now, and would believe those who know it.
      if fsync == 'unread' then
        local unknown = string.format('%d unexamined %.0f always 0', FORMAT, longestTtl)
        if marker ~= unknown then redis.call('SET', prefix .. 'marker', unknown) end
        return redis.error_reply('HOLDFAST RESTARTED')
      end
      local replication = fsync == 'always' and redis.call('INFO', 'replication')
      if replication and string.find(replication, '\nsecond_repl_offset:-1', 1, true) then
        -- The same server with all its data: a replica that was promoted would have a second offset.
        since = 0
      end
    end
  end
  if fsync == 'unread' then fsync = 'unknown' end
  if since > 0 and micros - since >= longestTtl * 1000 then since = 0 end
  if since > 0 then recoveringFor = since + longestTtl * 1000 - micros else state = '' end
  local present =
    string.format('%d %s %.0f %s %s%.0f', FORMAT, runId, longestTtl, fsync, state, since)
  if present ~= marker then
    redis.call('SET', prefix .. 'marker', present)
    marker = present
  end
end

-- A reply that begins with '@' tells the client the marker; with '#', a marker that it must not send back.
local function withMarker(reply)
  if isKnown then return reply end
  return (forgetsScripts and '@' or '#') .. marker .. '\n' .. reply
end
