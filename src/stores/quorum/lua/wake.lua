-- The channels of the processes that wait for a name, and the name, by the key of its record.
local function waitingOf(recordKey)
  local name = string.sub(recordKey, #prefix + 6)
  return prefix .. 'wait:' .. name, name
end

-- Wakes the process that has waited longest and still listens.
local function wakeNext(recordKey)
  local key, name = waitingOf(recordKey)
  for _ = 1, MOST_WAKES do
    local channel = redis.call('LPOP', key)
    if not channel then return false end
    if redis.call('PUBLISH', channel, name) > 0 then return true end
  end
  return false
end
