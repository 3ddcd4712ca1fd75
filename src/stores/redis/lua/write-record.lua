-- writtenRecord() of ../../records-rule.ts. ARGV: value, version, keep in ms, the kind of the condition, and
-- the version or token that it names.
local value, version, keep, kind, expected = unpack(ARGV)
local record = openRecord()
if record and record.version == version then
  -- Written once more, so that a WAIT on this connection covers it.
  redis.call('HSET', KEYS[1], 'version', version)
  return 'written'
end

local token = record and record.token or NO_TOKEN
local holds
if kind == 'absent' then holds = not record
elseif kind == 'version' then holds = record and record.version == expected
else
  holds = token <= expected
  token = expected
end
if not holds then return recordReply(record) end

redis.call(
  'HSET', KEYS[1], 'format', FORMAT, 'value', value, 'version', version, 'token', token, 'keep', keep
)
redis.call('PEXPIRE', KEYS[1], keep)
return 'written'
