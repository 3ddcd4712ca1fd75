-- A record is a hash under one key, which expires with it: format, value, version, token and keep, its
-- time in whole ms. Tokens have 20 digits, so that they compare as text: Lua's numbers end at 2^53.
local FORMAT = '1'
local NO_TOKEN = string.rep('0', 20)

-- Version and token of the record at KEYS[1]; nil if there is none.
local function openRecord()
  -- Deletes nothing, and fails on a replica, whose records may be old.
  redis.call('HDEL', KEYS[1], '-')
  local format, version, token, keep =
    unpack(redis.call('HMGET', KEYS[1], 'format', 'version', 'token', 'keep'))
  local left = redis.call('PTTL', KEYS[1])
  if left == -2 then return nil end
  if not format then error('HOLDFAST STRANGER', 0) end
  if format ~= FORMAT then error('HOLDFAST FORMAT ' .. format, 0) end
  -- The clock was set back: the record's time counts from now.
  if left < 0 or left > tonumber(keep) then redis.call('PEXPIRE', KEYS[1], keep) end
  return { version = version, token = token }
end

-- A record as JSON; empty if there is none.
local function recordReply(record)
  if not record then return '' end
  record.value = redis.call('HGET', KEYS[1], 'value')
  return cjson.encode(record)
end
