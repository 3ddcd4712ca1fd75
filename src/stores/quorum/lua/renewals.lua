-- Extends records, and fills in those that the node has lost; a node that is recovering does so too. Each
-- renewal is six arguments from the second on (id, number, ttl, seq, rest of atLeast in ms, holder) and three
-- keys: the record, the counter, the revocations. The number -1 belongs to no grant.
local function renew(key, id, number, ttl, seq, closedFor, holder)
  local record = readRecord(KEYS[key])
  if isHeldBy(record, id) then
    if record.base > number then return { kind = 'no' } end
    if seq >= record.seq then
      record.seq, record.ttl, record.expiry = seq, ttl, micros + ttl * 1000
      saveRecord(KEYS[key], record)
    end
    return { kind = 'yes', seq = record.seq, ttlMs = record.ttl }
  end
  local highest, claimed = readLast(KEYS[key + 1])
  if not record and number >= 0 and claimed <= number then
    saveRecord(KEYS[key], {
      number = number, id = id, closed = closedFor > 0 and micros + closedFor * 1000 or 0, ttl = ttl, seq = seq,
      holder = holder, base = number, since = micros, expiry = micros + ttl * 1000,
    })
    saveLast(KEYS[key + 1], math.max(highest, number), claimed)
    return { kind = 'filled' }
  end
  for _, revocation in ipairs(readRevocations(KEYS[key + 2])) do
    if revocation.id == shortId(id) then
      return { kind = 'no', why = 'by ' .. revocation.by .. ': ' .. revocation.why }
    end
  end
  return { kind = 'no', isTaken = record ~= nil and record.id ~= id }
end

writeNothing()
readTime()
local replies = {}
for i = 1, #KEYS / 3 do
  local arg = 6 * i - 4
  local ok, reply = pcall(
    renew, 3 * i - 2, ARGV[arg], tonumber(ARGV[arg + 1]), tonumber(ARGV[arg + 2]),
    tonumber(ARGV[arg + 3]), tonumber(ARGV[arg + 4]), ARGV[arg + 5]
  )
  replies[i] = ok and reply or { kind = 'error', cause = messageOf(reply) }
end
return cjson.encode(replies)
