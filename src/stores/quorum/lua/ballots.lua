-- The requests of one turn of the event loop. ARGV[3] is the caller's channel. Each request is three
-- arguments, the id of its ballot, the name, and one of
--   'claim number ttl seq atLeast register holder' (register: 0, 1 if busy, 2 always)
--   'raise number'
--   'release number unused wakes' (number: of the grant, or -1; unused: 1 if atLeast does not close the
--     name; wakes: 1 if a process that waits is told)
--   'pass' (the caller was woken and does not want the name)
-- and four keys: the marker, the record, the counter, the list of waiting channels.
local replies = {}

local function register(key, ttl)
  local channel = ARGV[3]
  if not redis.call('LPOS', key, channel) then redis.call('RPUSH', key, channel) end
  if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, math.ceil(ttl)) end
end

local function claim(key, id, request)
  local number, ttl, seq, atLeast, registers, holder =
    string.match(request, '^claim (%S+) (%S+) (%S+) (%S+) (%d) (.*)$')
  number, ttl, seq, atLeast = tonumber(number), tonumber(ttl), tonumber(seq), tonumber(atLeast)
  if recoveringFor > 0 then
    return string.format('recovering %.0f %.0f', recoveringFor / 1000, micros)
  end
  local highest = readLast(KEYS[key + 2])
  if not (number > highest and math.abs(number - micros) <= spread) then
    number = math.max(highest + 1, micros)
  end
  if number > MAX_TOKEN then return '!HOLDFAST TOKENS' end
  local record = {
    FORMAT, id, number, highest, micros + ttl * 1000, seq, ttl, micros,
    atLeast > 0 and micros + atLeast * 1000 or 0, holder,
  }
  local isFree =
    redis.call('SET', KEYS[key + 1], packRecord(record), 'NX', 'PXAT', keptUntil(record))
  if not isFree then
    local other = readRecord(KEYS[key + 1])
    if not other then
      saveRecord(KEYS[key + 1], record)
    elseif isHeldBy(other, id) then
      if seq >= other[SEQ] then
        other[SEQ] = seq
        other[EXPIRY] = math.max(other[EXPIRY], micros + ttl * 1000)
        saveRecord(KEYS[key + 1], other)
      end
      return string.format('recorded %.0f %.0f', other[NUMBER], micros)
    else
      if registers ~= '0' then register(KEYS[key + 3], ttl) end
      local freeIn = math.max(other[EXPIRY], other[CLOSED]) - micros
      return string.format('busy %.0f %.3f %s %s', micros, freeIn / 1000, shortId(other[ID]), other[HOLDER])
    end
  end
  saveLast(KEYS[key + 2], number, number)
  if registers == '2' then register(KEYS[key + 3], ttl) end
  return string.format('recorded %.0f %.0f', number, micros)
end

local function raise(key, id, request)
  if recoveringFor > 0 then return 'no' end
  local number = tonumber(string.match(request, '^raise (%S+)$'))
  local record = readRecord(KEYS[key + 1])
  if not isHeldBy(record, id) then return 'no' end
  if number == record[NUMBER] then return 'yes' end
  local isPlausible = number >= micros - spread
    and number <= math.max(micros, record[NUMBER]) + MOST_AHEAD
  if number < record[NUMBER] or not isPlausible then return 'no' end
  record[NUMBER] = number
  saveRecord(KEYS[key + 1], record)
  local highest, claimed = readLast(KEYS[key + 2])
  saveLast(KEYS[key + 2], math.max(highest, number), math.max(claimed, number))
  return 'yes'
end

local function release(key, id, name, request)
  local number, unused, wakes = string.match(request, '^release (%S+) (%d) (%d)$')
  number = tonumber(number)
  local highest, claimed = readLast(KEYS[key + 2])
  -- A renewal of the grant that arrives later would fill it in again.
  if claimed <= number then saveLast(KEYS[key + 2], math.max(highest, number + 1), number + 1) end
  local record = readRecord(KEYS[key + 1])
  if not record or record[ID] ~= id then return 'absent' end
  local hasExpired = record[EXPIRY] <= micros
  if record[CLOSED] > micros and unused == '0' then
    if not hasExpired then
      record[EXPIRY] = micros
      saveRecord(KEYS[key + 1], record)
    end
    return hasExpired and 'absent' or 'released'
  end
  redis.call('DEL', KEYS[key + 1])
  local isAwaited = wakes == '1' and wakeNext(KEYS[key + 3], name)
  if hasExpired then return 'absent' end
  return isAwaited and 'awaited' or 'released'
end

local function answer(key, id, name, request)
  if string.sub(request, 1, 7) == 'release' then
    return release(key, id, name, request)
  elseif request == 'pass' then
    if not readRecord(KEYS[key + 1]) then wakeNext(KEYS[key + 3], name) end
    return 'yes'
  elseif string.sub(request, 1, 5) == 'raise' then
    return raise(key, id, request)
  end
  return claim(key, id, request)
end

for i = 1, (#ARGV - 3) / 3 do
  local arg = 1 + 3 * i
  -- A request that fails does not fail the others.
  local ok, reply = pcall(answer, 4 * i - 3, ARGV[arg], ARGV[arg + 1], ARGV[arg + 2])
  replies[i] = ok and reply or '!' .. messageOf(reply)
end
replies[1] = withMarker(replies[1])
return replies[2] and replies or replies[1]
