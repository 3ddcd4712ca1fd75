-- A record says which ballot has a name on this node:
--   format, id, closed until (µs), number, base, expiry (µs), seq, ttl (ms), granted at (µs), holder
-- base is the highest number that the node knew when it made the record. The number 0 says that the ballot is
-- over, and that its claim, if it arrives after its release, is refused.
local ID, CLOSED, NUMBER, BASE, EXPIRY, SEQ, TTL, SINCE, HOLDER = 2, 3, 4, 5, 6, 7, 8, 9, 10

-- The record of the ballot that has the name; otherwise nil, and the id of a ballot that is over.
local function readRecord(key)
  local stored = redis.call('GET', key)
  if not stored then return nil end
  local record = { cmsgpack.unpack(stored) }
  if record[1] ~= FORMAT then error({ err = 'HOLDFAST STRANGER' }) end
  if record[NUMBER] == 0 then return nil, record[ID] end
  -- More time left than was ever given: the clock was set back since. The record counts from now.
  local setBack = record[EXPIRY] - record[TTL] * 1000 - micros
  if setBack > 0 then
    for _, field in ipairs({ EXPIRY, SINCE, CLOSED }) do
      record[field] = math.max(0, record[field] - setBack)
    end
    record.isSetBack = true
  end
  if record[EXPIRY] <= micros and record[CLOSED] <= micros then return nil end
  return record
end

local function packRecord(record)
  return cmsgpack.pack(
    FORMAT, record[ID], record[CLOSED], record[NUMBER], record[BASE], record[EXPIRY], record[SEQ],
    record[TTL], record[SINCE], record[HOLDER]
  )
end

-- The key is kept a little longer than the record counts.
local function keptUntil(record)
  return string.format('%.0f', math.ceil(math.max(record[EXPIRY], record[CLOSED]) / 1000) + 1)
end

-- Whether the ballot of this id holds the name here; a name that atLeast keeps closed is held by nobody.
local function isHeldBy(record, id)
  return record and record[ID] == id and record[EXPIRY] > micros
end

local function saveRecord(key, record)
  redis.call('SET', key, packRecord(record), 'PXAT', keptUntil(record))
end

-- The highest number of all recordings on this node, and of those without fill-ins.
local function readLast(key)
  local stored = redis.call('GET', key)
  if not stored then return 0, 0 end
  local highest, claimed = string.match(stored, '^(%d+) ?(%d*)$')
  return tonumber(highest), tonumber(claimed) or tonumber(highest)
end

local function saveLast(key, highest, claimed)
  local text = string.format('%.0f', highest)
  if claimed < highest then text = text .. string.format(' %.0f', claimed) end
  redis.call('SET', key, text)
end

-- An error as text. redis.call raises tables.
local function messageOf(problem)
  return type(problem) == 'table' and problem.err or tostring(problem)
end

-- Tells people which ballot is meant, without its secret id.
local function shortId(id)
  return string.sub(redis.sha1hex(id), 1, 12)
end

local function readRevocations(key)
  local stored = redis.call('GET', key)
  return stored and cmsgpack.unpack(stored) or {}
end
