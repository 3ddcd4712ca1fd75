-- The rest of the requests, from the first one that usual.lua did not serve.

local function register(recordKey, ttl)
  local key = waitingOf(recordKey)
  if not redis.call('LPOS', key, channel) then redis.call('RPUSH', key, channel) end
  if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, math.ceil(ttl)) end
end

local function claim(recordKey, counterKey, request)
  local id, number, ttl, seq, atLeast, registers, holder =
    string.match(request, '^claim (%S+) (%S+) (%S+) (%S+) (%S+) (%d) (.*)$')
  number, ttl, seq, atLeast = tonumber(number), tonumber(ttl), tonumber(seq), tonumber(atLeast)
  if recoveringFor > 0 then
    return string.format('recovering %.0f %.0f', recoveringFor / 1000, micros)
  end
  local highest = readLast(counterKey)
  if not (number > highest and isPlausible(number)) then number = math.max(highest + 1, micros) end
  if number > MAX_TOKEN then return '!HOLDFAST LAST TOKEN' end
  local other, over = readRecord(recordKey)
  if over == id then return string.format('busy %.0f 0 %s ', micros, shortId(id)) end
  if isHeldBy(other, id) then
    if seq >= other[SEQ] then
      other[SEQ] = seq
      local expiry = micros + ttl * 1000
      if expiry > other[EXPIRY] then other[EXPIRY], other[TTL] = expiry, ttl end
      saveRecord(recordKey, other)
    end
    return string.format('recorded %.0f %.0f', other[NUMBER], micros)
  end
  if other then
    -- Without this, it would count from now at every claim.
    if other.isSetBack then saveRecord(recordKey, other) end
    if registers ~= '0' then register(recordKey, ttl) end
    local freeIn = math.max(other[EXPIRY], other[CLOSED]) - micros
    return string.format('busy %.0f %.3f %s %s', micros, freeIn / 1000, shortId(other[ID]), other[HOLDER])
  end
  saveRecord(recordKey, {
    FORMAT, id, atLeast > 0 and micros + atLeast * 1000 or 0, number, highest, micros + ttl * 1000,
    seq, ttl, micros, holder,
  })
  saveLast(counterKey, number, number)
  if registers == '2' then register(recordKey, ttl) end
  return string.format('recorded %.0f %.0f', number, micros)
end

local function raise(recordKey, counterKey, request)
  if recoveringFor > 0 then return 'no' end
  local id, number = string.match(request, '^raise (%S+) (%S+)$')
  number = tonumber(number)
  local record = readRecord(recordKey)
  if not isHeldBy(record, id) then return 'no' end
  if number == record[NUMBER] then return 'yes' end
  local isInTime = number >= micros - spread
    and number <= math.max(micros, record[NUMBER]) + MOST_AHEAD and number <= MAX_TOKEN
  if number < record[NUMBER] or not isInTime then return 'no' end
  record[NUMBER] = number
  saveRecord(recordKey, record)
  local highest, claimed = readLast(counterKey)
  saveLast(counterKey, math.max(highest, number), math.max(claimed, number))
  return 'yes'
end

local function drop(recordKey, id, keptOut)
  if keptOut == '0' then
    redis.call('DEL', recordKey)
  else
    redis.call('SET', recordKey, packRecord({ FORMAT, id, 0, 0, 0, 0, 0, 0, micros, '' }), 'PX', keptOut)
  end
end

local function release(recordKey, counterKey, request)
  local id, number, unused, wakes, keptOut =
    string.match(request, '^release (%S+) (%S+) (%d) (%d) (%d+)$')
  number = tonumber(number)
  -- With full memory the server refuses a script whose first write may take memory; this one takes none.
  redis.call('DEL', recordKey .. ':none')
  local highest, claimed = readLast(counterKey)
  -- A renewal of the grant that arrives later would fill it in again.
  if claimed <= number then saveLast(counterKey, math.max(highest, number + 1), number + 1) end
  local record = readRecord(recordKey)
  if not record and keptOut ~= '0' then drop(recordKey, id, keptOut) end
  if not record or record[ID] ~= id then return 'absent' end
  local hasExpired = record[EXPIRY] <= micros
  if record[CLOSED] > micros and unused == '0' then
    if hasExpired then return 'absent' end
    record[EXPIRY], record[TTL] = micros, 0
    saveRecord(recordKey, record)
    return 'released'
  end
  drop(recordKey, id, keptOut)
  local isAwaited = wakes == '1' and wakeNext(recordKey)
  if hasExpired then return 'absent' end
  return isAwaited and 'awaited' or 'released'
end

local function answer(recordKey, counterKey, request)
  local kind = string.match(request, '^%a+')
  if kind == 'claim' then return claim(recordKey, counterKey, request) end
  if kind == 'raise' then return raise(recordKey, counterKey, request) end
  if kind == 'pass' then
    if not readRecord(recordKey) then wakeNext(recordKey) end
    return 'yes'
  end
  return release(recordKey, counterKey, request)
end

for i = served + 1, #ARGV - 1 do
  -- A request that fails does not fail the others.
  local ok, reply = pcall(answer, KEYS[2 * i - 1], KEYS[2 * i], ARGV[i + 1])
  replies[i] = ok and reply or '!' .. messageOf(reply)
end
replies[1] = withMarker(replies[1])
return replies[2] and replies or replies[1]
