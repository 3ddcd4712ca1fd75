-- Takes a name from one ballot, whether or not this node has its record, and keeps its number from being
-- filled in again. KEYS: the record, the counter, the revocations.
-- ARGV: the short id, its number, the holder, by whom, why.
readTime()
local id, number, holder, by, why = unpack(ARGV)
writeNothing()
local record = readRecord(KEYS[1])
local isThere = record and shortId(record.id) == id
local highest, claimed = readLast(KEYS[2])
number = tonumber(number)
if isThere then
  number = math.max(number, record.number)
  redis.call('DEL', KEYS[1])
end
saveLast(KEYS[2], math.max(highest, number + 1), math.max(claimed, number + 1))
local revocations = readRevocations(KEYS[3])
local isNoted = false
for _, one in ipairs(revocations) do isNoted = isNoted or one.id == id end
if not isNoted then
  revocations[#revocations + 1] = {
    id = id, holder = holder, token = string.format('%.0f', number), by = by, why = why, at = micros,
  }
  while #revocations > REVOKED_KEPT_MANY do table.remove(revocations, 1) end
  redis.call('SET', KEYS[3], cmsgpack.pack(revocations), 'PX', REVOKED_KEPT_MS)
end
if isThere then wakeNext(KEYS[1]) end
return 'yes'
