-- taken() of ../../records-rule.ts. ARGV: units, limit, period in µs, burst. The key has the text
-- '<format>:<since> <used> <full at>', and expires soon after the meter is full. All numbers are whole, and so are
-- all products, below 2^53.
local FORMAT = '1'
local MAX_SAFE_INTEGER = 2 ^ 53 - 1
local units, limit, per, burst =
  tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- Like GET, but it fails on a replica, whose meters may be old.
local stored = redis.call('GETEX', KEYS[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local since, used = now, 0
if stored then
  local format, storedSince, storedUsed, fullAt = string.match(stored, '^(%d+):(%d+) (%d+) (%d+)$')
  if not format then error('HOLDFAST STRANGER', 0) end
  if format ~= FORMAT then error('HOLDFAST FORMAT ' .. format, 0) end
  if tonumber(fullAt) > now then since, used = tonumber(storedSince), tonumber(storedUsed) end
end
-- The clock was set back: without this, the meter would stay empty until the clock is there again.
since = math.min(since, now)

local periods = math.floor((now - since) / per)
since, used = since + periods * per, used - periods * limit
local returned = math.floor((now - since) * limit / per)
-- Under other numbers, more than today's burst may have been taken.
used = math.min(used, burst + returned)
if used * per <= (now - since) * limit then since, used, returned = now, 0, 0 end

local function waitFor(wanted)
  return math.max(0, math.ceil((wanted - burst) * per / limit) - (now - since))
end
local retryAfter = waitFor(used + units)
if retryAfter == 0 then used = used + units end
local fullIn = waitFor(used + burst)

if used == 0 then
  if stored then redis.call('DEL', KEYS[1]) end
else
  local fullAt = math.min(now + fullIn, MAX_SAFE_INTEGER)
  local meter = string.format('%s:%.0f %.0f %.0f', FORMAT, since, used, fullAt)
  -- Most refused takes change nothing. The server counts expiry in ms of a clock that may lag behind by one.
  if meter ~= stored then
    redis.call('SET', KEYS[1], meter, 'PX', string.format('%.0f', math.ceil(fullIn / 1000) + 1))
  end
end
return string.format('%.0f %.0f %.0f', burst - used + returned, retryAfter, fullIn)
