-- A record says which ballot has a name on this node. It is the text
--   'number ID closed ttl seq holder', a line break, 'base since' or 'base since expiry'
-- in ms (ttl) and µs (closed until, since, expiry; without an expiry, it is since + ttl). base is the highest number
-- that the node knew when it made the record. 'over ID' stands for a ballot whose claim, if it arrives after its
-- release, is refused.

-- The record of the ballot that has the name; otherwise nil, and the id of a ballot that is over.
local function readRecord(key)
  local stored = redis.call('GET', key)
  if not stored then return nil end
  local over = string.match(stored, '^over (%S+)$')
  if over then return nil, over end
  local number, id, closed, ttl, seq, holder, base, since, expiry =
    string.match(stored, '^(%d+) (%S+) (%d+) (%S+) (%d+) (.*)\n(%d+) (%d+) ?(%d*)$')
  if not number then error({ err = 'HOLDFAST STRANGER' }) end
  ttl, since = tonumber(ttl), tonumber(since)
  local record = {
    number = tonumber(number), id = id, closed = tonumber(closed), ttl = ttl, seq = tonumber(seq),
    holder = holder, base = tonumber(base), since = since, expiry = tonumber(expiry) or since + ttl * 1000,
  }
  -- More time left than was ever given: the clock was set back since. The record counts from now.
  local setBack = record.expiry - ttl * 1000 - micros
  if setBack > 0 then
    for _, field in ipairs({ 'expiry', 'since', 'closed' }) do
      record[field] = math.max(0, record[field] - setBack)
    end
    record.isSetBack = true
  end
  if record.expiry <= micros and record.closed <= micros then return nil end
  return record
end

-- Whether the ballot of this id holds the name here; a name that atLeast keeps closed is held by nobody.
local function isHeldBy(record, id)
  return record and record.id == id and record.expiry > micros
end

-- The key is kept a little longer than the record counts.
local function saveRecord(key, record)
  local text = string.format(
    '%.0f %s %.0f %.17g %.0f %s\n%.0f %.0f %.0f', record.number, record.id, record.closed, record.ttl, record.seq,
    record.holder, record.base, record.since, record.expiry
  )
  local keptUntil = math.ceil(math.max(record.expiry, record.closed) / 1000) + 1
  redis.call('SET', key, text, 'PXAT', string.format('%.0f', keptUntil))
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
