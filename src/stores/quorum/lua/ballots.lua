-- The rest of the requests, from the first one that usual.lua did not serve.

local function register(recordKey, ttl)
  local key = waitingOf(recordKey)
  local channels = redis.call('GET', key) or ''
  if not string.find('\n' .. channels, '\n' .. channel .. '\n', 1, true) then channels = channels .. channel .. '\n' end
  redis.call('SET', key, channels, 'PX', math.ceil(math.max(ttl, redis.call('PTTL', key))))
end

local function claim(recordKey, counterKey, request)
  local registers, number, id, atLeast, ttl, seq, holder =
    string.match(request, '^.(%d) %d+ (%d+) (%S+) (%S+) (%S+) (%d+) (.*)$')
  number, ttl, seq, atLeast = tonumber(number), tonumber(ttl), tonumber(seq), tonumber(atLeast)
  if recoveringFor > 0 then return string.format('recovering %.0f %s', recoveringFor / 1000, moment) end
  local highest = readLast(counterKey)
  if not (number > highest and isPlausible(number)) then number = math.max(highest + 1, micros) end
  if number > MAX_TOKEN then return '!HOLDFAST LAST TOKEN' end
  local other, over = readRecord(recordKey)
  if over == id then return string.format('busy %s 0 %s ', moment, shortId(id)) end
  if isHeldBy(other, id) then
    if seq >= other.seq then
      other.seq = seq
      local expiry = micros + ttl * 1000
      if expiry > other.expiry then other.expiry, other.ttl = expiry, ttl end
      saveRecord(recordKey, other)
    end
    return string.format('recorded %.0f %s', other.number, moment)
  end
  if other then
    -- Without this, it would count from now at every claim.
    if other.isSetBack then saveRecord(recordKey, other) end
    if registers ~= '0' then register(recordKey, ttl) end
    local freeIn = math.max(other.expiry, other.closed) - micros
    return string.format('busy %s %.3f %s %s', moment, freeIn / 1000, shortId(other.id), other.holder)
  end
  saveRecord(recordKey, {
    number = number, id = id, closed = atLeast > 0 and micros + atLeast * 1000 or 0, ttl = ttl, seq = seq,
    holder = holder, base = highest, since = micros, expiry = micros + ttl * 1000,
  })
  saveLast(counterKey, number, number)
  if registers == '2' then register(recordKey, ttl) end
  return string.format('recorded %.0f %s', number, moment)
end

local function raise(recordKey, counterKey, request)
  if recoveringFor > 0 then return 'no' end
  local id, number = string.match(request, '^raise (%S+) (%S+)$')
  number = tonumber(number)
  local record = readRecord(recordKey)
  if not isHeldBy(record, id) then return 'no' end
  if number == record.number then return 'yes' end
  local isInTime = number >= micros - maxTtl * 250
    and number <= math.max(micros, record.number) + MOST_AHEAD and number <= MAX_TOKEN
  if number < record.number or not isInTime then return 'no' end
  record.number = number
  saveRecord(recordKey, record)
  local highest, claimed = readLast(counterKey)
  saveLast(counterKey, math.max(highest, number), math.max(claimed, number))
  return 'yes'
end

-- Deletes the record, or, if the ballot's claim may arrive later, notes that the ballot is over.
local function drop(recordKey, id, keptOut)
  if keptOut == '0' then redis.call('DEL', recordKey)
  else redis.call('SET', recordKey, 'over ' .. id, 'PX', keptOut) end
end

local function release(recordKey, counterKey, request)
  local number, id, unused, wakes, keptOut = string.match(request, '^~(%S+) (%S+) (%d) (%d) (%d+)$')
  if not number then
    number, id = string.match(request, '^%-%d+ (%d+) (%S+) 0 $')
    unused, wakes, keptOut = '0', '1', '0'
  end
  number = tonumber(number)
  writeNothing()
  local highest, claimed = readLast(counterKey)
  -- A renewal of the grant that arrives later would fill it in again.
  if claimed <= number then saveLast(counterKey, math.max(highest, number + 1), number + 1) end
  local record = readRecord(recordKey)
  if not record and keptOut ~= '0' then drop(recordKey, id, keptOut) end
  if not record or record.id ~= id then return 'absent' end
  local hasExpired = record.expiry <= micros
  if record.closed > micros and unused == '0' then
    if hasExpired then return 'absent' end
    record.expiry, record.ttl = micros, 0
    saveRecord(recordKey, record)
    return 'released'
  end
  drop(recordKey, id, keptOut)
  local isAwaited = wakes == '1' and wakeNext(recordKey)
  if hasExpired then return 'absent' end
  return isAwaited and 'awaited' or 'released'
end

local function answer(recordKey, counterKey, request)
  local kind = string.sub(request, 1, 1)
  if kind == '+' or kind == '*' then return claim(recordKey, counterKey, request) end
  if kind == '-' or kind == '~' then return release(recordKey, counterKey, request) end
  if kind == 'r' then return raise(recordKey, counterKey, request) end
  if not readRecord(recordKey) then wakeNext(recordKey) end
  return 'yes'
end

for i = served + 1, #ARGV - FIRST do
  -- A request that fails does not fail the others.
  local ok, reply = pcall(answer, KEYS[2 * i - 1], KEYS[2 * i], ARGV[i + FIRST])
  replies[i] = ok and reply or '!' .. messageOf(reply)
end
replies[1] = withMarker(replies[1])
return replies[2] and replies or replies[1]
