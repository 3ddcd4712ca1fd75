-- The requests of one turn of the event loop. ARGV[1] describes the caller: its marker, its limits (see
-- marker.lua) and its channel, a line each. Each further argument is a request, one of
--   'release ID number unused wakes keptOut' (number: of the grant, or -1; unused: 1 if atLeast does not close
--     the name; wakes: 1 if a process that waits is told; keptOut: for so long, in ms, the ballot's claim is
--     refused if it arrives later)
--   'claim ID number ttl seq atLeast register holder' (register: 0, 1 if busy, 2 always)
--   'raise ID number'
--   'pass' (the caller was woken and does not want the name)
-- where ID names its ballot, with two keys: the record of the name, and its counter.
--
-- This part serves the usual requests with as few commands as possible, and before the functions of the other
-- parts are made: a claim of a free name on a node in service, and a release of a record.
local replies, served = {}, 0

for i = 1, #ARGV - 1 do
  local request, recordKey, reply = ARGV[i + 1], KEYS[2 * i - 1], nil
  if string.sub(request, 1, 8) == 'release ' then
    local id, number = string.match(request, '^release (%S+) (%d+) 0 1 0$')
    local stored = id and redis.pcall('GET', recordKey)
    number = tonumber(number)
    local own = id and cmsgpack.pack(FORMAT, id, 0, number)
    local isOwn = type(stored) == 'string' and string.sub(stored, 1, #own) == own
    local last = isOwn and redis.pcall('GET', KEYS[2 * i])
    last = type(last) == 'string' and tonumber(last)
    if last and last >= number then
      redis.call('DEL', recordKey)
      -- A renewal of the grant that arrives later must not fill it in again.
      if last == number then redis.call('SET', KEYS[2 * i], string.format('%.0f', number + 1)) end
      reply = wakeNext(recordKey) and 'awaited' or 'released'
    end
  elseif isInService() then
    local id, number, ttl, seq, holder =
      string.match(request, '^claim (%S+) (%d+) (%S+) (%d+) 0 [01] (.*)$')
    local last = id and redis.pcall('GET', KEYS[2 * i]) or '0'
    number, last, ttl = tonumber(number), type(last) == 'string' and tonumber(last), tonumber(ttl)
    if id and last and number > last and isPlausible(number) then
      local expiry = micros + ttl * 1000
      local set = redis.pcall(
        'SET', recordKey,
        cmsgpack.pack(FORMAT, id, 0, number, last, expiry, tonumber(seq), ttl, micros, holder),
        'NX', 'PXAT', string.format('%.0f', math.ceil(expiry / 1000) + 1)
      )
      if set and set.ok then
        local text = string.format('%.0f', number)
        redis.call('SET', KEYS[2 * i], text)
        reply = 'recorded ' .. text .. string.format(' %.0f', micros)
      end
    end
  end
  if not reply then break end
  replies[i], served = reply, i
end

-- A client reads a single text faster than a list.
if served == #ARGV - 1 then return replies[2] and replies or replies[1] end
