-- The key with the channels of the processes that wait for a name, a line each, by the key of its record; and the
-- name.
local function waitingOf(recordKey)
  local name = string.sub(recordKey, #prefix + 6)
  return prefix .. 'wait:' .. name, name
end

-- Wakes the process that has waited longest and still listens.
local function wakeNext(recordKey)
  local key, name = waitingOf(recordKey)
  local channels, isAwake = redis.call('GET', key), false
  if not channels then return false end
  for _ = 1, MOST_WAKES do
    local channel, others = string.match(channels, '^(.-)\n(.*)$')
    channels, isAwake = others, redis.call('PUBLISH', channel, name) > 0
    if isAwake or others == '' then break end
  end
  if channels == '' then redis.call('DEL', key) else redis.call('SET', key, channels, 'KEEPTTL') end
  return isAwake
end
